"""One child process that carries one framed answer: its three pipes are served together until the end is seen.

Both transports use it: for `local` the child is the shell itself, for `ssh` the client. After `close` no process and no
descriptor is left. Nothing here needs Linux: the desk may be a Mac.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Protocol

from holdfast.model.record import record

from .frame import Framed

CHUNK_BYTES = 1 << 16
TAIL_BYTES = 4096
"""How much of the end of standard error is kept for messages."""
GRACE_S = 0.5
"""How long a child may take to leave by itself, or after a signal."""
STALL_S = 300.0
"""How long input may stand still while nothing comes, either."""
LOOK_S = 0.05
"""How often we look whether the child has ended while somebody else holds one of its pipes open."""

Sink = Callable[[bytes], None]


@record
class Ending:
    """How a child ended that gave no whole answer.

    `begun`: the command there had started. `returncode` is the child's own (None: it still ran, and was ended by us).
    `out` and `err` are the ends of what came before the command began, or (`err`) what it wrote last.
    """

    begun: bool
    returncode: int | None
    out: bytes = b""
    err: bytes = b""
    too_noisy: bool = False


class Late(Exception):
    """The deadline has passed. `begun`: the command there had started. `stalled`: it took no more of its input."""

    def __init__(self, *, begun: bool, stalled: bool = False) -> None:
        """Nothing but the facts."""
        super().__init__()
        self.begun, self.stalled = begun, stalled


class Woken(Exception):
    """Whoever follows wants no more."""


class Silent(Exception):
    """Nothing comes any more, and nothing else gets through either."""


class Silence(Protocol):
    """What looks after a link on which nothing comes."""

    due: float
    """When `note` is to be called at the latest (a moment of `time.monotonic`)."""

    def note(self, *, heard: bool) -> None:
        """Hear whether something came.

        Raises:
            Silent: the link is dead.
        """
        ...


class Child:
    """A process in a session of its own, with the parsers of its two streams."""

    def __init__(self, argv: list[str], nonce: str, *, stdin: int, env: dict[str, str] | None, group: bool) -> None:
        """Start it. `stdin` as of `subprocess`; `group`: what it started is ended with it.

        Raises:
            OSError: there is no such program, or no process to be had.
        """
        self._group = group
        self._process = subprocess.Popen(
            argv,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env=env,
            bufsize=0,
        )
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._selector = selectors.DefaultSelector()
        self._out = Framed(nonce, with_code=False)
        self._err = Framed(nonce, with_code=True)
        self._tail = b""
        self._streams = {self._process.stdout.fileno(): self._out, self._process.stderr.fileno(): self._err}
        self._open = set(self._streams)
        for fd in self._streams:
            self._selector.register(fd, selectors.EVENT_READ)
        self._pieces: Iterator[bytes] = iter(())
        self._unsent = memoryview(b"")
        self._sends = False

    @property
    def begun(self) -> bool:
        """Whether the command there has started."""
        return self._out.begun or self._err.begun

    @property
    def code(self) -> int | None:
        """The exit code of the command, once its answer is whole."""
        return self._err.code if self._out.over and self._err.over else None

    def send(self, data: bytes | Iterable[bytes]) -> None:
        """Set what `serve` writes to standard input, which is closed afterwards."""
        stdin = self._process.stdin
        self._pieces = iter((data,) if isinstance(data, bytes) else data)
        if stdin is not None and not stdin.closed:
            os.set_blocking(stdin.fileno(), False)
            self._sends = True
            if stdin.fileno() not in self._selector.get_map():
                self._selector.register(stdin, selectors.EVENT_WRITE)

    def serve(
        self,
        out: Sink,
        err: Sink,
        *,
        deadline: float | None = None,
        start_deadline: float | None = None,
        wake: tuple[int, Callable[[], bool]] | None = None,
        silence: Silence | None = None,
        stall_s: float = STALL_S,
    ) -> None:
        """Move bytes until the answer is whole, or the child has ended without one.

        `deadline` and `start_deadline` (until the command begins) are moments of `time.monotonic`. `wake` has a
        descriptor and what is called when it becomes readable. `silence` is told of what comes, and of nothing.
        `stall_s`: how long no byte may move while there is input to be sent.

        Raises:
            Late: a deadline passed, or the input stands still.
            Silent: `silence` says so.
            Woken: what `wake` calls answered True.
        """
        sinks = {fd: out if stream is self._out else err for fd, stream in self._streams.items()}
        if wake is not None:
            self._selector.register(wake[0], selectors.EVENT_READ)
        moved_at = time.monotonic()
        try:
            while not (self.code is not None or self._is_hopeless()):
                end = deadline if self.begun else _earliest(deadline, start_deadline)
                until = None if silence is None else silence.due
                ready = self._wait(end, _earliest(until, moved_at + stall_s) if self._sends else until)
                if not ready and self._sends and time.monotonic() - moved_at >= stall_s:
                    raise Late(begun=self.begun, stalled=True)
                if silence is not None:
                    silence.note(heard=any(fd in sinks for fd in ready))
                for fd in ready:
                    if fd in sinks:
                        self._read(fd, sinks[fd])
                    elif wake is None or fd != wake[0]:
                        self._write()
                    elif wake[1]():
                        raise Woken
                if ready:
                    moved_at = time.monotonic()  # the time in which the next piece was read here is not the box's
        finally:
            if wake is not None:
                self._selector.unregister(wake[0])

    def ending(self) -> Ending:
        """What is known of a child that gave no whole answer."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE_S)
        return Ending(
            begun=self.begun,
            returncode=self._process.returncode,
            out=self._out.noise[-TAIL_BYTES:],
            err=(self._tail if self._err.begun else self._err.noise)[-TAIL_BYTES:],
            too_noisy=self._out.too_noisy or self._err.too_noisy,
        )

    def close(self) -> None:
        """Give back all that is held. A child whose answer was whole gets a moment to leave."""
        self._selector.close()
        process = self._process
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.0 if self.code is None else GRACE_S)
        for signum in (signal.SIGTERM, signal.SIGKILL):
            if process.poll() is None:
                self._signal(signum)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(GRACE_S)
        process.wait()

    def _signal(self, signum: signal.Signals) -> None:
        if self._group:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signum)
        else:
            # Not its group: what ssh started for a shared connection (ProxyCommand) outlives this one call.
            self._process.send_signal(signum)

    def _wait(self, end: float | None, until: float | None) -> list[int]:
        """Descriptors that are ready by `until`; looks at the child too when somebody else may hold a pipe open."""
        now = time.monotonic()
        if end is not None and end <= now:
            raise Late(begun=self.begun)
        until = _earliest(end, until)
        pause = None if until is None else max(0.0, until - now)
        one_closed = len(self._open) < len(self._streams)
        if one_closed:
            pause = LOOK_S if pause is None else min(pause, LOOK_S)
        ready = [key.fd for key, _ in self._selector.select(pause)]
        if not ready and one_closed and self._process.poll() is not None:
            for fd in list(self._open):
                self._stop_reading(fd)  # it has ended, and nothing more is in the pipe
        return ready

    def _is_hopeless(self) -> bool:
        return self._out.too_noisy or self._err.too_noisy or not self._open

    def _stop_reading(self, fd: int) -> None:
        self._selector.unregister(fd)
        self._open.discard(fd)

    def _read(self, fd: int, sink: Sink) -> None:
        data = os.read(fd, CHUNK_BYTES)
        if not data:
            self._stop_reading(fd)
            return
        stream = self._streams[fd]
        wrote = stream.feed(data)
        if wrote:
            if stream is self._err:
                self._tail = (self._tail + wrote)[-TAIL_BYTES:]
            sink(wrote)

    def _write(self) -> None:
        """Write what standard input takes now; close it after the last."""
        stdin = self._process.stdin
        assert stdin is not None
        if not self._unsent:
            piece = next(self._pieces, None)
            if piece is None:
                self._close_input(stdin)
                return
            self._unsent = memoryview(piece)
        try:
            self._unsent = self._unsent[os.write(stdin.fileno(), self._unsent[:CHUNK_BYTES]) :]
        except BlockingIOError:
            pass
        except BrokenPipeError:  # it reads no further; what it answers says the rest
            self._close_input(stdin)

    def _close_input(self, stdin: IO[bytes]) -> None:
        self._selector.unregister(stdin)
        stdin.close()
        self._sends = False


def _earliest(one: float | None, other: float | None) -> float | None:
    return other if one is None else one if other is None else min(one, other)
