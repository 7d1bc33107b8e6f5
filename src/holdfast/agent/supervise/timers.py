"""Deadlines on the monotonic clock by name; arming one again replaces it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.host.clock import monotonic_s

if TYPE_CHECKING:
    from collections.abc import Callable

LONGEST_DELAY_MS = 3_600_000


class Timers:
    """What is to happen when. Keys are any hashable name; one deadline for each."""

    def __init__(self) -> None:
        """No deadlines."""
        self._armed: dict[object, tuple[float, Callable[[], None]]] = {}

    def arm(self, key: object, delay_s: float, call: Callable[[], None]) -> None:
        """Call `call` once, `delay_s` from now, instead of what was armed under the same key."""
        self._armed[key] = (monotonic_s() + max(0.0, delay_s), call)

    def disarm(self, key: object) -> None:
        """Forget a deadline; one that was never armed is fine."""
        self._armed.pop(key, None)

    def is_armed(self, key: object) -> bool:
        """Whether a deadline is pending under that name."""
        return key in self._armed

    def left_s(self, key: object) -> float | None:
        """Seconds until that deadline; None when none is pending."""
        return max(0.0, self._armed[key][0] - monotonic_s()) if key in self._armed else None

    def next_delay_ms(self) -> int | None:
        """Milliseconds until the next deadline, rounded up; None when there is none.

        At most an hour: poll(2) takes no more than some 24 days, and to wake up once in an hour costs nothing.
        """
        if not self._armed:
            return None
        first = min(at for at, _ in self._armed.values())
        return min(LONGEST_DELAY_MS, max(0, int((first - monotonic_s()) * 1000) + 1))

    def run_due(self) -> None:
        """Call everything whose time has come, oldest deadline first; each is forgotten before its call."""
        now = monotonic_s()
        due = sorted(((at, key) for key, (at, _) in self._armed.items() if at <= now), key=lambda item: item[0])
        for _, key in due:
            entry = self._armed.pop(key, None)
            if entry is not None:
                entry[1]()
