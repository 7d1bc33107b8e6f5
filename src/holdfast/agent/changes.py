"""Waiting until something about one attempt changed: a file of its directory, or the end of one of its processes.

No polling where the kernel tells: inotify on the attempt's directory, a pidfd for each process. Where it cannot (the
account's inotify instances are used up, the files are written by another host) the wait ends by itself after
`POLL_S`, so that the caller looks again; correctness never rests on an event.
"""

from __future__ import annotations

import os
import select
from typing import TYPE_CHECKING

from ..host import inotify, processes

if TYPE_CHECKING:
    from ..model.identity import ProcessId

POLL_S = 0.5
_MASK = inotify.MODIFY | inotify.CLOSE_WRITE | inotify.MOVED_TO | inotify.CREATE
EVERYTHING = frozenset({"*"})
"""The answer of `Changes.wait` when anything may have changed."""


class Changes:
    """What to wait on; use as a context manager. Files are named relative to the directory."""

    def __init__(self, directory: str, *, wake_fd: int | None = None, local: bool = True) -> None:
        """Watch `directory`. `wake_fd` ends a wait when readable; `local` False: others' writes make no events here."""
        self._poller = select.poll()
        self._pidfds: dict[ProcessId, int] = {}
        self._gone: set[ProcessId] = set()
        self._missed = False
        self._wake_fd = wake_fd
        self._queue: inotify.Inotify | None = None
        if local:
            self._open_queue(directory)
        if wake_fd is not None:
            self._poller.register(wake_fd, select.POLLIN)

    def _open_queue(self, directory: str) -> None:
        try:
            queue = inotify.Inotify()
        except OSError:
            return
        try:
            queue.add(directory, _MASK)
        except OSError:
            queue.close()
            return
        self._queue = queue
        self._poller.register(queue.fileno(), select.POLLIN)

    def __enter__(self) -> Changes:  # noqa: PYI034 - typing.Self is newer than Python 3.10
        """Answer itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def close(self) -> None:
        """Give every descriptor back."""
        if self._queue is not None:
            self._queue.close()
            self._queue = None
        for descriptor in self._pidfds.values():
            os.close(descriptor)
        self._pidfds.clear()

    def watch(self, *wanted: ProcessId | None) -> None:
        """Also wake when one of these processes ends; known ones and None are ignored.

        One that is gone already ended after the caller looked, as far as we know: the next wait returns at once.
        """
        for process in wanted:
            if process is None or process in self._pidfds or process in self._gone:
                continue
            descriptor = processes.open_pidfd(process)
            if descriptor is None:
                self._gone.add(process)
                self._missed = True
                continue
            self._pidfds[process] = descriptor
            self._poller.register(descriptor, select.POLLIN)

    def wait(self, timeout_s: float | None = None) -> frozenset[str]:
        """Sleep until something changed, and answer the names of the files that did.

        Empty when the time passed or `wake_fd` woke us; `EVERYTHING` when a process ended, when events were lost, or
        when nothing can tell us.
        """
        missed, self._missed = self._missed, False
        limit_s = 0 if missed else timeout_s
        if self._queue is None:
            limit_s = POLL_S if limit_s is None else min(limit_s, POLL_S)
        ready = self._poller.poll(None if limit_s is None else max(0, int(limit_s * 1000) + 1))
        changed = self._read_queue()
        if self._forget_ended({descriptor for descriptor, _ in ready}) or missed:
            return EVERYTHING
        return changed if self._queue is not None else EVERYTHING

    def _read_queue(self) -> frozenset[str]:
        if self._queue is None:
            return frozenset()
        events = self._queue.read()
        if any(event.mask & (inotify.OVERFLOW | inotify.IGNORED) for event in events):
            if any(event.mask & inotify.IGNORED for event in events):
                self._poller.unregister(self._queue.fileno())
                self._queue.close()
                self._queue = None
            return EVERYTHING
        return frozenset(event.name for event in events)

    def _forget_ended(self, ready: set[int]) -> bool:
        ended = [process for process, descriptor in self._pidfds.items() if descriptor in ready]
        for process in ended:
            descriptor = self._pidfds.pop(process)
            self._poller.unregister(descriptor)
            os.close(descriptor)
            self._gone.add(process)
        return bool(ended)
