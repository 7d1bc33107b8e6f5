"""Drains the job's output pipe in the place of a keeper that was killed.

Without a reader the job would stop at a full pipe; it cannot be killed by it, because it holds the pipe open itself.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from holdfast.host.job.keeper import DRAIN_LIMIT_BYTES
from holdfast.host.job.output import OutputFile

if TYPE_CHECKING:
    from .loop import Loop

PIECE_BYTES = 1 << 16


def open_output(job_pid: int, kept: int | None) -> int | None:
    """An end of our own of the pipe or terminal that the job writes to: a copy of `kept`, else through the job's own.

    Returns:
        None when there is none: the job may have put its output elsewhere, and only the pipe is ours to read.
    """
    if kept is not None and kept >= 0:
        return os.dup(kept)
    for number in (1, 2):
        path = f"/proc/{job_pid}/fd/{number}"
        try:
            if stat.S_ISFIFO(os.stat(path).st_mode):
                return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            continue
    return None


class OutputTakeover:
    """Moves what the job writes into its log, from the loop; owns `pipe`."""

    def __init__(self, loop: Loop, pipe: int, output: OutputFile) -> None:
        """Begin to drain."""
        self._loop, self._pipe = loop, pipe
        self._output = output
        os.set_blocking(pipe, False)
        loop.add(pipe, self._take)

    def _take(self) -> None:
        self._move()

    def _move(self) -> bool:
        """Move one piece; False when there is none now."""
        try:
            data = os.read(self._pipe, PIECE_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if data:
            self._output.write(data)
        else:
            self._loop.remove(self._pipe)
        return bool(data)

    def close(self) -> None:
        """Take what is still in the pipe, which holds no more than its size, and close both ends of the copying."""
        left = DRAIN_LIMIT_BYTES // PIECE_BYTES
        while left and self._move():
            left -= 1
        self._loop.remove(self._pipe)
        self._output.close()
        os.close(self._pipe)
