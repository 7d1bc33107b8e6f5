"""Copying many pieces of memory in the shortest pause: a few threads that never wait for each other.

A library that copies each array with all its threads meets them again after each array. On a machine whose cores are
busy (loader workers, other people) every such meeting waits for a turn of the scheduler, some milliseconds: 260 arrays
of 500 MB took 0.3 to 3 s that way with both cores taken, and 0.05 s with the same copies shared out here.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections import deque

Move = tuple[int, int, int]
"""Address to copy to, address to copy from, bytes."""

PIECE = 4 << 20
"""What one thread takes at a time: half a millisecond, so that the last one is waited for shortly."""
THREADS = 4
"""More do not copy faster: the memory of one socket is busy with these."""
ALONE_BELOW = 16 << 20
"""Bytes that are copied before another thread has started."""
SMALL = 64 << 10
"""Bytes that are copied before another thread has taken the GIL: they are copied without letting go of it."""
_copy_small = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)(
    ctypes.cast(ctypes.memmove, ctypes.c_void_p).value or 0
)
"""The system's memmove, as `ctypes.memmove` calls it, without its release of the GIL around each call."""


def copy_all(moves: list[Move]) -> None:
    """Copy everything; the memory on both sides has to stay where it is until this returns.

    While large pieces are copied the GIL is free.

    Raises:
        MemoryError: threads could not even say what they did; the copy is not whole.
    """
    large = []
    for to, source, nbytes in moves:
        if nbytes <= SMALL:
            _copy_small(to, source, nbytes)
        else:
            large.append((to, source, nbytes))
    if sum(move[2] for move in large) < ALONE_BELOW:
        for to, source, nbytes in large:
            ctypes.memmove(to, source, nbytes)
        return
    work = deque(_split(large))
    errors: list[BaseException] = []
    helpers = _start_helpers(work, errors)
    try:
        _run(work, errors)
    finally:
        work.clear()
        for helper in helpers:
            helper.join()
    if errors:
        raise errors[0]


def _split(moves: list[Move]) -> list[Move]:
    return [
        (to + at, source + at, min(PIECE, nbytes - at))
        for to, source, nbytes in moves
        for at in range(0, nbytes, PIECE)
    ]


def _start_helpers(work: deque[Move], errors: list[BaseException]) -> list[threading.Thread]:
    helpers: list[threading.Thread] = []
    for _ in range(min(THREADS, len(os.sched_getaffinity(0))) - 1):
        helper = threading.Thread(target=_run, args=(work, errors), name="holdfast-copy", daemon=True)
        try:
            helper.start()
        except RuntimeError:
            break  # the account or its group may have no more threads: fewer do it too
        helpers.append(helper)
    return helpers


def _run(work: deque[Move], errors: list[BaseException]) -> None:
    try:
        while True:
            try:
                to, source, nbytes = work.popleft()
            except IndexError:
                return
            ctypes.memmove(to, source, nbytes)
    except BaseException as error:  # noqa: BLE001 - a piece that was taken and not copied must not pass for copied
        errors.append(error)
        work.clear()
