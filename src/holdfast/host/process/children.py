"""Short-lived children that answer a question: bounded in time and in bytes, never a shell, never left behind.

For asking a tool of the system (git, podman) something while we go on; what does not answer in time is killed and said
to have been silent. The caller owns the child until `end` or `read_children` has returned.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Mapping

from holdfast.host.clock import monotonic_s

from .wait import wait_briefly

LEAVES_WITHIN_S = 1.0
"""From the end of a child's output to its own, normally at once. One that closed it and goes on is killed."""
KILL_PATIENCE_S = 0.2
"""How long a killed child is waited for; one in uninterruptible sleep is left to whoever reaps our children."""


class BoundedChild:
    """One child whose output is read into memory up to a limit; its errors are discarded unless asked for."""

    def __init__(
        self,
        argv: tuple[str, ...],
        environ: Mapping[str, str],
        limit: int,
        *,
        with_errors: bool = False,
        stdin: int | None = None,
    ) -> None:
        """Start it; `stdin` is its standard input, which stays the caller's to close."""
        self.data = bytearray()
        self.code: int | None = None
        self._limit = limit
        self._problem = ""
        self.fd, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(writer, True)
        null = (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_RDWR, 0)
        actions = [null, (os.POSIX_SPAWN_DUP2, 2 if stdin is None else stdin, 0), (os.POSIX_SPAWN_DUP2, writer, 1)]
        actions += [(os.POSIX_SPAWN_DUP2, 1, 2)] if with_errors else []
        try:
            self._pid = os.posix_spawnp(argv[0], argv, dict(environ), file_actions=actions)
        except OSError:
            os.close(self.fd)
            self.fd = -1
            raise
        finally:
            os.close(writer)

    def take(self) -> bool:
        """Read what is there; True at the end, when `code` is known."""
        try:
            chunk = os.read(self.fd, 1 << 16)
        except BlockingIOError:
            return False
        self.data += chunk
        if len(self.data) > self._limit:
            self._problem = f"said more than {self._limit // 1024**2} MiB"
            self.end()
        elif not chunk and not wait_briefly(self._reap, LEAVES_WITHIN_S):
            self._problem = "closed its output and did not end"
            self.end()
        return self.fd < 0

    def _reap(self) -> bool:
        """Whether it has ended; then its pid may be another's."""
        pid, status = os.waitpid(self._pid, os.WNOHANG)
        if pid == 0:
            return False
        self._close()
        self.code = os.waitstatus_to_exitcode(status)
        return True

    def _close(self) -> None:
        os.close(self.fd)
        self.fd = -1

    def end(self) -> None:
        """Kill it if it still runs; it is our own child, not yet waited for, so the pid is still its own."""
        if self.fd >= 0:
            os.kill(self._pid, signal.SIGKILL)
            if not wait_briefly(self._reap, KILL_PATIENCE_S):
                self._close()

    def describe(self, what: str) -> str:
        """Why there is no answer."""
        return f"{what} {self._problem or f'ended with {self.code}'}"

    def expire(self, within_s: float) -> None:
        """Give up on it."""
        if self.fd >= 0:
            self._problem = f"was not done within {within_s:g} s"
            self.end()


def read_children(children: list[BoundedChild], within_s: float) -> None:
    """Read children side by side until all have ended or the time is up; then the rest is ended."""
    end = monotonic_s() + within_s
    open_ones = {child.fd: child for child in children}
    poller = select.poll()
    for descriptor in open_ones:
        poller.register(descriptor, select.POLLIN)
    while open_ones and (left := end - monotonic_s()) > 0:
        for descriptor, _ in poller.poll(int(left * 1000) + 1):
            if open_ones[descriptor].take():
                poller.unregister(descriptor)
                del open_ones[descriptor]
    for child in open_ones.values():
        child.expire(within_s)
