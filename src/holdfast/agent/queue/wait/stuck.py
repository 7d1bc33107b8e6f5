"""Why nothing of what is waited for goes on without a person: a pause, a held job, a failed predecessor, no slots."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.core.queue.words import find_way_on
from holdfast.model.queue import CLOSED_STATES, JobState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.model.queue import QueuedJob
    from holdfast.store.queue.queue import Queue

    from .roster import AwaitedJobs


def find_stuck(queue: Queue, roster: AwaitedJobs, counts: Mapping[str, Mapping[JobState, int]]) -> str:
    """Why no open job of the roster goes on by itself; empty when one does, or may. `counts` is by group."""
    active = queue.active()
    if any(roster.holds(job) for job in active):
        return ""
    settings, groups = queue.settings(), queue.groups()
    stopped = "the queue is being drained" if settings.draining else "the queue is paused" if settings.paused else ""
    closed = {name: why for name, group in groups.items() if (why := _describe_group(group.paused, group.held))}
    whole = [name for name in counts if (roster.everything or name in roster.groups) and name not in closed]
    slots = settings.cpu_slots != 0
    if not stopped and slots and any(counts[name].get(JobState.QUEUED) for name in whole):
        return ""
    waiting = queue.jobs(states=(JobState.QUEUED, JobState.ELSEWHERE))
    free = [
        job
        for job in waiting
        if job.state is JobState.ELSEWHERE or not (stopped or job.group in closed or not (slots or job.cards))
    ]
    if any(roster.holds(job) for job in free):
        return ""
    blocked = [job for job in queue.jobs(states=(JobState.BLOCKED,)) if roster.holds(job)]
    if (active or free) and any(map(_Prospects(queue, {job.id for job in (*active, *free)}).may_go_on, blocked)):
        return ""
    reasons = [f"{stopped} (holdfast queue resume)"] if stopped else []
    if not slots and any(roster.holds(job) and not job.cards for job in waiting):
        reasons.append("there are no CPU slots (holdfast queue set --cpu-slots auto)")
    return "; ".join([*reasons, *_list_reasons(queue, roster, closed)]) or "nothing can start"


class _Prospects:
    """Whether blocked jobs may become free by themselves: all that each needs, on whichever level, goes on or may."""

    def __init__(self, queue: Queue, going: set[int]) -> None:
        """`going` are the ids of the jobs that are at work, or start by themselves."""
        self._queue, self._going = queue, going
        self._known: dict[int, bool] = {}

    def may_go_on(self, job: QueuedJob) -> bool:
        """Whether nothing that has ended or waits for a person stands before it."""
        pending = [job]
        while pending:
            last = pending[-1]
            needs = [need for need in self._queue.needs_of(last.id) if need.id not in self._going]
            open_needs = [need for need in needs if need.state is JobState.BLOCKED and need.id not in self._known]
            if open_needs and last.id not in self._known:
                pending.append(open_needs[0])
                continue
            self._known[last.id] = all(self._known.get(need.id, False) for need in needs)
            pending.pop()
        return self._known[job.id]


def _describe_group(paused: bool, held: str) -> str:  # noqa: FBT001 - the two fields of a group
    return f"stopped by itself: {held}" if held else "is paused" if paused else ""


def _list_reasons(queue: Queue, roster: AwaitedJobs, closed: dict[str, str]) -> list[str]:
    reasons = [
        f"group {name} {why} (holdfast queue resume {name})"
        for name, why in closed.items()
        if roster.everything or name in roster.groups or any(label.startswith(f"{name}/") for label in roster.labels)
    ]
    held = [job for job in queue.jobs(states=(JobState.HELD,)) if roster.holds(job)]
    if held:
        first = held[0]
        why = f": {first.note}" if first.note else ""
        way = "" if "holdfast queue" in why else f" (holdfast queue resume {first.label})"
        reasons.append(f"{_count(held)} held, {first.label}{why}{way}")
    blocked = [job for job in queue.jobs(states=(JobState.BLOCKED,)) if roster.holds(job)]
    if blocked:
        roots = _find_roots(queue, blocked[0])[:3]
        needs = ", ".join(f"{need.label} ({need.state.value})" for need in roots) or "what is not done"
        own = {need.id for need in queue.needs_of(blocked[0].id)}
        found = (find_way_on(root, blocked[0] if root.id in own else None) for root in roots)
        ways = "; ".join(filter(None, found))
        reasons.append(f"{_count(blocked)} blocked, {blocked[0].label} needs {needs}{ways and f': {ways}'}")
    return reasons


def _find_roots(queue: Queue, job: QueuedJob) -> list[QueuedJob]:
    """What stands before a blocked job in the end, what has ended or is held first; blocked jobs are no reason."""
    found: dict[int, QueuedJob] = {}
    pending, seen = [job], {job.id}
    while pending:
        for need in queue.needs_of(pending.pop().id):
            if need.state is not JobState.BLOCKED:
                found[need.id] = need
            elif need.id not in seen:
                seen.add(need.id)
                pending.append(need)
    final = (*CLOSED_STATES, JobState.HELD)
    return sorted(found.values(), key=lambda need: need.state not in final)


def _count(jobs: Sequence[QueuedJob]) -> str:
    return f"{len(jobs)} job{' is' if len(jobs) == 1 else 's are'}"
