"""The results of a sweep's jobs side by side: which numbers tell good from bad, and which job is the best.

The numbers of a job that is not proven done are what was seen last, never a result: it is never the best.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from holdfast.core.near import find_near
from holdfast.model.errors import NoSuchName
from holdfast.model.queue import JobState
from holdfast.model.record import field, record

from .words import name_labels

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from holdfast.model.queue import QueuedJob

MOST_COLUMNS = 5
"""Numbers side by side unless they were named; the others are named below the table."""
MOST_OFFERED = 20
"""Numbers that are named to who asked for one that is not there."""
BEAT_FACTS = frozenset({"step", "epoch"})
"""Of a heartbeat's numbers those that say how far it is; times and sizes of saves are not the training's."""
SAVE_FACTS = frozenset({"mirrored_step", "mirror_failures", "save_failures"})
BEAT_PACE = frozenset({"planned_steps", "steps_per_s", "pause_seconds", "metrics_dropped"}) | SAVE_FACTS
"""Those that are about the work and not about what came of it: shown when they are named."""
_HIGHER = re.compile(
    r"acc|score|f1|auc|(^|[._-])m?ap($|[._@-])|reward|return|bleu|rouge|recall|precision|r2|iou|psnr|ssim"
)
_LOWER = re.compile(r"loss|err|ppl|perplexity|mse|mae|rmse|wer|cer|fid|nll|regret")


REMOVED = "its run was removed, and its numbers with it"


@record
class ResultRow:
    """One job: `final` says whether its numbers are results. `problems` are files that could not be read.

    `seconds` is how long its job ran in the attempts that have ended, without the time in line; None: not known.
    `removed`: its run is not there any more, and its numbers with it.
    """

    job: QueuedJob
    metrics: dict[str, float] = field(default_factory=dict)
    final: bool = False
    problems: tuple[str, ...] = ()
    seconds: float | None = None
    removed: bool = False


@record
class JobLine:
    """A row for programs; what is not finite is text, because JSON has no number for it."""

    job: str
    state: JobState
    final: bool
    params: dict[str, str]
    metrics: dict[str, float | str]
    attempts: int
    seconds: float | None
    run_id: str | None
    sha256: str
    exit_code: int | None
    failure: str | None
    note: str
    problems: tuple[str, ...]


@record
class SweepTable:
    """Every job of a sweep with its numbers: how many stand where, which is the best by the number that was named.

    `best_by` names the best jobs by each number whose name says what is better, as the table marks them.
    """

    group: str
    counts: dict[str, int]
    best: str | None
    jobs: tuple[JobLine, ...]
    best_by: dict[str, tuple[str, ...]] = field(default_factory=dict)


def tabulate(group: str, rows: Sequence[ResultRow], name: str | None = None, mode: str | None = None) -> SweepTable:
    """The table for programs, best first where a number is named.

    Raises:
        NoSuchName: no job has a number of this name.
    """
    rows = rank_rows(rows, name, mode)
    best = None if name is None else find_best(rows, name, mode)
    counts = {state.value: number for state, number in count_states(rows).items()}
    marked = find_each_best(rows, list_metrics(rows), name, mode)
    best_by = {
        column: tuple(row.job.name for row in rows if is_as_good(row, one, column)) for column, one in marked.items()
    }
    return SweepTable(group, counts, None if best is None else best.job.name, tuple(map(describe_row, rows)), best_by)


def describe_row(row: ResultRow) -> JobLine:
    """A row for programs."""
    job = row.job
    return JobLine(
        job=job.name,
        state=job.state,
        final=row.final,
        params=dict(job.params),
        metrics={name: value if math.isfinite(value) else str(value) for name, value in row.metrics.items()},
        attempts=job.attempts,
        seconds=row.seconds,
        run_id=job.run_id,
        sha256=job.sha256,
        exit_code=job.exit_code,
        failure=job.failure,
        note=job.note,
        problems=row.problems,
    )


def describe_removed(rows: Sequence[ResultRow]) -> str:
    """That runs of jobs were removed, so that their numbers are missing; empty where none was."""
    removed = [row.job.name for row in rows if row.removed]
    if not removed:
        return ""
    whose = f"the run of {removed[0]} was" if len(removed) == 1 else f"the runs of {len(removed)} jobs were"
    more = "" if len(removed) == 1 else f" ({name_labels(removed)})"
    return f"{whose} removed, and the numbers with {'it' if len(removed) == 1 else 'them'}{more}"


def list_params(rows: Sequence[ResultRow]) -> list[str]:
    """The parameters in which the jobs differ; all of them when there is one job."""
    names = list(dict.fromkeys(name for row in rows for name in row.job.params))
    if len(rows) <= 1:
        return names
    return [name for name in names if len({row.job.params.get(name) for row in rows}) > 1]


def list_metrics(rows: Sequence[ResultRow]) -> list[str]:
    """Every number's name, those that tell good from bad first; parameters, pace and what is equal in all jobs last."""
    names = list(dict.fromkeys(name for row in rows for name in row.metrics))
    params = {name for row in rows for name in row.job.params}

    def rank(name: str) -> tuple[bool, bool]:
        values = {row.metrics.get(name) for row in rows}
        last = name in params or name in BEAT_PACE or (len(rows) > 1 and len(values) <= 1)
        return last, not (is_judged(name) or name in BEAT_FACTS)

    return sorted(names, key=rank)


