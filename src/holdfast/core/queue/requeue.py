"""Whether the queue begins another attempt of a job whose run has ended without success (QUEUE-07, FAIL-02). Pure.

A run's own supervisor repeats what may pass by itself (`core.run.retry`); this is asked only once it has left. What
remains is what no supervisor can do for itself: a run that was lost with it (a reboot, everything killed), one that
was preempted, one that could not begin, and one that ran out of a card's memory where the job says what then.
Everything is bounded, and only with the recorded configuration.
"""

from __future__ import annotations

from holdfast.core.run.retry import LONGEST_WAIT_S, spread_pause
from holdfast.model.job import OutOfMemory
from holdfast.model.record import record
from holdfast.model.requeue import AttemptPlacement, Requeue, RequeueAction
from holdfast.model.run import TAKEN_FOR_GONE, Outcome
from holdfast.model.units import format_bytes, format_count
from holdfast.model.verdict import Confidence, FailureClass

MOST_IN_A_ROW, MOST_ATTEMPTS_READ = 3, 20
"""Attempts in a row that are begun although none got further than the one before; how many are looked at for that."""


@record
class MemoryFailure:
    """What is known after an attempt that ran out of a card's memory.

    `placed`: the run has had an attempt with a placement already. `failed_bytes` is the least total memory of the
    cards that it had, `largest_bytes` the `wanted`-th largest total of the cards here: so many cards have as much.
    None is "not known". `fixed` says why it cannot go to other cards; empty when it can.
    """

    policy: OutOfMemory = OutOfMemory.NEVER
    shared: bool = False
    placed: bool = False
    failed_bytes: int | None = None
    largest_bytes: int | None = None
    fixed: str = ""


@record
class RequeueFacts:
    """What the decision rests on: the last attempt, as its files tell.

    `outcome` None: it has not ended. `kind` is the failure's class. `started`: the job was executed. `stopped_by` says
    who had it ended, empty when nobody; `wanted` that a person's wish to stop it stands. `busy`: it was refused because
    its cards are held. `in_row` counts the queue's own attempts directly before that got no further. `changed` says how
    the configuration differs, empty when it is proven equal. `alive` names living processes of the run. `undecided`:
    its supervisor went before it said whether it repeats the failure, `unbegun`: before it did so. `allowed` by the
    job: none at all is obeyed here too, but it is no bound, which is `MOST_IN_A_ROW`. `seed` spreads the pauses.
    """

    outcome: Outcome | None
    kind: FailureClass | None = None
    confidence: Confidence = Confidence.POSSIBLE
    started: bool = True
    stopped_by: str = ""
    wanted: bool = False
    busy: bool = False
    in_row: int = 0
    changed: str = ""
    alive: str = ""
    undecided: bool = False
    unbegun: bool = False
    allowed: int = 1
    first_wait_s: float = 5.0
    seed: str = ""
    memory: MemoryFailure = MemoryFailure()


def decide_requeue(facts: RequeueFacts) -> Requeue:
    """What the queue does now. Total: whatever is not named here is left to a person."""
    found = _propose(facts)
    if not found.again:
        return found
    refused = _find_objection(facts)
    return Requeue(RequeueAction.NOTHING, f"{found.why}, but {refused}") if refused else found


def _propose(facts: RequeueFacts) -> Requeue:
    """What would follow if nothing spoke against it."""
    if facts.outcome is Outcome.LOST:
        return _again(facts, "it was lost with its supervisor" if facts.started else "it was lost before it began")
    if facts.outcome is Outcome.PREEMPTED:
        if facts.stopped_by.startswith(CLAIM):
            return Requeue(RequeueAction.NOTHING, "its job was claimed by another box")
        if facts.stopped_by.startswith(TAKEN_FOR_GONE):
            return Requeue(RequeueAction.NOTHING, TAKEN_FOR_GONE)
        return _again(facts, "it was preempted")
    if facts.outcome is Outcome.STOPPED and not facts.started and facts.stopped_by == "holdfast":
        return _again(facts, "it was called off before it began")
    if facts.outcome is Outcome.FAILED:
        return _propose_after_failure(facts)
    word = "not ended" if facts.outcome is None else facts.outcome.value.replace("_", " ")
    by = f" by {facts.stopped_by}" if facts.stopped_by else ""
    return Requeue(
        RequeueAction.NOTHING, f"it has {word}" if facts.outcome is None else f"{word}{by}: left to a person"
    )


