"""How much is tried, and what of it is drawn.

A property is tried with a quarter of its examples in `make test`, and with all in `make test-all` (TEST_BUDGET=full).
"""

from __future__ import annotations

import os
import random

FULL = os.environ.get("TEST_BUDGET") == "full"
SOAK_SEED = os.environ.get("HOLDFAST_SOAK_SEED")


def examples(full: int) -> int:
    """How many examples a property is tried with, of the `full` number."""
    return full if FULL else max(1, full // 4)


def draw_seed() -> int:
    """The seed of what a test draws: HOLDFAST_SOAK_SEED, or else the next number of `random`.

    Ask in the test, never where its file is read: pytest-randomly seeds `random` before each test, so that the same
    run of tests draws the same. A failure names the seed.
    """
    return int(SOAK_SEED or random.getrandbits(32))
