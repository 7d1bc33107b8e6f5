"""The terminal and standard output of whoever follows a run: signals as numbers, bytes written in full, a word beside.

Nothing here is Linux's own: a desk may be a Mac.
"""

from __future__ import annotations

import os
import select
import signal
import stat
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO

from holdfast.core.control_characters import clean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_SIGNALS = (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)


class OutputRefused(OSError):
    """Standard output refused the job's bytes; the run has nothing to do with it."""


class ReceivedSignals(list[int]):
    """The numbers of signals that came. `wake` makes the descriptor readable without one, from any thread."""

    def __init__(self, write_fd: int) -> None:
        super().__init__()
        self._write_fd = write_fd
        self._lock = threading.Lock()

    def wake(self) -> None:
        """Have whoever sleeps on the descriptor look; nobody does any more after `close`."""
        with self._lock:
            if self._write_fd >= 0:
                os.write(self._write_fd, b"\0")

    def hear(self, number: int) -> None:
        """Take a signal that another thread makes of something that it has seen."""
        self.append(number)
        self.wake()

    def close(self) -> None:
        """Close the descriptor: its number may be another file's from now on."""
        with self._lock:
            os.close(self._write_fd)
            self._write_fd = -1


@contextmanager
def listening() -> Iterator[tuple[int, ReceivedSignals]]:
    """Turn INT, HUP and TERM into numbers in a list and a readable descriptor; put everything back afterwards."""
    wake_fd, write_fd = os.pipe()
    os.set_blocking(wake_fd, False)
    os.set_blocking(write_fd, False)
    heard = ReceivedSignals(write_fd)
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    previous = signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
    for number in _SIGNALS:
        signal.signal(number, lambda seen, _frame: heard.append(seen))
    try:
        yield wake_fd, heard
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(previous)
        os.close(wake_fd)
        heard.close()


def watch_reader(descriptor: int, tell: Callable[[], object]) -> None:
    """Have `tell` called, by another thread, as soon as nobody reads a pipe any more (``| head -n 1``).

    A job may be silent for hours. Source: poll(2): POLLERR on the write end of a pipe whose read end was closed.
    """
    try:
        if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            return
    except OSError:  # it is closed
        return
    poller = select.poll()
    poller.register(descriptor, 0)

    def watch() -> None:
        if any(events & select.POLLERR for _, events in poller.poll()):
            tell()

    threading.Thread(target=watch, daemon=True).start()


def drain(descriptor: int) -> None:
    """Read away everything that is in a pipe that never blocks."""
    try:
        while os.read(descriptor, 512):
            pass
    except BlockingIOError:
        return


def write_fully(stdout: BinaryIO, data: bytes) -> None:
    """Write bytes at once, also to a terminal that somebody made non-blocking.

    Raises:
        BrokenPipeError: nobody reads any more.
        OutputRefused: it takes no more for another reason, a full disk for one.
    """
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(stdout.fileno(), view) :]
        except BlockingIOError:
            select.select([], [stdout.fileno()], [])
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OutputRefused(error.errno, error.strerror) from error


def say(text: str) -> None:
    """Say something beside the result, on standard error."""
    if sys.stderr is not None:
        sys.stderr.write(f"holdfast: {clean(text, keep_newlines=True)}\n")
        sys.stderr.flush()
