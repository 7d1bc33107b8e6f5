"""``holdfast metrics``: the values that a training logged."""

from __future__ import annotations

import click

from holdfast.agent.view.live.lines import FilteredLog, LogFile, follow_all
from holdfast.agent.view.live.logs import choose_attempts
from holdfast.agent.view.live.metrics import parse_row, read_metrics
from holdfast.cli.completion import complete_runs
from holdfast.cli.named_run import find_ending, find_readable
from holdfast.cli.path_type import PATH
from holdfast.cli.render import note, print_record
from holdfast.cli.render.metrics import print_last_rows, print_metrics, print_row
from holdfast.model import wire
from holdfast.model.errors import UsageError

from . import SUMMARIES

FIRST_ROWS = 10
"""Rows that are shown before those that come."""
EPILOG = """\b
holdfast metrics digits                 each value: first, last, lowest, highest, its curve
holdfast metrics digits loss -n 20      the last 20 rows of one
holdfast metrics -f digits              each row as it is logged, until the run is over
holdfast metrics --json digits          all rows, for a plot of your own"""


@click.command(short_help=SUMMARIES["metrics"], epilog=EPILOG)
@click.argument("run", shell_complete=complete_runs)
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("-f", "--follow", is_flag=True, help="The last rows, then each as it is logged, until the run is over.")
@click.option("-n", "--lines", type=click.IntRange(min=0), metavar="N", help="The last N rows instead.")
@click.option("--attempt", metavar="N|all", default="all", show_default=True, help="Which attempt; all are one course.")
@click.option("--runs", metavar="DIR", type=PATH, help="Look only under this directory of runs.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def command(
    *, run: str, names: tuple[str, ...], follow: bool, lines: int | None, attempt: str, runs: str | None, as_json: bool
) -> int:
    """Show what RUN logged (`metrics.jsonl` of its attempts) and how far it is (its heartbeat), live or ended.

    Each NAME is one of the values. A step that was done again after a restart counts once, as it was done last.
    """
    if follow and as_json:
        raise UsageError("--follow prints as it comes; --json is one object", hint="leave one out")
    found = (find_ending if follow else find_readable)(run, runs)
    if follow:
        _follow(
            found.run_dir, choose_attempts(found.run_dir, attempt)[-1], names, FIRST_ROWS if lines is None else lines
        )
        return 0
    metrics = read_metrics(found.run_dir, choose_attempts(found.run_dir, attempt), names)
    if as_json:
        print_record(metrics)
    elif lines is not None:
        print_last_rows(metrics, lines)
    else:
        print_metrics(metrics)
    return 0


def _follow(run_dir: str, attempt: int, names: tuple[str, ...], lines: int) -> None:
    log = FilteredLog(LogFile(run_dir, attempt, wire.METRICS), None)
    try:
        for view in follow_all([log], lines, lambda line: print_row(parse_row(line, names))):
            note(f"{view.run_id} {view.condition}: {view.note}")
    finally:
        log.close()
