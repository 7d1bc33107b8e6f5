"""A supervisor's loop for tests of one part of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.agent.supervise.loop import Loop
from holdfast.agent.supervise.timers import Timers

if TYPE_CHECKING:
    from collections.abc import Callable


class Turned(Loop):
    """A loop that the test turns by hand; it listens to no signals."""

    def __init__(self) -> None:
        self.timers, self.helpers = Timers(), set()
        self.ready: dict[int, Callable[[], None]] = {}

    def add(self, descriptor: int, call: Callable[[], None]) -> None:
        self.ready[descriptor] = call

    def remove(self, descriptor: int) -> None:
        self.ready.pop(descriptor, None)
