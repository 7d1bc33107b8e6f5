"""Tells from files whether a failed attempt is followed by an automatic one.

Reads ``retry.json``; decides nothing (`agent.supervise.end.retry` does).
"""

from __future__ import annotations

import os
from typing import Any

from holdfast.host.files import files
from holdfast.model import wire
from holdfast.model.requeue import Requeue


def count_automatic(run_dir: str, attempt: int) -> int:
    """How many attempts directly before this one, this one included, were begun without a person."""
    used = 0
    for earlier in range(attempt - 1, 0, -1):
        if not read_retry(run_dir, earlier).get("retry"):
            break
        used += 1
    return used


def read_retry(run_dir: str, attempt: int) -> dict[str, Any]:
    """What was decided after an attempt; empty when nothing was, or when it cannot be read."""
    path = f"{wire.attempt_dir(run_dir, attempt)}/{wire.RETRY}"
    try:
        return wire.parse_object(files.read_bytes(path), path)
    except (OSError, wire.WireError):
        return {}


def is_followed(run_dir: str, attempt: int) -> bool:
    """Whether an attempt that nobody asked for has begun after this one.

    It begins before the exit record of this one is written, so that of an attempt that is over no other answer comes.
    """
    wanted = bool(read_retry(run_dir, attempt).get("retry"))
    return wanted and os.path.exists(f"{wire.attempt_dir(run_dir, attempt + 1)}/{wire.STATE}")


def read_wait_s(run_dir: str, attempt: int) -> float:
    """How long this attempt waits before its checks: what the attempt before it decided; 0 without that."""
    return wire.as_number(read_retry(run_dir, attempt - 1).get("wait_s")) or 0.0


def read_requeue(run_dir: str, attempt: int) -> Requeue | None:
    """What the queue decided after an attempt; None when it decided nothing, or it cannot be read."""
    path = f"{wire.attempt_dir(run_dir, attempt)}/{wire.REQUEUE}"
    try:
        return wire.decode(Requeue, wire.parse_object(files.read_bytes(path), path))
    except (OSError, wire.WireError):
        return None
