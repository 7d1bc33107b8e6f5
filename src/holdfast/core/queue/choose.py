"""Chooses the jobs that the queue starts next, and says why the others wait. Pure.

Theory
------
Jobs without cards share the account's CPU slots. Jobs for cards do not take a place of ours: the box's own line of
leases gives the cards out, first come, first served among all accounts. So the queue only keeps somebody standing in
that line: one job that waits for cards, with its checks done. While nobody is seen to be blocked there, a second one
may be on its way, so that an empty box fills up without a pause for each card.

Order is priority, then place. Only in a sweep, where the costs of jobs were stated, the expected longest goes first
among equals, because list scheduling by falling cost ends within 4/3 - 1/(3n) of the best makespan (Graham, "Bounds on
multiprocessing timing anomalies", SIAM J. Appl. Math. 17, 1969). A job that wants more CPU slots than are free is not
overtaken by smaller ones behind it, or it might never start; one that wants more than there are gets all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum

from holdfast.model.queue import GroupKind, JobGroup, JobState, QueuedJob, QueueSettings
from holdfast.model.record import record
from holdfast.model.units import format_count

from .words import find_way_on

RESUME = "holdfast queue resume"
AHEAD = 2
"""How many jobs for cards may be between their claim and their cards while none of them is blocked there."""
AHEAD_BLOCKED = 1
"""How many when one is blocked: it keeps our place in the line, and others of the box shall not stand behind ten."""


class JobPhase(Enum):
    """Where a started job is, as far as it matters for who may start next."""

    COMING = "coming"
    """Being made, at its checks, or looking at cards: nobody is known to be in its way."""
    IN_LINE = "in_line"
    """Blocked by somebody in the line for cards, or just being given them: making the next one can wait for that."""
    AT_WORK = "at_work"
    """Past that: it has what it takes, or has ended and is being judged."""


@record
class ActiveJob:
    """A job that was started and is not over."""

    job: QueuedJob
    standing: JobPhase = JobPhase.COMING


@record
class QueueState:
    """What decides beside the waiting jobs.

    `cpu_slots` is how many there are. `cards_closed` says why no job for cards may start now (quiet hours), empty when
    they may. `stopped` says why nothing at all can be started at the moment (a full disk), empty otherwise.
    """

    active: tuple[ActiveJob, ...]
    groups: Mapping[str, JobGroup]
    settings: QueueSettings
    cpu_slots: int
    now: float
    cards_closed: str = ""
    stopped: str = ""

    @property
    def used_slots(self) -> int:
        """CPU slots in use; a job that wants more than there are has all of them."""
        return sum(_slots_of(item.job, self.cpu_slots) for item in self.active if not item.job.cards)

    @property
    def free_slots(self) -> int:
        """CPU slots that are free; 0 when somebody lowered their number meanwhile."""
        return max(0, self.cpu_slots - self.used_slots)

    @property
    def closed_groups(self) -> tuple[str, ...]:
        """Groups of which nothing may start now."""
        return tuple(name for name, group in self.groups.items() if not self.is_open(group))

    def count_active(self, group: str) -> int:
        """How many jobs of a group are active."""
        return sum(item.job.group == group for item in self.active)

    def is_open(self, group: JobGroup) -> bool:
        """Whether a job of the group may start."""
        full = group.max_parallel is not None and self.count_active(group.name) >= group.max_parallel
        return not (group.paused or group.held or full)

    @property
    def card_room(self) -> int:
        """How many jobs for cards may be started now."""
        if self.cards_closed:
            return 0
        coming = sum(item.standing is JobPhase.COMING for item in self.active if item.job.cards)
        in_line = sum(item.standing is JobPhase.IN_LINE for item in self.active if item.job.cards)
        return max(0, (AHEAD_BLOCKED if in_line else AHEAD) - coming - in_line)

    @property
    def starts_nothing(self) -> bool:
        """Whether the whole queue is paused, drained or unable to start anything."""
        return self.settings.paused or self.settings.draining or bool(self.stopped)


def _slots_of(job: QueuedJob, cpu_slots: int) -> int:
    return max(1, min(job.slots, cpu_slots))


def choose_jobs(candidates: Sequence[QueuedJob], situation: QueueState) -> tuple[QueuedJob, ...]:
    """Which of `candidates` (QUEUED, in their order) are to be started now, in the order in which to start them."""
    if situation.starts_nothing:
        return ()
    room, slots, counts = situation.card_room, situation.free_slots, _count_groups(situation)
    slots_open = True
    chosen = []
    for job in order_by_cost(candidates, situation.groups):
        if not _may_start(job, situation, counts):
            continue
        if job.cards:
            if room <= 0:
                continue
            room -= 1
        else:
            wanted = _slots_of(job, situation.cpu_slots)
            # Whoever does not fit keeps its turn: nothing behind it takes the slots that it waits for.
            slots_open = slots_open and wanted <= slots
            if not slots_open:
                continue
            slots -= wanted
        counts[job.group] = counts.get(job.group, 0) + 1
        chosen.append(job)
    return tuple(chosen)


def _count_groups(situation: QueueState) -> dict[str, int]:
    counts: dict[str, int] = {}
    for item in situation.active:
        counts[item.job.group] = counts.get(item.job.group, 0) + 1
    return counts


def _may_start(job: QueuedJob, situation: QueueState, counts: Mapping[str, int]) -> bool:
    """Whether job and group stand in the way of nothing; room is another question."""
    if job.state is not JobState.QUEUED or job.open_needs:
        return False
    if job.not_before is not None and job.not_before > situation.now:
        return False
    group = situation.groups.get(job.group)
    if group is None:
        return True
    if group.paused or group.held:
        return False
    return group.max_parallel is None or counts.get(job.group, 0) < group.max_parallel


def order_by_cost(jobs: Iterable[QueuedJob], groups: Mapping[str, JobGroup]) -> list[QueuedJob]:
    """The jobs with those of one sweep, of equal priority and known cost, longest first in the places that they had.

    Everybody else, and every place that a sweep has among the others, stays.
    """
    ordered = list(jobs)
    places: dict[tuple[str, int], list[int]] = {}
    for position, job in enumerate(ordered):
        group = groups.get(job.group)
        if job.expected_s is not None and group is not None and group.kind is GroupKind.SWEEP:
            places.setdefault((job.group, job.priority), []).append(position)
    for positions in places.values():
        by_cost = sorted((ordered[position] for position in positions), key=lambda job: -(job.expected_s or 0.0))
        for position, job in zip(positions, by_cost, strict=True):
            ordered[position] = job
    return ordered


class WaitKind(Enum):
    """Why a job waits; the first ones need a person."""

    HELD = "held"
    NEEDS_FAILED = "needs_failed"
    QUEUE_PAUSED = "queue_paused"
    GROUP_PAUSED = "group_paused"
    GROUP_HELD = "group_held"
    DRAINING = "draining"
    NO_SLOTS = "no_slots"
    NEEDS = "needs"
    NOT_BEFORE = "not_before"
    STOPPED = "stopped"
    GROUP_FULL = "group_full"
    SLOTS = "slots"
    CARD_LINE = "card_line"
    HOURS = "hours"
    BEHIND = "behind"
    NEXT = "next"


NEEDS_A_PERSON = frozenset(
    {
        WaitKind.HELD,
        WaitKind.NEEDS_FAILED,
        WaitKind.QUEUE_PAUSED,
        WaitKind.GROUP_PAUSED,
        WaitKind.GROUP_HELD,
        WaitKind.NO_SLOTS,
    }
)
"""What does not pass by itself."""


@record
class WaitReason:
    """One reason: its kind, words for people, the labels of the jobs it is about, when it passes (epoch seconds).

    `way` is the command that takes it away; empty where it passes by itself, or where the words have the command.
    """

    why: WaitKind
    words: str
    jobs: tuple[str, ...] = ()
    until: float | None = None
    way: str = ""


def explain_wait(
    job: QueuedJob,
    situation: QueueState,
    *,
    needs: Sequence[QueuedJob] = (),
    behind_needs: Sequence[QueuedJob] = (),
    behind: int = 0,
    say_time: Callable[[float], str] = str,
) -> tuple[WaitReason, ...]:
    """Every reason why a waiting job has not started, those that need a person first; never empty for such a job.

    `needs` is what it needs that is not proven done, `behind_needs` what those need in their turn, `behind` how many
    startable jobs of its kind come before it.
    """
    if job.state not in (JobState.BLOCKED, JobState.QUEUED, JobState.HELD):
        return ()
    reasons = [*_explain_job(job, situation, needs, behind_needs, say_time), *_explain_group(job, situation)]
    if not job.open_needs and job.state is JobState.QUEUED:
        reasons += _explain_room(job, situation)
        if behind:
            reasons.append(WaitReason(WaitKind.BEHIND, f"stands behind {format_count(behind, 'job')}"))
    if not reasons:
        reasons.append(WaitReason(WaitKind.NEXT, "it is next; the worker starts it as soon as it looks"))
    order = list(WaitKind)
    return tuple(sorted(reasons, key=lambda reason: order.index(reason.why)))


def _explain_job(
    job: QueuedJob,
    situation: QueueState,
    needs: Sequence[QueuedJob],
    behind_needs: Sequence[QueuedJob],
    say_time: Callable[[float], str],
) -> list[WaitReason]:
    reasons = []
    if job.state is JobState.HELD:
        reasons.append(
            WaitReason(WaitKind.HELD, f"held: {job.note or 'by a person'}", (job.label,), way=find_way_on(job))
        )
    # What to do without a need is to be said to the job that has it.
    for need, waits in (*((need, job) for need in needs), *((need, None) for need in behind_needs)):
        ended = need.state in (JobState.FAILED, JobState.CANCELLED, JobState.HELD)
        words = f"needs {need.label}, which is {need.state.value}"
        if ended and need.note:
            words += f" ({need.note})"
        kind = WaitKind.NEEDS_FAILED if ended else WaitKind.NEEDS
        reasons.append(WaitReason(kind, words, (need.label,), way=find_way_on(need, waits)))
    if job.open_needs and not needs:
        reasons.append(WaitReason(WaitKind.NEEDS, f"needs {format_count(job.open_needs, 'job')} proven done first"))
    if job.not_before is not None and job.not_before > situation.now:
        reasons.append(WaitReason(WaitKind.NOT_BEFORE, f"not before {say_time(job.not_before)}", until=job.not_before))
    if situation.stopped:
        reasons.append(WaitReason(WaitKind.STOPPED, situation.stopped))
    return reasons


def _explain_group(job: QueuedJob, situation: QueueState) -> list[WaitReason]:
    reasons = []
    if situation.settings.paused:
        reasons.append(WaitReason(WaitKind.QUEUE_PAUSED, "the whole queue is paused", way=RESUME))
    if situation.settings.draining:
        words = "the queue is being drained: nothing new starts"
        reasons.append(WaitReason(WaitKind.DRAINING, words, way=RESUME))
    group = situation.groups.get(job.group)
    if group is None:
        return reasons
    if group.paused:
        reasons.append(WaitReason(WaitKind.GROUP_PAUSED, f"group {group.name} is paused", way=f"{RESUME} {group.name}"))
    if group.held:
        words = f"group {group.name} stopped by itself: {group.held}"
        reasons.append(WaitReason(WaitKind.GROUP_HELD, words, way=f"{RESUME} {group.name}"))
    active = [item.job.label for item in situation.active if item.job.group == group.name]
    if group.max_parallel is not None and len(active) >= group.max_parallel:
        words = f"group {group.name} is full: {len(active)} of {group.max_parallel} at work ({_names(active)})"
        reasons.append(WaitReason(WaitKind.GROUP_FULL, words, tuple(active)))
    return reasons


def _explain_room(job: QueuedJob, situation: QueueState) -> list[WaitReason]:
    if job.cards:
        if situation.cards_closed:
            return [WaitReason(WaitKind.HOURS, situation.cards_closed)]
        waiting = [
            item.job.label for item in situation.active if item.job.cards and item.standing is not JobPhase.AT_WORK
        ]
        if situation.card_room:
            return []
        words = f"{_names(waiting)} {'stands' if len(waiting) == 1 else 'stand'} in the box's line for cards first"
        return [WaitReason(WaitKind.CARD_LINE, words, tuple(waiting))]
    if not situation.cpu_slots:
        words = "there are no CPU slots for jobs without cards"
        return [WaitReason(WaitKind.NO_SLOTS, words, way="holdfast queue set --cpu-slots auto")]
    wanted = _slots_of(job, situation.cpu_slots)
    if wanted <= situation.free_slots:
        return []
    users = [item.job.label for item in situation.active if not item.job.cards]
    used, total = situation.used_slots, situation.cpu_slots
    by = f" by {_names(users)}" if users else ""
    words = f"wants {format_count(wanted, 'CPU slot')}; {used} of {total} in use{by}"
    return [WaitReason(WaitKind.SLOTS, words, tuple(users))]


def _names(labels: Sequence[str]) -> str:
    shown = ", ".join(labels[:3])
    return f"{shown} and {len(labels) - 3} more" if len(labels) > 3 else shown
