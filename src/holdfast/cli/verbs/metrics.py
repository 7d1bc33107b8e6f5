"""``holdfast metrics``: the values that a training logged."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from holdfast.agent.view.live.lines import FilteredLog, LogFile, follow_all, label_runs
from holdfast.agent.view.live.logs import choose_attempts
from holdfast.agent.view.live.metrics import ManyMetrics, list_values, parse_row, read_metrics, select_values
from holdfast.cli.completion import complete_runs
from holdfast.cli.named_run import find_ending, find_readable
from holdfast.cli.path_type import PATH
from holdfast.cli.render import note, print_record
from holdfast.cli.render.metrics import print_comparison, print_last_rows, print_metrics, print_row
from holdfast.core.near import find_near
from holdfast.model import wire
from holdfast.model.errors import HoldfastError, NoSuchName, NoSuchRun, NotPermitted, UsageError
from holdfast.model.record import replace

from . import SUMMARIES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from holdfast.agent.view.live.metrics import Metrics

FIRST_ROWS = 10
"""Rows that are shown before those that come."""
MOST_RUNS = 16
MOST_OFFERED = 20
MOST_COMPARED, LONGEST_NAME = 1000, 100
"""Names that are looked at for a near one, and how long one may be."""
EPILOG = """\b
holdfast metrics digits                 each value: first, last, lowest, highest, its curve
holdfast metrics digits loss -n 20      the last 20 rows of one
holdfast metrics lr-1 lr-2 loss         the loss of two runs side by side
holdfast metrics -f digits              each row as it is logged, until the run is over
holdfast metrics --json digits          all rows, for a plot of your own"""


@click.command(short_help=SUMMARIES["metrics"], epilog=EPILOG)
@click.argument("run", shell_complete=complete_runs)
@click.argument("words", nargs=-1, metavar="[NAME|RUN]...", shell_complete=complete_runs)
@click.option("-f", "--follow", is_flag=True, help="The last rows, then each as it is logged, until the run is over.")
@click.option("-n", "--lines", type=click.IntRange(min=0), metavar="N", help="The last N rows instead.")
@click.option("--attempt", metavar="N|all", default="all", show_default=True, help="Which attempt; all are one course.")
@click.option("--runs", metavar="DIR", type=PATH, help="Look only under this directory of runs.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def command(
    *, run: str, words: tuple[str, ...], follow: bool, lines: int | None, attempt: str, runs: str | None, as_json: bool
) -> int:
    """Show what RUN logged (`metrics.jsonl` of its attempts) and how far it is (its heartbeat), live or ended.

    Each NAME is one of the values. A step that was done again after a restart counts once, as it was done last. STEP
    is the step in which the last value was logged, and the first step is 0: after `progress step 120 of 120` it is 119.

    Further runs are compared with the first: the same value of each, with all curves over the same steps. A word that
    RUN logged is a NAME; of a run that is called so, too, say the id.
    """
    if follow and as_json:
        raise UsageError("--follow prints as it comes; --json is one object", hint="leave one out")
    run_dir = (find_ending if follow else find_readable)(run, runs).run_dir
    attempts = choose_attempts(run_dir, attempt)
    if follow and not words:
        _follow(run_dir, attempts[-1], (), lines)
        return 0
    first = read_metrics(run_dir, attempts)
    others, problems = _find_others(words, first, runs)
    names = tuple(word for word in words if word not in others)
    run_dirs = list(dict.fromkeys((run_dir, *others.values())))
    if len(run_dirs) > MOST_RUNS:
        hint = "holdfast sweep show GROUP has what each job of a sweep logged last"
        raise UsageError(f"{len(run_dirs)} runs to compare, and {MOST_RUNS} are the most", hint=hint)
    if len(run_dirs) > 1 and (follow or lines is not None):
        hint = "leave it out, or name one run"
        raise UsageError(f"{'--follow' if follow else '--lines'} is for one run, and these are several", hint=hint)
    labels = label_runs(run_dirs)
    if follow:
        for error in _list_refusals(problems, {labels[0]: list_values(first)}):
            note(str(error))
        _follow(run_dir, attempts[-1], names, lines)
        return 0
    logged: dict[str, dict[str, None]] = {}
    found = []
    for label, each in zip(labels, run_dirs, strict=True):
        metrics = first if each == run_dir else read_metrics(each, choose_attempts(each, attempt))
        logged[label] = list_values(metrics)
        metrics = select_values(metrics, names)
        # Of many runs all rows together may be more than there is room for; the curves are all that is shown.
        found.append(metrics if as_json or len(run_dirs) == 1 else replace(metrics, rows=()))
    for error in _list_refusals(problems, logged):
        raise error
    if as_json:
        print_record(found[0] if len(found) == 1 else ManyMetrics(tuple(found)))
    elif len(found) > 1:
        print_comparison(found, labels)
    elif lines is not None:
        print_last_rows(found[0], lines)
    else:
        print_metrics(found[0])
    return 0


def _find_others(
    words: Sequence[str], first: Metrics, runs: str | None
) -> tuple[dict[str, str], dict[str, HoldfastError]]:
    """The directories of the words that are runs; and why those are none that the first run has not logged either."""
    logged = list_values(first)
    others: dict[str, str] = {}
    problems: dict[str, HoldfastError] = {}
    for word in words:
        if word in logged:
            continue
        try:
            others[word] = find_readable(word, runs).run_dir
        except (NoSuchRun, NotPermitted, UsageError) as error:
            problems[word] = error
    return others, problems


def _list_refusals(
    problems: Mapping[str, HoldfastError], logged: Mapping[str, Iterable[str]]
) -> Iterator[HoldfastError]:
    """Of each word that is no run an error, where none of these runs logged it; none before anything was logged."""
    names = list(dict.fromkeys(name for known in logged.values() for name in known))
    whose = " and ".join(logged) if len(logged) < 3 else f"the {len(logged)} runs"
    offered = [name for name in names[:MOST_COMPARED] if len(name) <= LONGEST_NAME]  # anybody may have written them
    shown = ", ".join(offered[:MOST_OFFERED]) + (", ..." if len(names) > MOST_OFFERED else "")
    for word, error in problems.items():
        if not names or word in names:
            continue
        if not isinstance(error, NoSuchRun):
            yield error
            continue
        near = find_near(word, offered)
        hint = f"did you mean {near}?" if near else error.hint if error.hint.startswith("did you mean") else ""
        yield NoSuchName(f"{whose} logged no {word!r}, and no run is called so; logged is {shown}", hint=hint)


def _follow(run_dir: str, attempt: int, names: tuple[str, ...], lines: int | None) -> None:
    log = FilteredLog(LogFile(run_dir, attempt, wire.METRICS), None)
    try:
        for view in follow_all(
            [log], FIRST_ROWS if lines is None else lines, lambda line: print_row(parse_row(line, names))
        ):
            note(f"{view.run_id} {view.condition}: {view.note}")
    finally:
        log.close()