CLAIM = "the claim of its job"
"""Who ends a run whose job another box has taken over."""


def _propose_after_failure(facts: RequeueFacts) -> Requeue:
    if facts.busy and not facts.started:
        return _again(facts, "its cards are held by others")
    if facts.kind is FailureClass.GPU_OUT_OF_MEMORY:
        return _place(facts)
    if facts.unbegun:
        return _again(facts, "its supervisor went before it began the attempt that it had decided on")
    if facts.kind is FailureClass.TRANSIENT and facts.undecided and facts.confidence is not Confidence.POSSIBLE:
        return _again(facts, "its supervisor went before it could repeat a transient failure")
    kind = "unknown" if facts.kind is None else facts.kind.value
    return Requeue(RequeueAction.NOTHING, f"not repeated without a person (class {kind})")


def _again(facts: RequeueFacts, why: str) -> Requeue:
    wait_s = min(facts.first_wait_s * 3 ** min(facts.in_row, 10), LONGEST_WAIT_S) * spread_pause(facts.seed)
    return Requeue(RequeueAction.SAME, why, round(wait_s, 3))


def _place(facts: RequeueFacts) -> Requeue:
    """After a card was full: what the job's own policy says, once, and only where it changes something."""
    memory, kind = facts.memory, FailureClass.GPU_OUT_OF_MEMORY.value
    if memory.policy is OutOfMemory.NEVER:
        return _leave(f"{kind} is not repeated (retries.out_of_memory: never)")
    asked = f"{kind} with retries.out_of_memory: {memory.policy.value}"
    if memory.placed:
        return _leave(f"{asked}: that has been tried once")
    if facts.confidence is Confidence.POSSIBLE:
        return _leave(f"{kind} is only possible, not proven")
    if memory.policy is OutOfMemory.ALONE:
        if not memory.shared:
            return _leave(f"{asked}: it had its cards for itself")
        why = f"{kind} on a shared card: again on a card of its own"
        return Requeue(RequeueAction.ALONE, why, _again(facts, why).wait_s, AttemptPlacement(alone=True, why=why))
    if memory.fixed:
        return _leave(f"{asked}: {memory.fixed}")
    if memory.failed_bytes is None:
        return _leave(f"{asked}: how much memory its cards had is not known")
    if memory.largest_bytes is None:
        return _leave(f"{asked}: the cards of this box could not be read")
    if memory.largest_bytes <= memory.failed_bytes:
        return _leave(f"{asked}: no card here has more than {format_bytes(memory.failed_bytes)}")
    why = f"{kind} on a card of {format_bytes(memory.failed_bytes)}: again on a larger one"
    placement = AttemptPlacement(min_total_bytes=memory.failed_bytes, why=why)
    return Requeue(RequeueAction.LARGER, why, _again(facts, why).wait_s, placement)


def _leave(why: str) -> Requeue:
    return Requeue(RequeueAction.NOTHING, why)


def _find_objection(facts: RequeueFacts) -> str:
    """What speaks against beginning it again; empty when nothing does."""
    if facts.wanted:
        return "somebody wants it stopped"
    if facts.alive:
        return f"processes of it live: {facts.alive}"
    if facts.changed:
        return f"the configuration is not the recorded one: {facts.changed}"
    if facts.started and not facts.allowed:
        return "the job allows no automatic attempt (retries: {max: 0})"
    if not facts.busy and facts.in_row >= MOST_IN_A_ROW:
        return f"{format_count(facts.in_row, 'attempt')} in a row got no further than the one before"
    return ""


def count_in_row(steps: tuple[int | None, ...], requeued: tuple[bool, ...]) -> int:
    """How many of the newest attempts the queue began without that they got further than all before them.

    Args:
        steps: The furthest step of each attempt, oldest first; None where none was told.
        requeued: For each, whether the queue began it.
    """
    count = 0
    for index in range(len(steps) - 1, 0, -1):
        if not requeued[index]:
            break
        best = max((step for step in steps[:index] if step is not None), default=0)
        step = steps[index]
        if step is not None and step > best:
            break
        count += 1
    return count
