"""Reading what a job or a supervisor appends: the last lines of a file, numbers of a sane kind."""

from __future__ import annotations

import os

from ...model import wire


def read_tail(path: str, most_bytes: int) -> list[bytes]:
    """The complete lines among the last `most_bytes` of a file; none when it does not exist.

    Raises:
        OSError: it cannot be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return []
    try:
        start = max(0, os.fstat(descriptor).st_size - most_bytes)
        lines = os.pread(descriptor, most_bytes, start).split(b"\n")
    finally:
        os.close(descriptor)
    return lines[1 if start else 0 : -1]


def number(value: object) -> float | None:
    """A number from 0 to what a float holds exactly enough; None for anything else."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    return float(value) if 0 <= value < wire.LARGEST_HEARTBEAT_NUMBER else None


def whole(value: object) -> int | None:
    """A whole number; None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None
