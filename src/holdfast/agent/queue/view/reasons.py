"""Why a job waits, as a command sees it: the same judgement as the worker's, from the same facts."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from holdfast.agent.queue.cpu_slots import count_cpu_slots
from holdfast.agent.queue.hours import read_closed_hours
from holdfast.agent.queue.watch import look_at_run
from holdfast.core.moments import format_moment
from holdfast.core.queue.choose import NEEDS_A_PERSON, ActiveJob, JobPhase, QueueState, WaitKind, explain_wait
from holdfast.model.queue import JobState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.core.queue.choose import WaitReason
    from holdfast.model.queue import JobGroup, QueuedJob
    from holdfast.store.queue.queue import Queue

MOST_LOOKED_AT = 200
OWN_WAY = frozenset({WaitKind.HELD, WaitKind.NEEDS_FAILED})
"""What one job waits for; a pause, or a box without slots, is said once, with its command, beside all jobs."""
MOST_BEHIND = 200
"""Blocked jobs whose own needs are looked at, for one job."""
MANY = 100_000
"""Jobs that may be counted in front of one."""


def read_situation(
    queue: Queue, active: Sequence[QueuedJob], *, groups: dict[str, JobGroup] | None = None, cards: bool = True
) -> QueueState:
    """What decides beside the waiting jobs, now; `cards`: whether the question is about jobs for cards."""
    return QueueState(
        active=tuple(ActiveJob(job, find_phase(job)) for job in active[:MOST_LOOKED_AT]),
        groups=queue.groups() if groups is None else groups,
        settings=queue.settings(),
        cpu_slots=find_slots(queue),
        now=time.time(),
        cards_closed=read_closed_hours() if cards else "",
    )


def find_slots(queue: Queue) -> int:
    """How many CPU slots there are: as said, else what the worker counts for itself."""
    stated = queue.settings().cpu_slots
    return count_cpu_slots() if stated is None else stated


def find_phase(job: QueuedJob) -> JobPhase:
    """Where a started job is; only one for cards can stand in a line."""
    if not job.cards or job.run_dir is None:
        return JobPhase.AT_WORK
    return look_at_run(job.run_dir, first_attempt=0).standing


def explain_job(
    queue: Queue, job: QueuedJob, situation: QueueState, *, behind: int = 0, deep: bool = False
) -> tuple[WaitReason, ...]:
    """Every reason why a job waits; with `deep` also what blocks what it needs, and does not pass by itself."""
    needs = queue.needs_of(job.id) if job.state is JobState.BLOCKED else ()
    now = situation.now
    return explain_wait(
        job,
        situation,
        needs=needs,
        behind_needs=_find_ended_behind(queue, needs) if deep else (),
        behind=behind,
        say_time=lambda moment: format_moment(moment, now, exact=True),
    )


def _find_ended_behind(queue: Queue, needs: Sequence[QueuedJob]) -> list[QueuedJob]:
    """What blocked jobs need in their turn that failed, was cancelled or is held."""
    seen, found, left = {need.id for need in needs}, [], [need for need in needs if need.state is JobState.BLOCKED]
    for _ in range(MOST_BEHIND):
        if not left:
            break
        for need in queue.needs_of(left.pop().id):
            if need.id in seen:
                continue
            seen.add(need.id)
            if need.state is JobState.BLOCKED:
                left.append(need)
            elif need.state in (JobState.FAILED, JobState.CANCELLED, JobState.HELD):
                found.append(need)
    return found


def explain_briefly(queue: Queue, job: QueuedJob) -> str:
    """The first reason in words, and the command that takes it away; for a job that is next, that it starts.

    Empty for one that waits no more, which the worker may have taken meanwhile.
    """
    situation = read_situation(queue, queue.active())
    behind = count_before(queue, job)
    reasons = () if behind is None else explain_job(queue, job, situation, behind=behind)
    return summarise_reasons(reasons) if reasons else ""


def summarise_reasons(reasons: Sequence[WaitReason]) -> str:
    """The first reason, short enough for a table; `queue show` has each one in full."""
    first = reasons[0]
    if first.why is WaitKind.GROUP_FULL:
        # Who they are stands right above, and would be said again on every line.
        return first.words.partition(" (")[0]
    alike = sum(reason.why is first.why for reason in reasons) - 1
    several = first.why in {WaitKind.NEEDS, WaitKind.NEEDS_FAILED} and alike
    way = first.way if first.why in OWN_WAY else ""
    return f"{first.words}{f'; and {alike} more' if several else ''}{f'; go on: {way}' if way else ''}"


def explain_each(queue: Queue, jobs: Sequence[QueuedJob]) -> dict[int, str]:
    """Why each of these jobs waits, by its id, as `explain_briefly` says it."""
    if not jobs:
        return {}
    situation, before = read_situation(queue, queue.active()), _count_before_each(queue)
    found = {job.id: explain_job(queue, job, situation, behind=before.get(job.id, 0)) for job in jobs}
    return {number: summarise_reasons(reasons) for number, reasons in found.items() if reasons}


def count_before(queue: Queue, job: QueuedJob) -> int | None:
    """How many jobs of its kind that may start come before a queued one; None where it is queued no more."""
    if job.state is not JobState.QUEUED:
        return 0
    before = _count_before_each(queue)
    return before.get(job.id, None if len(before) < MANY else MANY)


def _count_before_each(queue: Queue) -> dict[int, int]:
    """Of each queued job, by its id, how many of its kind that may start come before it."""
    now = time.time()
    closed = {name for name, group in queue.groups().items() if group.paused or group.held}
    found: dict[int, int] = {}
    due = {True: 0, False: 0}
    for job in queue.jobs(states=(JobState.QUEUED,), limit=MANY):
        found[job.id] = due[bool(job.cards)]
        due[bool(job.cards)] += job.group not in closed and (job.not_before is None or job.not_before <= now)
    return found


def needs_a_person(reasons: Sequence[WaitReason]) -> bool:
    """Whether one of the reasons does not pass by itself."""
    return any(reason.why in NEEDS_A_PERSON or reason.why is WaitKind.DRAINING for reason in reasons)
