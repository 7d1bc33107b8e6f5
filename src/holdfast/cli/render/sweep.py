"""A sweep in words: what is handed in, what was said twice, and the table of its results."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from holdfast.core.queue.contradictions import MOST_SAID, shorten_contradictions
from holdfast.core.queue.results import (
    choose_metrics,
    count_states,
    describe_removed,
    find_each_best,
    is_as_good,
    list_params,
    sort_rows,
)
from holdfast.core.queue.words import count_jobs
from holdfast.model.queue import JobState
from holdfast.model.units import format_duration

from . import note, table

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from holdfast.agent.queue.sweep.take import SweepPreview, TakenSweep
    from holdfast.core.queue.results import ResultRow
    from holdfast.model.sweep import BuiltSweep

HASH_DIGITS = 12
MOST_PROBLEMS = 5
NOT_FINAL = "~"
BEST = "*"


def print_contradictions(built: BuiltSweep) -> None:
    """Say what was said twice with two values, and which one stands."""
    for text in shorten_contradictions(built):
        note(f"two values: {text}")
    for text in built.notes[:MOST_SAID]:
        note(text)


def print_preview(found: SweepPreview, said: Collection[str]) -> None:
    """Print every job; `said` are notes that were said before."""
    print(f"{count_jobs(len(found.jobs))} for group {found.group}")
    rows = [
        (
            job.job,
            job.sha256[:HASH_DIGITS],
            None if job.expected_s is None else format_duration(job.expected_s),
            shlex.join(job.command),
        )
        for job in found.jobs
    ]
    table(("job", "hash", "expected", "command"), rows, right=(2,))
    total = [job.expected_s for job in found.jobs]
    if total and None not in total:
        print(f"expected in all: {format_duration(sum(seconds for seconds in total if seconds is not None))}")
    _say_rest(found.notes, said)
    print("nothing was handed in (dry run)")


def print_taken(taken: TakenSweep, said: Collection[str]) -> None:
    """Say how many jobs were taken, and how to go on; `said` are notes that were said before."""
    known = f" ({taken.known} of them handed in before)" if taken.known else ""
    total = f", which has {taken.total} now" if taken.total > len(taken.jobs) else ""
    print(f"{count_jobs(len(taken.jobs))} in sweep {taken.group}{known}{total}")
    _say_rest(taken.notes, said)
    if taken.stopped is not None:
        note(f"nothing of it starts: it {taken.stopped}; holdfast queue resume {taken.group}")
    note(f"look: holdfast sweep show {taken.group}    wait: holdfast wait {taken.group}/")


def _say_rest(notes: Sequence[str], said: Collection[str]) -> None:
    for text in notes:
        if text not in said:
            note(text)


def print_rows(
    group: str,
    rows: Sequence[ResultRow],
    *,
    metrics: str | None = None,
    sort: tuple[str | None, str | None] = (None, None),
) -> None:
    """The table, what the marks mean, and how far it is; `sort` is a number's name, and min or max."""
    name, mode = sort
    shown, left = choose_metrics(rows, metrics, name)
    if name is not None:
        rows = sort_rows(rows, name, mode)
    params = list_params(rows)
    best = find_each_best(rows, shown, name, mode)
    headers = ["job", *params, "state", "att", "took", *shown]
    body = [
        [
            row.job.name,
            *(row.job.params.get(param) for param in params),
            row.job.state.value,
            row.job.attempts or None,
            None if row.seconds is None else format_duration(row.seconds),
            *(_format(row, column, best=best.get(column)) for column in shown),
        ]
        for row in rows
    ]
    table(headers, body, right=range(len(params) + 2, len(headers)))
    if any(not row.final and row.metrics for row in rows):
        print(f"{NOT_FINAL} last seen of a job that is not proven done: no result")
    if best:
        print(f"{BEST} best of the jobs that are done")
    if left:
        print(f"also: {', '.join(left[:20])} (--metrics NAME,NAME)")
    print(describe_progress(group, rows))
    _say_problems(rows)


def _format(row: ResultRow, column: str, *, best: ResultRow | None) -> str | None:
    value = row.metrics.get(column)
    if value is None:
        return None
    text = f"{value:.6g}" if row.final else f"{NOT_FINAL}{value:.6g}"
    if best is None:
        return text
    # The others keep the mark's room, so that the numbers stand in line.
    return f"{text} {BEST}" if is_as_good(row, best, column) else f"{text}{' ' * (len(BEST) + 1)}"


def describe_progress(group: str, rows: Sequence[ResultRow]) -> str:
    """``night: 7 of 12 done, 2 running, 3 queued``."""
    counts = count_states(rows)
    done = counts.pop(JobState.DONE, 0)
    rest = ", ".join(f"{number} {state.value}" for state, number in counts.items())
    return f"{group}: {done} of {len(rows)} done" + (f", {rest}" if rest else "")


def _say_problems(rows: Sequence[ResultRow]) -> None:
    if removed := describe_removed(rows):
        note(removed)
    problems = [f"{row.job.name}: {text}" for row in rows if not row.removed for text in row.problems]
    for text in problems[:MOST_PROBLEMS]:
        note(f"cannot be read: {text}")
    if len(problems) > MOST_PROBLEMS:
        note(f"and {len(problems) - MOST_PROBLEMS} more that cannot be read")
    failed = [row.job for row in rows if row.job.state is JobState.FAILED]
    for job in failed[:MOST_PROBLEMS]:
        note(f"{job.label} failed: {job.note or job.failure or f'exit code {job.exit_code}'}")