def is_judged(name: str) -> bool:
    """Whether the name says what is better."""
    return bool(_HIGHER.search(name.lower()) or _LOWER.search(name.lower()))


def is_higher_better(name: str, mode: str | None = None) -> bool:
    """Whether more is better: as said (``min``, ``max``), else as the name suggests; a loss, if it says nothing."""
    if mode is not None:
        return mode == "max"
    return _HIGHER.search(name.lower()) is not None and _LOWER.search(name.lower()) is None


def find_best(rows: Sequence[ResultRow], name: str, mode: str | None = None) -> ResultRow | None:
    """The best job by a number, among those that are proven done and have a finite one."""
    known = [row for row in rows if row.final and _is_finite(row.metrics.get(name))]
    if not known:
        return None
    choose = max if is_higher_better(name, mode) else min
    return choose(known, key=lambda row: row.metrics[name])


def find_each_best(
    rows: Sequence[ResultRow], columns: Iterable[str], name: str | None = None, mode: str | None = None
) -> dict[str, ResultRow]:
    """The best job by each of these numbers that says what is better, or is the one that was named."""
    wanted = [column for column in columns if (column == name or is_judged(column)) and results_differ(rows, column)]
    found = {column: find_best(rows, column, mode if column == name else None) for column in wanted}
    return {column: best for column, best in found.items() if best is not None}


def is_as_good(row: ResultRow, best: ResultRow, column: str) -> bool:
    """Whether a job is as good as the best one by a number: equally good ones are all the best."""
    return row.final and row.metrics.get(column) == best.metrics.get(column)


def results_differ(rows: Sequence[ResultRow], name: str) -> bool:
    """Whether results differ in a number, so that one can be better than another."""
    return len({row.metrics[name] for row in rows if row.final and _is_finite(row.metrics.get(name))}) > 1


def rank_rows(rows: Sequence[ResultRow], name: str | None, mode: str | None = None) -> Sequence[ResultRow]:
    """Best first by the number that was named; as they are without one.

    Raises:
        NoSuchName: no job has a number of this name.
    """
    if name is None:
        return rows
    choose_metrics(rows, None, name)
    return sort_rows(rows, name, mode)


def sort_rows(rows: Sequence[ResultRow], name: str, mode: str | None = None) -> list[ResultRow]:
    """Best first; jobs without a proven number behind those with one."""
    sign = -1.0 if is_higher_better(name, mode) else 1.0

    def key(row: ResultRow) -> tuple[bool, bool, float, int]:
        value = row.metrics.get(name)
        finite = value is not None and math.isfinite(value)
        return not row.final, not finite, sign * value if finite and value is not None else 0.0, row.job.id

    return sorted(rows, key=key)


def _is_finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def count_states(rows: Iterable[ResultRow]) -> dict[JobState, int]:
    """How many jobs stand where, in the order of the states."""
    counts = dict.fromkeys(JobState, 0)
    for row in rows:
        counts[row.job.state] += 1
    return {state: number for state, number in counts.items() if number}


def choose_metrics(rows: Sequence[ResultRow], wanted: str | None, sort: str | None) -> tuple[list[str], list[str]]:
    """The numbers to show, and those that are left out.

    Raises:
        NoSuchName: one was named that no job has; near names are proposed.
    """
    known = list_metrics(rows)
    if not known:
        # Nothing has logged anything yet, which is no mistake of who asks.
        return [], []
    named = [name.strip() for name in (wanted or "").split(",") if name.strip()]
    for name in [*named, *([sort] if sort is not None else [])]:
        if name not in known:
            near = find_near(name, known)
            there = f"there are {', '.join(known[:MOST_OFFERED])}"
            hint = f"did you mean {near}? {there}" if near else there
            raise NoSuchName(f"no job has a number {name!r}", hint=hint)
    if named:
        return named, []
    params = {name for row in rows for name in row.job.params}
    telling = [name for name in known if name not in params and name not in BEAT_PACE]
    shown = list(dict.fromkeys([*([sort] if sort is not None else []), *telling]))[:MOST_COLUMNS]
    return shown, [name for name in known if name not in shown]
