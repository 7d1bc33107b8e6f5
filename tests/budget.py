"""How much the tests try, and how long they wait, according to what was asked for.

`make test` tries a quarter of the examples of each property; `make test-rest` sets TEST_BUDGET=full and tries all.
A limit of time is there for what hangs. Where a machine that is busy with something else could meet it, in a guest or a
training, it is written for an idle one and stretched by one factor.
"""

from __future__ import annotations

import os

FULL = os.environ.get("TEST_BUDGET") == "full"
PATIENCE = 4
"""Times longer than on an idle machine that a kernel guest, ranks or a training may take."""
PATIENT_WITH = frozenset({"uml", "ranks", "examples"})
IDLE_LIMIT_S = 120.0
"""A test's limit where it states none: `timeout` in pyproject.toml."""


def examples(full: int) -> int:
    """How many examples a property is tried with, of the `full` number."""
    return full if FULL else max(1, full // 4)
