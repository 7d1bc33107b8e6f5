"""Polls for what the kernel tells by no event: further and further apart, within a limit."""

from __future__ import annotations

import time
from collections.abc import Callable

from holdfast.host.clock import monotonic_s


def wait_briefly(condition: Callable[[], bool], limit_s: float) -> bool:
    """Whether `condition` came true within a limit; for moments where the kernel offers no event."""
    deadline, pause_s = monotonic_s() + limit_s, 0.0005
    while not condition():
        if monotonic_s() >= deadline:
            return False
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, 0.05)
    return True
