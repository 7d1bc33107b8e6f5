"""``holdfast attach``: follow a live run as if it had been started in this terminal."""

from __future__ import annotations

import sys

import click

from holdfast.agent.view.live.attempt import find_newest, find_offset, read_followed
from holdfast.cli.attach import follow_run
from holdfast.cli.completion import complete_runs
from holdfast.cli.named_run import find_ending
from holdfast.cli.path_type import PATH
from holdfast.cli.render import is_terminal, note, print_record
from holdfast.desk.caller import CALLER

from . import SUMMARIES


@click.command(short_help=SUMMARIES["attach"])
@click.argument("run", shell_complete=complete_runs)
@click.option(
    "-n", "--lines", type=click.IntRange(min=0), metavar="N", help="Begin N lines before the end of the output."
)
@click.option("--runs", metavar="DIR", type=PATH, help="Look only under this directory of runs.")
@click.option("--json", "as_json", is_flag=True, help="Print no output, only one JSON object at the end.")
def command(*, run: str, lines: int | None, runs: str | None, as_json: bool) -> int:
    """Follow RUN (its id, the beginning of it, or its name) until it is over; the exit code is the job's own.

    Ctrl-C asks the run to stop, a second one ends it at once, a third leaves. Losing the terminal only detaches; to
    watch alone there is `holdfast logs -f`, which Ctrl-C only leaves. Of an ended run the output and the summary are
    printed.
    """
    found = find_ending(run, runs)
    if CALLER.position is not None and not as_json:
        begun = CALLER.position
        return follow_run(found.run_dir, begun.attempt, offset=begun.offset, anchor=begun.anchor)
    newest = find_newest(found.run_dir)
    if not as_json and is_terminal(sys.stderr) and not newest.over:
        note(f"Ctrl-C stops {found.run_id}, closing the terminal does not; `holdfast logs -f` only looks")
    offset = find_offset(found.run_dir, newest.attempt, lines)
    code = follow_run(found.run_dir, newest.attempt, quiet=as_json, offset=offset)
    if as_json:
        print_record(read_followed(found.run_dir, code, CALLER.place))
    return code
