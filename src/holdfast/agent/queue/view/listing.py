"""Where the queue stands: counts, what runs, what waits next and why.

With ten thousand jobs only the counts and what is shown are read.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from holdfast.agent.cards.line import read_line
from holdfast.agent.queue.open import describe_absence, look_at_queue, look_for_worker, require_group
from holdfast.agent.view.runs.row import read_row
from holdfast.core.near import find_near
from holdfast.host.clock import boottime_ns
from holdfast.model.errors import HoldfastError, UsageError
from holdfast.model.queue import ACTIVE_STATES, WAITING_STATES, GroupKind, JobGroup, JobState, QueuedJob, QueueSettings
from holdfast.model.record import record

from .estimate import estimate_jobs, find_cost
from .reasons import explain_job, read_situation, summarise_reasons

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.store.queue.queue import Queue

SHOWN = 20
"""Jobs that are listed of those that wait, unless all are asked for, and runs whose progress is read."""


@record
class GroupLine:
    """A group as `model.queue.JobGroup` has it, with its jobs by state and, in words, how long they take still."""

    name: str
    kind: GroupKind
    max_parallel: int | None
    paused: bool
    held: str
    hold_after: int
    source: str | None
    made_at: float
    counts: dict[str, int]
    left: str

    def count(self, *states: JobState) -> int:
        """How many of its jobs are in one of these states."""
        return sum(self.counts.get(state.value, 0) for state in states)

    @property
    def waits(self) -> bool:
        """Whether a job of it waits."""
        return bool(self.count(*WAITING_STATES))


@record
class ActiveRow:
    """A job at work: where its run stands. The numbers are None where they are not known.

    The progress of the first twenty is read; of the others `condition` is the job's state.
    """

    job: QueuedJob
    label: str
    condition: str
    elapsed_s: float | None
    left_s: float | None
    cards: str
    step: int | None
    loss: str | None


@record
class ListedJob:
    """A job that waits, with the first reason why, or one that is over, with what became of it."""

    job: QueuedJob
    label: str
    why: str


@record
class LineEntry:
    """A run in line for cards: a job's (`label`), one of `run --wait`, or another account's."""

    user: str
    run_id: str
    label: str | None
    cards: int
    waited_s: float


@record
class QueueList:
    """The queue, or the group `group` of it, at one moment; `states` were asked for (empty: those that wait).

    `more` jobs are like those of `jobs` and not among them. `warnings` say what does not go on by itself, each with
    the command that lets it. `notice`: what had to be done to open the queue. `line` is the line for the cards of this
    box, of all accounts, who is next first; `line_unread` why it cannot be read.
    """

    queue: str
    group: str | None
    states: tuple[JobState, ...]
    settings: QueueSettings
    worker: bool
    notice: str | None
    groups: tuple[GroupLine, ...]
    active: tuple[ActiveRow, ...]
    jobs: tuple[ListedJob, ...]
    more: int
    warnings: tuple[str, ...]
    line: tuple[LineEntry, ...] = ()
    line_unread: str = ""


def list_queue(word: str | None, *, states: Sequence[str] = (), everything: bool = False) -> QueueList:
    """The queue, or the group that `word` names; every job with `everything`, else those that wait first.

    Raises:
        UsageError: there is no such group or state.
    """
    wanted = _read_states(states)
    with look_at_queue() as queue:
        group = None if word is None else require_group(queue, word).name
        return _look(queue, group, wanted, limit=None if everything else SHOWN)


def _look(queue: Queue, group: str | None, states: tuple[JobState, ...], *, limit: int | None) -> QueueList:
    worker, problem = look_for_worker(queue)
    groups, settings = queue.groups(), queue.settings()
    counts = queue.counts()
    every = queue.active()
    active = [job for job in every if group in (None, job.group) and (not states or job.state in states)]
    jobs = _choose_jobs(queue, group, states, limit)
    situation = read_situation(queue, every, groups=groups, cards=any(job.cards for job in jobs))
    rows, before = [], {True: 0, False: 0}
    for job in jobs:
        if job.state not in WAITING_STATES:
            rows.append(ListedJob(job, job.label, _describe_end(job)))
            continue
        reasons = explain_job(queue, job, situation, behind=before[bool(job.cards)])
        before[bool(job.cards)] += job.state is JobState.QUEUED
        rows.append(ListedJob(job, job.label, summarise_reasons(reasons)))
    lines = tuple(
        _describe_group(queue, known, counts.get(name, {}), active)
        for name, known in groups.items()
        if group in (None, name)
    )
    like = set(states or WAITING_STATES) - ACTIVE_STATES
    line, unread = ((), "") if group is not None or states else _read_line(every)
    return QueueList(
        queue=queue.directory,
        group=group,
        states=states,
        settings=settings,
        worker=worker is not None,
        notice=queue.notice,
        groups=lines,
        active=tuple(_describe_active(queue, job, index < SHOWN) for index, job in enumerate(active)),
        jobs=tuple(rows),
        more=max(0, sum(line.count(*like) for line in lines) - len(rows)),
        warnings=(
            *_point_at_failures(lines, rows, group, states),
            *_describe_stops(settings, lines, problem, active=bool(active)),
            *_describe_absence(queue, lines, settings, active, there=worker is not None or bool(problem)),
            *_describe_standstill(lines, rows, active),
        ),
        line=line,
        line_unread=unread,
    )


def _read_line(active: Sequence[QueuedJob]) -> tuple[tuple[LineEntry, ...], str]:
    """The line for cards, and why it cannot be read."""
    try:
        tickets = read_line()
    except (HoldfastError, OSError) as error:
        return (), str(error)
    labels, now_ns = {job.run_id: job.label for job in active}, boottime_ns()
    return tuple(
        LineEntry(one.user, one.run_id, labels.get(one.run_id), one.count, max(0, now_ns - one.order) / 1e9)
        for one in tickets
    ), ""


def _choose_jobs(queue: Queue, group: str | None, states: tuple[JobState, ...], limit: int | None) -> list[QueuedJob]:
    # Blocked and held ones only after those that come next.
    listed = [states] if states else [(JobState.QUEUED,), (JobState.BLOCKED, JobState.HELD)]
    jobs: list[QueuedJob] = []
    for some in listed:
        left = None if limit is None else limit - len(jobs)
        if left is None or left > 0:
            jobs += queue.jobs(group=group, states=some, limit=left)
    if states:
        return [job for job in jobs if job.state not in ACTIVE_STATES]
    if limit is None:
        jobs += queue.jobs(group=group, states=[JobState.FAILED, JobState.CANCELLED, JobState.DONE])
    return jobs


def _describe_group(
    queue: Queue, group: JobGroup, numbers: Mapping[JobState, int], active: Sequence[QueuedJob]
) -> GroupLine:
    own = [job for job in active if job.group == group.name]
    estimate = estimate_jobs(queue, numbers, own, queue.start_times(group.name)) if own else None
    return GroupLine(
        name=group.name,
        kind=group.kind,
        max_parallel=group.max_parallel,
        paused=group.paused,
        held=group.held,
        hold_after=group.hold_after,
        source=group.source,
        made_at=group.made_at,
        counts={state.value: number for state, number in numbers.items() if number},
        left="" if estimate is None else estimate.words,
    )


def _describe_active(queue: Queue, job: QueuedJob, reads: bool) -> ActiveRow:  # noqa: FBT001 - one fact of a row
    now = time.time()
    elapsed_s = None if job.started_at is None else now - job.started_at
    left_s = find_cost(queue, job).left(job, now)
    if job.run_id is None or not reads:
        return ActiveRow(job, job.label, job.state.value, elapsed_s, left_s, "", None, None)
    row = read_row(job.runs_root, job.run_id)
    return ActiveRow(job, job.label, row.condition, elapsed_s, left_s, row.cards, row.step, row.loss)


def _read_states(words: Sequence[str]) -> tuple[JobState, ...]:
    """States as people say them; `waiting` and `active` are several.

    Raises:
        UsageError: there is no such state.
    """
    found: list[JobState] = []
    for word in words:
        if word == "waiting":
            found += [state for state in JobState if state in WAITING_STATES]
        elif word == "active":
            found += [state for state in JobState if state in ACTIVE_STATES]
        elif word in {state.value for state in JobState}:
            found.append(JobState(word))
        else:
            names = [*(state.value for state in JobState), "waiting", "active"]
            near = find_near(word, names)
            hint = f"did you mean {near}?" if near else f"there are {', '.join(names)}"
            raise UsageError(f"--state: there is no state {word!r}", hint=hint)
    return tuple(found)


def _describe_end(job: QueuedJob) -> str:
    words = [job.failure or (job.outcome or ""), f"exit {job.exit_code}" if job.exit_code is not None else ""]
    said = ", ".join(word for word in words if word)
    return ": ".join(part for part in (said, job.note) if part)


# -------------------------------------------------------------------------------- what does not go on by itself, loudly


def _point_at_failures(
    lines: Sequence[GroupLine], rows: Sequence[ListedJob], group: str | None, states: Sequence[JobState]
) -> list[str]:
    failed = sum(line.count(JobState.FAILED) for line in lines)
    if not failed or states or any(row.job.state is JobState.FAILED for row in rows):
        return []
    return [f"{failed} failed: holdfast queue ls{f' {group}' if group else ''} --state failed says why"]


def _describe_stops(settings: QueueSettings, lines: Sequence[GroupLine], problem: str, *, active: bool) -> list[str]:
    """What keeps the queue or groups from starting anything, and the command that goes on."""
    found = [problem] if problem else []
    if settings.paused:
        found.append("the queue is PAUSED: nothing new starts; go on: holdfast queue resume")
    elif settings.draining:
        state = "is being DRAINED" if active else "is DRAINED"
        found.append(f"the queue {state}: nothing new starts; go on: holdfast queue resume")
    for line in lines:
        # A group that stopped by itself and has nothing left to start is no news.
        if line.held and line.waits:
            found.append(f"group {line.name} is HELD: {line.held}; go on: holdfast queue resume {line.name}")
        elif line.paused and not line.held:
            found.append(f"group {line.name} is PAUSED; go on: holdfast queue resume {line.name}")
    return found


def _describe_absence(
    queue: Queue, lines: Sequence[GroupLine], settings: QueueSettings, active: Sequence[QueuedJob], *, there: bool
) -> list[str]:
    stopped = settings.paused or settings.draining
    missed = active or (any(line.count(JobState.QUEUED) for line in lines) and not stopped)
    return [describe_absence(queue)] if missed and not there else []


def _describe_standstill(
    lines: Sequence[GroupLine], rows: Sequence[ListedJob], active: Sequence[QueuedJob]
) -> list[str]:
    def count(state: JobState) -> int:
        return sum(line.count(state) for line in lines)

    if active or count(JobState.QUEUED):
        return []
    states = (JobState.HELD, JobState.BLOCKED)
    parts = [f"{number} {state.value}" for state in states if (number := count(state))]
    if not parts:
        return []
    job = next((row.label for row in rows if row.job.state in states), "JOB")
    return [f"nothing goes on by itself: {', '.join(parts)}; `holdfast queue show {job}` says what it takes"]
