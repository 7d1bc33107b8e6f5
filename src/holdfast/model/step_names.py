"""How a checkpoint's directory is named after its step: pure, and all that a reader of names needs."""

from __future__ import annotations

import re
from typing import Any

MOST_STEPS = 10**18
_STEP = re.compile(r"step-(0|[1-9][0-9]{0,17})", re.ASCII)


def check_step(step: Any) -> int:  # noqa: ANN401 - whatever a script counts with
    """A number of complete steps, which a directory can be named after and found by.

    Raises:
        ValueError: it is none.
    """
    try:
        number = int(step)
    except (TypeError, ValueError, OverflowError):
        number = -1
    if not 0 <= number < MOST_STEPS:
        raise ValueError(f"beat({step!r:.60}): give the number of complete steps, from 0 to {MOST_STEPS - 1}")
    return number


def step_name(step: int) -> str:
    """The visible directory of the checkpoint after `step` complete steps."""
    return f"step-{step}"


def parse_step(name: str) -> int | None:
    """The step of a visible checkpoint's directory, None for any other name."""
    match = _STEP.fullmatch(name)
    return int(match[1]) if match else None
