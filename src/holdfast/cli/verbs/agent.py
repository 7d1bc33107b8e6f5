"""``holdfast agent``: be the supervisor of an attempt, in the foreground. Internal: for debugging a supervisor.

`run` does not use this. The supervisor is the same process image in both: without click, without site-packages.
"""

from __future__ import annotations

import os

import click

from holdfast.cli.render import print_json
from holdfast.model import wire
from holdfast.model.errors import NoSuchRun

from . import SUMMARIES

REASONS = ("start", "restart", "adopt")


@click.command(short_help=SUMMARIES["agent"])
@click.argument("run_dir", type=click.Path())
@click.option("--attempt", type=click.IntRange(min=1), default=1, show_default=True, help="Which attempt to supervise.")
@click.option("--reason", type=click.Choice(REASONS), default="adopt", show_default=True, help="Why it is started.")
@click.option("--json", "as_json", is_flag=True, help="Print an object with the exit code at the end.")
def command(run_dir: str, attempt: int, reason: str, as_json: bool) -> int:  # noqa: FBT001 - flags of the command line
    """Supervise one attempt of the run in RUN_DIR until it has ended.

    Returns at once when the attempt has a supervisor already. The exit code is the supervisor's, not the job's.
    """
    directory = os.path.abspath(run_dir)
    if not os.path.isdir(wire.attempt_dir(directory, attempt)):
        raise NoSuchRun(
            f"{directory} has no attempt {attempt}", hint="name the run's directory; `holdfast ls` has the runs"
        )
    code = _supervise(directory, attempt, reason)
    if as_json:
        print_json({"run_dir": directory, "attempt": attempt, "exit_code": code})
    return code


def _supervise(directory: str, attempt: int, reason: str) -> int:
    """Start the supervisor as a child and wait for it; Ctrl-C is the supervisor's business, which we sit out."""
    import signal

    from holdfast.agent.launch import build_supervisor_command

    command = build_supervisor_command(directory, attempt, reason)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        child = os.posix_spawn(command[0], command, os.environ, setsigdef=[signal.SIGINT])
        _, status = os.waitpid(child, 0)
    finally:
        signal.signal(signal.SIGINT, before)
    return os.waitstatus_to_exitcode(status)
