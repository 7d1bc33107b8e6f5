"""Waits until a file of one attempt changes or one of its processes ends.

No polling where the kernel tells: inotify on the attempt's directory, a pidfd for each process. Where it cannot (the
account's inotify instances are used up, the files are written by another host) the wait ends by itself after
`POLL_S`, so that the caller looks again; correctness never rests on an event.
"""

from __future__ import annotations

import select

from holdfast.host.clock import monotonic_s
from holdfast.host.files import inotify
from holdfast.host.process import pidfd
from holdfast.model.identity import ProcessId

POLL_S = 0.5
_MASK = inotify.MODIFY | inotify.CLOSE_WRITE | inotify.MOVED_TO | inotify.CREATE
EVERYTHING = frozenset({"*"})
"""The answer of `ChangeWatch.wait` when anything may have changed."""


class ChangeWatch:
    """What to wait on; use as a context manager. Files are named relative to the directory."""

    def __init__(self, directory: str, *, wake_fd: int | None = None, local: bool = True) -> None:
        """Watch `directory`. `wake_fd` ends a wait when readable; `local` False: others' writes make no events here."""
        self._poller = select.poll()
        self._held: dict[ProcessId, pidfd.HeldProcess] = {}
        self._gone: set[ProcessId] = set()
        self._missed = False
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

    def __enter__(self) -> ChangeWatch:  # noqa: PYI034 - typing.Self is newer than Python 3.10
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
        for held in self._held.values():
            held.close()
        self._held.clear()

    def watch(self, *wanted: ProcessId | None) -> None:
        """Also wake when one of these processes ends; known ones and None are ignored.

        One that is gone already ended after the caller looked, as far as we know: the next wait returns at once.
        """
        for process in wanted:
            if process is None or process in self._held or process in self._gone:
                continue
            held = pidfd.hold_process(process)
            if held is None:
                self._gone.add(process)
                self._missed = True
                continue
            self._held[process] = held
            if held.descriptor is not None:
                self._poller.register(held.descriptor, select.POLLIN)

    def wait(self, timeout_s: float | None = None) -> frozenset[str]:
        """Sleep until something changed, and answer the names of the files that did.

        Empty when the time passed or `wake_fd` woke us; `EVERYTHING` when a process ended, when events were lost, or
        when nothing can tell us.
        """
        missed, self._missed = self._missed, False
        limit_s = 0 if missed else timeout_s
        if self._queue is None:
            limit_s = POLL_S if limit_s is None else min(limit_s, POLL_S)
        deadline = None if limit_s is None else monotonic_s() + limit_s
        while True:
            left_s = None if deadline is None else max(0.0, deadline - monotonic_s())
            ready = self._sleep(left_s)
            changed = self._read_queue()
            if self._forget_ended() or missed:
                return EVERYTHING
            if ready or changed or (deadline is not None and monotonic_s() >= deadline):
                return changed if self._queue is not None else EVERYTHING

    def _sleep(self, left_s: float | None) -> bool:
        """Until something is readable, the time has passed, or a process is to be looked at; whether it was the first.

        A process whose end the kernel does not tell is looked at every `LOOK_EVERY_S`.
        """
        if any(held.descriptor is None for held in self._held.values()):
            left_s = pidfd.LOOK_EVERY_S if left_s is None else min(left_s, pidfd.LOOK_EVERY_S)
        return bool(self._poller.poll(None if left_s is None else int(left_s * 1000) + 1))

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

    def _forget_ended(self) -> bool:
        ended = [process for process, held in self._held.items() if held.has_ended()]
        for process in ended:
            held = self._held.pop(process)
            if held.descriptor is not None:
                self._poller.unregister(held.descriptor)
            held.close()
            self._gone.add(process)
        return bool(ended)
