"""When one job starts and ends: a schedule of all that runs and waits before it, in the order of the queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.core.queue.forecast import Capacity, JobLoad, JobSpan, forecast_jobs
from holdfast.model.queue import ACTIVE_STATES, WAITING_STATES, JobState
from holdfast.model.record import record

from .estimate import JobCost, find_cost

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.agent.cards.box import BoxCards
    from holdfast.core.queue.choose import QueueState
    from holdfast.model.queue import QueuedJob
    from holdfast.store.queue.queue import Queue

MOST_PLANNED = 2000
"""Waiting jobs that a schedule is made of; for a job behind those there is no estimate."""


@record
class JobEstimate:
    """Seconds from now at which a job starts and ends (None: not known), and what that rests on, or why it is not."""

    start_s: float | None
    end_s: float | None
    basis: str


def estimate_job(
    queue: Queue, job: QueuedJob, active: Sequence[QueuedJob], situation: QueueState, box: BoxCards | None
) -> JobEstimate:
    """When the job starts and ends; `box` are the cards, for a job that needs some."""
    if job.state is JobState.HELD:
        return JobEstimate(None, None, "it starts when somebody lets it go on")
    if job.state not in {*WAITING_STATES, *ACTIVE_STATES}:
        return JobEstimate(None, None, "it is over")
    costs: dict[tuple[str, float | None], JobCost] = {}

    def cost_of(other: QueuedJob) -> JobCost:
        key = (other.group, other.expected_s)
        if key not in costs:
            costs[key] = find_cost(queue, other)
        return costs[key]

    now = situation.now
    chain = _read_chain(queue, job)
    if any(_is_stuck(need, situation) for needs in chain.values() for need in needs):
        return JobEstimate(None, None, "what it needs does not go on by itself now")
    running = [JobLoad(str(one.id), one.group, one.cards, one.slots, cost_of(one).left(one, now)) for one in active]
    # Blocked jobs that it does not need start any time or never: they are left out.
    waiting = [
        other
        for other in queue.jobs(states=(JobState.QUEUED, JobState.BLOCKED), limit=MOST_PLANNED)
        if other.state is JobState.QUEUED or other.id in chain
    ]
    loads = [_load(other, cost_of(other), now, chain.get(other.id, ())) for other in waiting]
    room = Capacity(_count_cards(box, active), situation.cpu_slots, _limits(situation))
    span = forecast_jobs(running, loads, room).get(str(job.id), JobSpan(None, None))
    return JobEstimate(span.start_s, span.end_s, _describe_basis(cost_of(job)))


def _read_chain(queue: Queue, job: QueuedJob) -> dict[int, tuple[QueuedJob, ...]]:
    """What a blocked job needs, and what each blocked one of these needs, by its id."""
    chain: dict[int, tuple[QueuedJob, ...]] = {}
    left = [job]
    while left and len(chain) < MOST_PLANNED:
        one = left.pop()
        if one.state is JobState.BLOCKED and one.id not in chain:
            chain[one.id] = queue.needs_of(one.id)
            left += chain[one.id]
    return chain


def _is_stuck(need: QueuedJob, situation: QueueState) -> bool:
    """Whether only a person lets a job that is needed go on."""
    if need.state in ACTIVE_STATES:
        return False
    group = situation.groups.get(need.group)
    stopped = group is not None and (group.paused or bool(group.held))
    return stopped or need.state not in {JobState.QUEUED, JobState.BLOCKED}


def _describe_basis(cost: JobCost) -> str:
    if cost.seconds is None:
        return "no job like it is done yet, and no expected time was stated (--expected)"
    samples = f"from {cost.samples} done job{'s' if cost.samples != 1 else ''}"
    return samples if cost.samples else "from the expected time that was stated"


def _load(job: QueuedJob, cost: JobCost, now: float, needs: Sequence[QueuedJob]) -> JobLoad:
    ready_s = 0.0 if job.not_before is None else max(0.0, job.not_before - now)
    ids = tuple(str(need.id) for need in needs)
    return JobLoad(str(job.id), job.group, job.cards, job.slots, cost.seconds, ids, ready_s)


def _limits(situation: QueueState) -> dict[str, int]:
    """How many jobs each group may run; none while it is stopped."""
    limits = {}
    for name, group in situation.groups.items():
        if group.paused or group.held or situation.starts_nothing:
            limits[name] = 0
        elif group.max_parallel is not None:
            limits[name] = group.max_parallel
    return limits


def _count_cards(box: BoxCards | None, active: Sequence[QueuedJob]) -> int | None:
    """Cards that our jobs have or could have now: when others give theirs back nobody can tell."""
    if box is None or not box.inventory.complete:
        return None
    runs = {job.run_id for job in active if job.run_id is not None}
    return sum(
        not place.unavailable or (place.lease is not None and place.lease.run_id in runs)
        for place in box.places
        if place.part is None
    )
