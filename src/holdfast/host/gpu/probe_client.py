"""Asking the probe child, and never waiting for it longer than was said.

A `Probe` owns one child process (`probe`) and two pipes. The caller's process imports neither ctypes nor the
NVML binding. Two ways to use it: `ask` blocks until the reply or the deadline; a poll loop calls `send`, waits on
`fileno()` for as long as it gave, and calls `receive_ready`.

Invariants: one request is under way at most; a child that does not answer is killed through its pidfd and *not* waited
for (in uninterruptible sleep even SIGKILL waits for the driver), but remembered and reaped by a later call; a new one
is started when the old is gone or after a back-off; descriptors are closed on every path. The child has its own
process group, so a Ctrl-C for a command line is not for it, and none of holdfast's variables, so it is never taken
for part of a run.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from collections.abc import Mapping

import holdfast
from holdfast.host.process import pidfd
from holdfast.host.process.signals import STOPS
from holdfast.model.record import record

Reply = dict[str, object]

SERVE = "import sys; sys.path.append(sys.argv[1]); from holdfast.host.gpu.probe import serve_probe; serve_probe()"
CLOSE_GRACE_S = 0.2
"""How long `close` waits for a child that has seen end of file, and again after SIGKILL."""
BACKOFF_FIRST_S = 1.0
BACKOFF_MAX_S = 60.0
HANGING_MAX = 4
"""With so many killed probes still in the driver no further one is started: each holds memory and a process id."""
REPLY_MAX_BYTES = 8 * 1024 * 1024


class ProbeFailed(Exception):
    """The probe child could not be started or ended without an answer; the message says how."""


class ProbeStuck(ProbeFailed):
    """The probe child did not answer in time.

    `function` is what it was last known to do, `seconds` how long we waited for it.
    """

    def __init__(self, function: str, seconds: float) -> None:
        """Name what blocks and for how long."""
        super().__init__(f"the driver did not answer within {seconds:.1f} s ({function})")
        self.function = function
        self.seconds = seconds


@record(frozen=False)
class _Child:
    pid: int
    held: pidfd.HeldProcess | None
    requests: int
    replies: int
    unread: bytes = b""
    ready: bool = False
    reaped: bool = False

    def is_gone(self) -> bool:
        """Reap without waiting; whether nothing is left."""
        if not self.reaped:
            self.reaped = self.held is None or self.held.reap(block=False)
        return self.reaped

    def wait_gone(self, timeout_s: float) -> bool:
        """Reap within the time; whether nothing is left."""
        if not self.is_gone() and self.held is not None:
            self.held.wait(timeout_s)
        return self.is_gone()

    def kill(self) -> None:
        """SIGKILL this child and no later user of its pid."""
        if not self.reaped and self.held is not None:
            self.held.send(signal.SIGKILL)

    def close_pipes(self) -> None:
        """Close both pipes; idempotent."""
        for descriptor in (self.requests, self.replies):
            if descriptor >= 0:
                os.close(descriptor)
        self.requests = self.replies = -1


_abandoned: list[_Child] = []


def reap_abandoned() -> int:
    """Reap killed probes that have ended since; how many still hang in the driver."""
    for child in list(_abandoned):
        if child.is_gone():
            if child.held is not None:
                child.held.close()
            _abandoned.remove(child)
    return len(_abandoned)


def disown() -> None:
    """In a forked child: the parent's abandoned probes are not ours to reap, and their descriptors are closed here."""
    _abandoned.clear()


def _start_child() -> _Child:
    """Start a probe. Raises: ProbeFailed."""
    if not sys.executable:
        raise ProbeFailed("cannot start the GPU probe: the path of this Python interpreter is not known")
    root = os.path.dirname(os.path.dirname(os.path.abspath(holdfast.__file__)))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    request_end, requests = os.pipe()
    replies, reply_end = os.pipe()
    try:
        pid = os.posix_spawn(
            sys.executable,
            [sys.executable, "-I", "-S", "-c", SERVE, root],
            environment,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
                (os.POSIX_SPAWN_DUP2, request_end, 0),
                (os.POSIX_SPAWN_DUP2, reply_end, 1),
            ],
            setpgroup=0,
            # A signal to all processes of a job (a scheduler's) is for who asks; this one ends with its input.
            setsigmask=STOPS,
            setsigdef=(signal.SIGPIPE, signal.SIGCHLD, *STOPS),
        )
    except OSError as error:
        os.close(requests)
        os.close(replies)
        raise ProbeFailed(f"cannot start the GPU probe {sys.executable}: {error.strerror}") from error
    finally:
        os.close(request_end)
        os.close(reply_end)
    os.set_blocking(requests, False)
    os.set_blocking(replies, False)
    return _Child(pid, pidfd.hold(pid), requests, replies)


