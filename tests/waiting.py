"""Waiting in tests: the one place that polls.

A test never sleeps for a time that somebody guessed. It states what must become true and how long it may take at
most; a condition that comes true at once costs nothing, and one that never does fails with what was last seen.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

PATIENCE = float(os.environ.get("HOLDFAST_TEST_PATIENCE", "1"))
"""Every limit of time is multiplied by this: 4 where a failed test is run once more (scripts/run_tests.py)."""

LIMIT_S = 60.0 * PATIENCE
"""How long a test waits at most for anything. It ends a hang and judges no speed: the machine may be busy."""

LONG_S = 2 * LIMIT_S
"""The same for what has many steps: the first command to a place, a scheduler's turn, ranks that import torch."""

FIRST_PAUSE_S = 0.001
LONGEST_PAUSE_S = 0.05


def wait_until(condition: Callable[[], T], timeout_s: float = LIMIT_S, *, what: str = "") -> T:
    """Call `condition` until it answers something true, and return that answer.

    It is asked at least once, and once more after the time is up, so that a machine that stood still for a while does
    not fail a test whose condition holds.

    Args:
        condition: Asked again and again; must not block. What it raises is not caught.
        timeout_s: The most seconds to wait.
        what: What is waited for, in words, for the message.

    Raises:
        AssertionError: It was not true in time; names `what` and the last answer.
    """
    end = time.monotonic() + timeout_s
    pause_s = FIRST_PAUSE_S
    while True:
        late = time.monotonic() >= end
        answer = condition()
        if answer:
            return answer
        if late:
            name = what or getattr(condition, "__qualname__", repr(condition))
            message = f"waited {timeout_s:g} s in vain for: {name} (last answer: {answer!r})"
            raise AssertionError(message)
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, LONGEST_PAUSE_S)
