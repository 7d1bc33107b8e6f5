"""Whether a failed attempt is followed by another one without anybody asking: FAIL-02, -03, -07, -16. Pure.

Few classes may: those in which the same configuration can well succeed the next time. Bounded by the job's own number,
and only when the configuration is proven to be the same; anything else is proposed to a person, never done.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ..model.verdict import Confidence, FailureClass, Retry

AUTOMATIC = {
    FailureClass.TRANSIENT: Retry.SAME,
    FailureClass.DISK_FULL: Retry.AFTER_SCRATCH,
    FailureClass.HARDWARE: Retry.ELSEWHERE,
}
"""Classes after which holdfast begins the next attempt by itself, and what comes before it.

Not among them: what somebody did on purpose (a preemption, a kill: running it again would take back what they wanted)
and what nobody of us was there to see (a reboot).
"""
LONGEST_WAIT_S = 300.0
SPREAD = 0.5
"""A pause is longer by up to this part: runs that failed for one reason do not all come back in one moment."""
STOP_WANTED = "somebody wants it stopped"


class Step(str, Enum):
    """What to do after a failure."""

    NOTHING = "nothing"
    AGAIN = "again"
    PRUNE_FIRST = "prune_first"
    SET_ASIDE_FIRST = "set_aside_first"


@dataclass(frozen=True, slots=True)
class Facts:
    """What the decision rests on.

    `used` automatic attempts of this kind directly before; `allowed` by the job. `changed` says how the configuration
    differs from the recorded one, empty when it is proven equal. `names_cards`: the job asks for certain cards.
    `not_set_aside` says why a card at fault could not be set aside; empty when each was. `seed` (run and attempt)
    spreads the pauses of runs that failed together.
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


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do, why, and how long to wait before the attempt begins its checks (seconds)."""

    step: Step
    why: str
    wait_s: float = 0.0


def decide_retry(facts: Facts, first_wait_s: float) -> Decision:
    """What follows a failure of this class."""
    retry = AUTOMATIC.get(facts.kind)
    if retry is None:
        return Decision(Step.NOTHING, f"{facts.kind.value} is not repeated without a person")
    if facts.stop_wanted:
        return Decision(Step.NOTHING, STOP_WANTED)
    if not facts.allowed:
        return Decision(Step.NOTHING, "the job allows no automatic attempt (retries: {max: 0})")
    if facts.used >= facts.allowed:
        return Decision(Step.NOTHING, f"{facts.used} of {facts.allowed} automatic attempts are used up")
    if facts.confidence is Confidence.POSSIBLE:
        return Decision(Step.NOTHING, f"{facts.kind.value} is only possible, not proven")
    if facts.changed:
        return Decision(Step.NOTHING, f"the configuration is not the recorded one: {facts.changed}")
    if retry is Retry.ELSEWHERE and facts.names_cards:
        return Decision(Step.NOTHING, "the job names its cards, so there is no elsewhere")
    if retry is Retry.ELSEWHERE and facts.not_set_aside:
        return Decision(Step.NOTHING, f"it could get the same card again: {facts.not_set_aside}")
    wait_s = round(min(first_wait_s * 3**facts.used, LONGEST_WAIT_S) * spread(facts.seed), 3)
    number = f"automatic attempt {facts.used + 1} of {facts.allowed}"
    if retry is Retry.AFTER_SCRATCH:
        return Decision(Step.PRUNE_FIRST, f"{number}, once declared scratch has made room", wait_s)
    if retry is Retry.ELSEWHERE:
        return Decision(Step.SET_ASIDE_FIRST, f"{number}, on other cards", wait_s)
    return Decision(Step.AGAIN, f"{number}: {facts.kind.value}", wait_s)


def spread(seed: str) -> float:
    """By what a pause is multiplied, from 1 to 1 + `SPREAD`: the same for one seed always; 1 without a seed."""
    if not seed:
        return 1.0
    from zlib import crc32

    return 1.0 + SPREAD * crc32(seed.encode("utf-8", "surrogateescape")) / 2**32