class Probe:
    """The asking side of the probe child. Not for several threads at once. Use as a context manager or call `close`."""

    def __init__(self) -> None:
        """Nothing is started before the first request."""
        self._child: _Child | None = None
        self._number = 0
        self._asked_at: float | None = None
        self._overdue_at: float | None = None
        self._stuck: tuple[str, float] | None = None
        self._backoff_s = BACKOFF_FIRST_S

    def __enter__(self) -> Probe:  # noqa: PYI034 - typing.Self needs Python 3.11
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    @property
    def pid(self) -> int | None:
        """The child's pid, so that a supervisor does not take it for part of its job; None when there is no child."""
        return None if self._child is None else self._child.pid

    def fileno(self) -> int:
        """The descriptor that turns readable when a reply or the child's end can be received.

        Raises:
            ProbeFailed: there is no child; `send` first.
        """
        if self._child is None:
            raise ProbeFailed("the GPU probe is not running")
        return self._child.replies

    def send(self, request: Mapping[str, object], deadline_s: float) -> None:
        """Begin a request; never blocks. The child answers somewhat before `deadline_s` (seconds from now).

        Raises:
            ProbeStuck: an earlier probe still hangs in the driver and its back-off is not over.
            ProbeFailed: the child cannot be started, or a request is under way.
        """
        if self._overdue_at is not None:
            raise ProbeFailed("the GPU probe is still busy with an earlier request")
        now = time.monotonic()
        child = self._ensure_child(now)
        self._number += 1
        answer_by = now + deadline_s - min(0.15, deadline_s / 4)
        line = json.dumps({**request, "id": self._number, "until": answer_by}).encode() + b"\n"
        self._asked_at, self._overdue_at = now, now + deadline_s
        try:
            os.write(child.requests, line)
        except BlockingIOError:
            raise self._give_up("reading requests") from None
        except BrokenPipeError:
            raise self._lose() from None

    def receive_ready(self) -> Reply | None:
        """The reply when it is there, else None; never blocks.

        Raises:
            ProbeStuck: the request is overdue; the child was killed and set aside.
            ProbeFailed: the child ended without an answer.
        """
        child = self._child
        if child is None:
            raise ProbeFailed("the GPU probe is not running")
        while True:
            try:
                chunk = os.read(child.replies, 65536)
            except BlockingIOError:
                break
            if not chunk or len(child.unread) > REPLY_MAX_BYTES:
                raise self._lose()
            child.unread += chunk
        while b"\n" in child.unread:
            line, _, child.unread = child.unread.partition(b"\n")
            reply: Reply = json.loads(line)
            child.ready = True
            if reply.get("id") == self._number and self._overdue_at is not None:
                self._asked_at = self._overdue_at = self._stuck = None
                self._backoff_s = BACKOFF_FIRST_S
                return reply
        if self._overdue_at is not None and time.monotonic() >= self._overdue_at:
            raise self._give_up("loading the driver library" if child.ready else "starting the probe")
        return None

    def warm(self, deadline_s: float, *, listen: bool = False) -> None:
        """Have the child started and the driver initialised, without waiting for it; its answer is nobody's concern.

        With `listen` it hears the Xids of all cards from then on; before, nobody hears them.

        Raises: as `send`.
        """
        if self._overdue_at is None:
            self.send({"op": "xid_events" if listen else "utilisation"}, deadline_s)

    def ask(self, request: Mapping[str, object], deadline_s: float) -> Reply:
        """The reply to a request, within `deadline_s`. Raises: as `send` and `receive_ready`.

        A request that is still under way (`warm`) is waited for first, within its own deadline.
        """
        if self._overdue_at is not None:
            self._await_reply()
        self.send(request, deadline_s)
        return self._await_reply()

    def _await_reply(self) -> Reply:
        poll = select.poll()
        poll.register(self.fileno(), select.POLLIN)
        while True:
            left_s = max((self._overdue_at or 0.0) - time.monotonic(), 0.0)
            poll.poll(left_s * 1000 + 1)
            reply = self.receive_ready()
            if reply is not None:
                return reply

    def close(self) -> None:
        """End the child and reap it. One that hangs in the driver is killed and set aside; idempotent."""
        child, self._child = self._child, None
        self._asked_at = self._overdue_at = None
        if child is not None:
            child.close_pipes()
            if not child.wait_gone(CLOSE_GRACE_S):
                child.kill()
                child.wait_gone(CLOSE_GRACE_S)
            _abandoned.append(child)
        reap_abandoned()

    def _ensure_child(self, now: float) -> _Child:
        hanging = reap_abandoned()
        if self._child is not None and self._child.is_gone():
            self._set_aside(self._child)
        if self._child is None:
            if hanging and self._stuck is not None:
                function, since = self._stuck
                if now < since + self._backoff_s or hanging >= HANGING_MAX:
                    raise ProbeStuck(function, now - since)
                self._backoff_s = min(self._backoff_s * 2, BACKOFF_MAX_S)
            self._child = _start_child()
        return self._child

    def _set_aside(self, child: _Child) -> None:
        child.close_pipes()
        _abandoned.append(child)
        self._child = self._asked_at = self._overdue_at = None
        reap_abandoned()

    def _give_up(self, function: str) -> ProbeStuck:
        """Kill the child that does not answer, without waiting for its end."""
        child, now = self._child, time.monotonic()
        waited_s = now - (self._asked_at or now)
        self._stuck = (function, now)
        if child is not None:
            child.kill()
            self._set_aside(child)
        return ProbeStuck(function, waited_s)

    def _lose(self) -> ProbeFailed:
        """The child ended by itself (a driver library can crash)."""
        child = self._child
        if child is not None:
            child.kill()
            self._set_aside(child)
        return ProbeFailed("the GPU probe ended without an answer (the driver library may have crashed)")
