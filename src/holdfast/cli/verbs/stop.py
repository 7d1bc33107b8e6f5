"""``holdfast stop``: ask, wait, and say rung by rung what happened."""

from __future__ import annotations

import click

from holdfast.cli.completion import complete_runs
from holdfast.cli.render import note, print_json

from . import SUMMARIES


@click.command(short_help=SUMMARIES["stop"])
@click.argument("run", shell_complete=complete_runs)
@click.option("--now", is_flag=True, help="Skip the grace: KILL at once.")
@click.option("--reason", default="", metavar="TEXT", help="Why, for the record.")
@click.option("--wait", "wait", metavar="DURATION", help="How long to wait for it. [default: its grace and 10s]")
@click.option("--runs", metavar="DIR", type=click.Path(), help="Look only under this directory of runs.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def command(*, run: str, now: bool, reason: str, wait: str | None, runs: str | None, as_json: bool) -> int:
    """Stop RUN (its id, the beginning of it, or its name), wait until nothing of it is left, and say how.

    TERM goes to the whole tree, the grace is extended while a save makes progress, then comes KILL. A run that has
    ended is left as it is: exit code 0. Exit code 76: something survived KILL; 124: it is still within its grace, and
    goes on stopping without us.
    """
    from holdfast.cli.runs import find, require_own
    from holdfast.cli.stopping import parse_wait, report_stop, stop_run

    found = find(run, root=runs)
    if found.notice:
        note(found.notice)
    require_own(found)
    stopped = stop_run(found, force=now, reason=reason, wait_s=parse_wait(wait), quiet=as_json)
    if as_json:
        print_json(stopped.encode())
    else:
        report_stop(stopped)
    return stopped.exit_code
