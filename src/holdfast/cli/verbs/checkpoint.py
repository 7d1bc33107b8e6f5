"""``holdfast checkpoint``: save now and go on."""

from __future__ import annotations

import click

from holdfast.agent.control.checkpoints.request import request_checkpoint
from holdfast.agent.view.find import find_run, require_own
from holdfast.cli.completion import complete_runs
from holdfast.cli.duration_option import parse_duration_option
from holdfast.cli.path_type import PATH
from holdfast.cli.render import note, print_record
from holdfast.cli.render.checkpoint import print_answer

from . import SUMMARIES

EPILOG = """\b
holdfast checkpoint digits                    wait until a new checkpoint is durable, print its step and path
holdfast checkpoint --wait 30m big-model      a save that takes long
holdfast checkpoint --no-wait digits          only ask"""


@click.command(short_help=SUMMARIES["checkpoint"], epilog=EPILOG)
@click.argument("run", shell_complete=complete_runs)
@click.option("--wait", "wait", default="5m", show_default=True, metavar="DURATION", help="How long to wait for it.")
@click.option("--no-wait", is_flag=True, help="Only ask.")
@click.option("--reason", default="", metavar="TEXT", help="Why, for the record.")
@click.option("--runs", metavar="DIR", type=PATH, help="Look only under this directory of runs.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def command(*, run: str, wait: str, no_wait: bool, reason: str, runs: str | None, as_json: bool) -> int:
    """Ask the job of RUN (its id, the beginning of it, or its name) to save a checkpoint and go on.

    A script that uses `holdfast.training` saves at its next step boundary. The command returns when a checkpoint is
    durable that is not older than the request. Requests that come before the job has taken one up are answered by the
    same save. Exit code 75: nothing was saved in the time to wait; the request stays. 64: the job does not run.
    """
    wait_s = parse_duration_option(wait, "--wait")
    found = find_run(run, root=runs)
    if found.notice:
        note(found.notice)
    require_own(found)
    tell = _tell_nothing if as_json else note
    answer = request_checkpoint(found.run_dir, reason=reason, wait_s=None if no_wait else wait_s, tell=tell)
    print_record(answer) if as_json else print_answer(answer)
    return answer.exit_code


def _tell_nothing(text: str) -> None:
    """For programs, who get the record."""
