"""``holdfast exec``: a command of one's own beside a run, in its directory and with its environment."""

from __future__ import annotations

import os
import sys

import click

from holdfast.agent.control.beside import become, find_exit_code, read_setting, run_for_caller
from holdfast.cli.completion import complete_runs
from holdfast.cli.job.options import JobCommand
from holdfast.cli.named_run import find_own
from holdfast.cli.path_type import PATH
from holdfast.cli.render import note
from holdfast.desk.caller import CALLER
from holdfast.model.errors import UsageError

from . import SUMMARIES

EPILOG = """\b
holdfast exec digits -- nvidia-smi
holdfast exec gpu1:digits -- python -c 'import torch; print(torch.cuda.device_count())'
holdfast exec gpu1:digits -- tail -n 5 metrics.csv > metrics.csv"""


@click.command(cls=JobCommand, short_help=SUMMARIES["exec"], epilog=EPILOG)
@click.argument("run", shell_complete=complete_runs)
@click.option("--runs", metavar="DIR", type=PATH, help="Look only under this directory of runs.")
def command(*, run: str, runs: str | None, command: tuple[str, ...]) -> int:
    """Run COMMAND where RUN runs: in its working directory, with its environment and its cards.

    Input, output and exit code are the command's own. It is no part of the run: stopping the run does not end it, and
    no limit of the run holds it. It ends with the connection. Of an ended run no card is held for it, and its
    environment is what was recorded, without secrets. Of a run in a container of Podman or Docker it runs in there,
    under the run's limits, and ends with it.
    """
    if not command:
        raise UsageError("which command?", hint=f"write it behind `--`: holdfast exec {run} -- nvidia-smi")
    setting = read_setting(find_own(run, runs).run_dir, os.environ)
    for text in setting.notices:
        note(text)
    sys.stdout.flush()
    try:
        return become(setting, command) if CALLER.place is None else run_for_caller(setting, command)
    except OSError as error:
        note(f"{command[0]} cannot be started in {setting.workdir}: {error.strerror}")
        return find_exit_code(error)
