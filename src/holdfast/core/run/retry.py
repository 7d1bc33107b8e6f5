"""Decides whether a failed attempt is followed by an automatic one (FAIL-02, -03, -07, -16). Pure.

Few classes may: those in which the same configuration can well succeed the next time. Bounded by the job's own number,
and only when the configuration is proven to be the same; anything else is proposed to a person, never done.
"""

from __future__ import annotations

from enum import Enum
from zlib import crc32

from holdfast.model.record import record
from holdfast.model.units import format_duration
from holdfast.model.verdict import NOT_REPEATED, Confidence, FailureClass, RetryPolicy

AUTOMATIC = {
    FailureClass.TRANSIENT: RetryPolicy.SAME,
    FailureClass.DISK_FULL: RetryPolicy.AFTER_SCRATCH,
    FailureClass.HARDWARE: RetryPolicy.ELSEWHERE,
}
"""Classes after which holdfast begins the next attempt by itself, and what comes before it.

Not among them: what somebody did on purpose (a preemption, a kill: running it again would take back what they wanted)
and what nobody of us was there to see (a reboot).
"""
LONGEST_WAIT_S = 300.0
LONGEST_ASKED_S = 3600.0
"""A server that asks for a longer pause is left to a person: cards would be held, or a place in line, for nothing."""
MUCH_S = 3600.0
"""Work of so long is not begun anew without a person where it could not go on from anything."""
SPREAD = 0.5
"""A pause is longer by up to this part: runs that failed for one reason do not all come back in one moment."""
STOP_WANTED = "somebody wants it stopped"
NOT_MEASURED = "its output speaks of a full disk, and no disk of the run was measured full: nothing is removed for that"


class RetryStep(str, Enum):
    """What to do after a failure."""

    NOTHING = "nothing"
    AGAIN = "again"
    PRUNE_FIRST = "prune_first"
    SET_ASIDE_FIRST = "set_aside_first"


@record
class RetryFacts:
    """What the decision rests on.

    `used` automatic attempts of this kind directly before; `allowed` by the job. `changed` says how the configuration
    differs from the recorded one, empty when it is proven equal. `names_cards`: the job asks for certain cards.
    `not_set_aside` says why a card at fault could not be set aside; empty when each was. `seed` (run and attempt)
    spreads the pauses of runs that failed together. `lost_s`: so much work would be done again, because there is no
    checkpoint to go on from. `asked_wait_s`: the pause that what failed asks for. `total_s`: the limit of an attempt,
    which counts from before its pause. `measured`: a disk of the run was measured full, or with less room than the job
    needs.
    """

    kind: FailureClass
    confidence: Confidence
    used: int
    allowed: int
    changed: str = ""
    stop_wanted: bool = False
    names_cards: bool = False
    not_set_aside: str = ""
    seed: str = ""
    lost_s: float = 0.0
    asked_wait_s: float = 0.0
    total_s: float | None = None
    measured: bool = False


@record
class RetryDecision:
    """What to do, why, and how long to wait before the attempt begins its checks (seconds)."""

    step: RetryStep
    why: str
    wait_s: float = 0.0


def decide_retry(facts: RetryFacts, first_wait_s: float) -> RetryDecision:
    """What follows a failure of this class."""
    refused = _find_objection(facts)
    if refused:
        return RetryDecision(RetryStep.NOTHING, refused)
    first = max(min(first_wait_s * 3**facts.used, LONGEST_WAIT_S), facts.asked_wait_s)
    wait_s = round(first * spread_pause(facts.seed), 3)
    if facts.total_s is not None and wait_s > facts.total_s / 2:
        words = f"its pause of {format_duration(wait_s)} would leave under half of the attempt's time limit (timeout)"
        return RetryDecision(RetryStep.NOTHING, words)
    number = f"automatic attempt {facts.used + 1} of {facts.allowed}"
    retry = AUTOMATIC[facts.kind]
    if retry is RetryPolicy.AFTER_SCRATCH:
        return RetryDecision(RetryStep.PRUNE_FIRST, f"{number}, once declared scratch has made room", wait_s)
    if retry is RetryPolicy.ELSEWHERE:
        return RetryDecision(RetryStep.SET_ASIDE_FIRST, f"{number}, on other cards", wait_s)
    return RetryDecision(RetryStep.AGAIN, f"{number}: {facts.kind.value}", wait_s)


def _find_objection(facts: RetryFacts) -> str:
    """Why no attempt follows without a person; empty when one may."""
    retry = AUTOMATIC.get(facts.kind)
    elsewhere, scratch = retry is RetryPolicy.ELSEWHERE, retry is RetryPolicy.AFTER_SCRATCH
    reasons = (
        (retry is None, f"{facts.kind.value} {NOT_REPEATED}"),
        (facts.stop_wanted, STOP_WANTED),
        (not facts.allowed, "the job allows no automatic attempt (retries: {max: 0})"),
        (facts.used >= facts.allowed, f"{facts.used} of {facts.allowed} automatic attempts are used up"),
        (facts.confidence is Confidence.POSSIBLE, f"{facts.kind.value} is only possible, not proven"),
        (scratch and not facts.measured, NOT_MEASURED),
        (bool(facts.changed), f"the configuration is not the recorded one: {facts.changed}"),
        (elsewhere and facts.names_cards, "the job names its cards, so there is no elsewhere"),
        (elsewhere and bool(facts.not_set_aside), f"it could get the same card again: {facts.not_set_aside}"),
        (
            facts.lost_s >= MUCH_S,
            f"{format_duration(facts.lost_s)} of work would be done again: no checkpoint is known",
        ),
        (
            facts.asked_wait_s > LONGEST_ASKED_S,
            f"what failed asks for a pause of {format_duration(facts.asked_wait_s)}",
        ),
    )
    return next((why for applies, why in reasons if applies), "")


def spread_pause(seed: str) -> float:
    """By what a pause is multiplied, from 1 to 1 + `SPREAD`: the same for one seed always; 1 without a seed."""
    if not seed:
        return 1.0

    return 1.0 + SPREAD * crc32(seed.encode("utf-8", "surrogateescape")) / 2**32
