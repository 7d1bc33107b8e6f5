"""``holdfast shell``: an interactive shell beside a run."""

from __future__ import annotations

import os
import sys

import click

from holdfast.agent.control.beside import become, find_exit_code, read_setting
from holdfast.cli.completion import complete_runs
from holdfast.cli.named_run import find_own
from holdfast.cli.path_type import PATH
from holdfast.cli.render import note
from holdfast.model.errors import UsageError

from . import SUMMARIES

EPILOG = """\b
holdfast shell digits
holdfast shell gpu1:digits"""


@click.command(short_help=SUMMARIES["shell"], epilog=EPILOG)
@click.argument("run", shell_complete=complete_runs)
@click.option("--runs", metavar="DIR", type=PATH, help="Look only under this directory of runs.")
def command(*, run: str, runs: str | None) -> int:
    """Open your shell where RUN runs: in its working directory, with its environment and its cards.

    Leaving it, or losing the connection, touches nothing of the run. Of a run in a container of Podman or Docker it is
    the image's shell, in there. Of an ended run no card is held for it. It needs a
    terminal; `holdfast exec` does not.
    """
    if not (os.isatty(0) and os.isatty(1)):
        raise UsageError("there is no terminal for a shell", hint=f"type it in one, or: holdfast exec {run} -- COMMAND")
    setting = read_setting(find_own(run, runs).run_dir, os.environ)
    for text in setting.notices:
        note(text)
    inside = "" if setting.container is None else f" in its container ({setting.container.image})"
    note(f"a shell in {setting.workdir}{inside}; leaving it touches nothing of {setting.run_id}")
    sys.stdout.flush()
    # Of a container the image's own shell: it has the one that a person has here or not.
    shell = (os.environ.get("SHELL") if setting.container is None else None) or "/bin/sh"
    try:
        return become(setting, (shell,))
    except OSError as error:
        note(f"{shell} cannot be started in {setting.workdir}: {error.strerror}")
        return find_exit_code(error)
