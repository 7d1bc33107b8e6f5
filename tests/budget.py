"""How many examples a property is tried with: a quarter in `make test`, all in `make test-all` (TEST_BUDGET=full)."""

from __future__ import annotations

import os

FULL = os.environ.get("TEST_BUDGET") == "full"


def examples(full: int) -> int:
    """How many examples a property is tried with, of the `full` number."""
    return full if FULL else max(1, full // 4)
