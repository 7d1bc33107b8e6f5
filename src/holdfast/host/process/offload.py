"""Work that may hang, done in a disposable child: a stuck disk or driver costs a deadline, never the supervisor.

The child is forked, runs one function, and sends its JSON result back through a pipe. It drops every descriptor that it
does not need first (a hung child must not hold a lease), and is killed, not waited for, when it is given up. A signal
that asks its parent to stop may go to all processes at once (a scheduler, a terminal): where the parent handles it by
itself, the child goes on, so that what it was to tell is not lost.
"""

from __future__ import annotations

import json
import os
import select
import signal
from collections.abc import Callable, Iterable
from typing import Any

from holdfast.host.clock import monotonic_s

from . import pidfd
from .signals import STOPS

KILL_PATIENCE_S = 0.2
"""How long a killed child may take to be gone before it is left for `reap_left`."""

_LEFT: list[pidfd.HeldProcess] = []
"""Killed children that were not gone in time: on a busy box, or in uninterruptible sleep."""
os.register_at_fork(after_in_child=_LEFT.clear)  # they are no children of a child


class OffloadFailed(Exception):
    """The work did not come back; the message says whether it raised, was killed, or ran out of time."""


class Offload:
    """One piece of work under way. Poll `fileno`, then call `result`; or `wait`."""

    def __init__(self, work: Callable[[], Any], *, keep: Iterable[int] = ()) -> None:
        """Fork and begin; `keep` are descriptors that the work needs besides the standard ones."""
        reap_left()
        self._begun_s = monotonic_s()
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        self._pid = os.fork()
        if self._pid == 0:
            _run_child(work, write_end, {0, 1, 2, write_end, *keep})
        os.close(write_end)
        os.set_blocking(read_end, False)
        # Whoever waits for all children may reap this one, and its number would then be somebody else's.
        self._child = pidfd.hold(self._pid)
        self._fd = read_end
        self._data = bytearray()

    @property
    def pid(self) -> int:
        """The child, for whoever must not take it for something else. Not for signals: it may be gone."""
        return self._pid

    @property
    def age_s(self) -> float:
        """Seconds since the work began."""
        return monotonic_s() - self._begun_s

    def fileno(self) -> int:
        """Readable when the result, or a part of it, is there."""
        return self._fd

    def is_done(self) -> bool:
        """Take what has come; True when the child has said all it will say."""
        while True:
            try:
                chunk = os.read(self._fd, 1 << 16)
            except BlockingIOError:
                return False
            if not chunk:
                return True
            self._data += chunk

    def result(self) -> Any:  # noqa: ANN401 - whatever JSON value the work returned
        """The JSON value that the work returned; call once `is_done`.

        Raises:
            OffloadFailed: it raised or was killed.
        """
        self._finish()
        if not self._data:
            raise OffloadFailed("the check's process ended without a word (killed?)")
        try:
            answer = json.loads(self._data)
        except ValueError as error:
            raise OffloadFailed("the check's process was killed while it answered") from error
        if "error" in answer:
            raise OffloadFailed(answer["error"])
        return answer["result"]

    def wait(self, limit_s: float, *, since_start: bool = False) -> Any:  # noqa: ANN401 - as above
        """Block until the result is there; with `since_start` the limit counts from when the work began.

        Raises:
            OffloadFailed: it raised, was killed, or took longer than `limit_s` seconds.
        """
        deadline = (self._begun_s if since_start else monotonic_s()) + limit_s
        poller = select.poll()
        poller.register(self._fd, select.POLLIN)
        while not self.is_done():
            left_ms = int((deadline - monotonic_s()) * 1000)
            if left_ms <= 0:
                self.abandon()
                raise OffloadFailed(f"no answer within {limit_s:g} s")
            poller.poll(left_ms)
        return self.result()

    def abandon(self) -> None:
        """Kill the child and forget it; a child in uninterruptible sleep dies when the kernel lets it."""
        if self._child is not None:
            self._child.send(signal.SIGKILL)
            self._child.wait(KILL_PATIENCE_S)
        self._finish(block=False)

    def _finish(self, *, block: bool = True) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if self._child is not None:
            if self._child.reap(block=block):
                self._child.close()
            else:
                _LEFT.append(self._child)
            self._child = None


def reap_left() -> None:
    """Take away what is left of killed children that are gone by now: else each would stay a zombie."""
    for child in [child for child in _LEFT if child.reap(block=False)]:
        child.close()
        _LEFT.remove(child)


def close_all_except(keep: set[int]) -> None:
    """Close every descriptor of this process that is not in `keep`: a child is not to hold what is not its own."""
    for name in os.listdir("/proc/self/fd"):
        descriptor = int(name)
        if descriptor not in keep:
            try:
                os.close(descriptor)
            except OSError:
                continue


def _is_handled(number: signal.Signals) -> bool:
    how = signal.getsignal(number)
    return callable(how) and how is not signal.default_int_handler


def _leave_to_parent(_number: int, _frame: object) -> None:
    """The parent has heard of it, and decides."""


def _run_child(work: Callable[[], Any], write_end: int, keep: set[int]) -> None:
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number in STOPS:
            # A handler, not SIG_IGN, which a program that the work starts would inherit.
            signal.signal(number, _leave_to_parent if _is_handled(number) else signal.SIG_DFL)
        close_all_except(keep)
        answer = {"result": work()}
        code = 0
    except BaseException as error:  # noqa: BLE001 - the last barrier of a forked child
        answer = {"error": f"{type(error).__name__}: {error}"}
    try:
        data = memoryview(json.dumps(answer).encode())
        while data:
            data = data[os.write(write_end, data) :]
    except BaseException:  # noqa: BLE001 - nobody listens any more
        code = 1
    os._exit(code)
