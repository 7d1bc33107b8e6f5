"""When a message that nobody has taken is tried again: after a pause that grows, and not for ever."""

from __future__ import annotations

from holdfast.model.record import record
from holdfast.model.units import format_duration

BACK_OFF_S = 600.0
LONGEST_BACK_OFF_S = 6 * 3600.0
MOST_TRIES = 8
"""The same is tried so often, over 17 hours or so."""


@record
class Undelivered:
    """A message that nobody has taken: how often it was tried and when last (epoch seconds), and what went wrong then.

    `key` tells it from others; `runs` are the directories of the runs that it is about, the first hundred.
    """

    key: str = ""
    tries: int = 0
    tried_at: float = 0.0
    problem: str = ""
    runs: tuple[str, ...] = ()


def find_pause_s(tries: int) -> float:
    """Seconds between a try in vain and the next."""
    return min(LONGEST_BACK_OFF_S, BACK_OFF_S * float(1 << min(max(tries - 1, 0), 10)))


def is_due(untold: Undelivered | None, key: str, now: float) -> bool:
    """Whether the message of this `key` is to be tried now. A clock that was set back does not hold it up."""
    if untold is None or untold.key != key:
        return True
    return untold.tries < MOST_TRIES and not 0 <= now - untold.tried_at < find_pause_s(untold.tries)


def describe_untold(untold: Undelivered, now: float) -> str:
    """What a person is to know of news that nobody has taken."""
    times = "once" if untold.tries == 1 else f"{untold.tries} times"
    left_s = untold.tried_at + find_pause_s(untold.tries) - now
    then = f"again in {format_duration(left_s)} at the earliest" if left_s > 0 else "again with the next patrol"
    if untold.tries >= MOST_TRIES:
        then = "not again before there is other news"
    return f"NOBODY WAS TOLD (tried {times}, {then}): {untold.problem}; to try the way: holdfast notify test"
