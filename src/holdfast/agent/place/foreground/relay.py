"""Passes a job's output on to the standard output of whoever stands in the foreground: its place's own log.

A child of its own, so that a reader who is slow or gone holds up nobody but itself: the supervisor never writes there.
It reads ``output.log`` as anybody else who follows a run, heeds no signal, and dies with its parent. It stands in a
session of its own, as the job does: a TERM that waits at it was sent to all that descends from the supervisor.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
from typing import TYPE_CHECKING

from holdfast.agent.view.changes import ChangeWatch
from holdfast.agent.view.live.attempt import read_followed
from holdfast.agent.view.live.tail import TailReader
from holdfast.agent.view.observe import observe_run
from holdfast.core.control_characters import clean_json
from holdfast.host.process import libc
from holdfast.host.process.offload import close_all_except
from holdfast.host.process.wait import wait_briefly
from holdfast.model import wire
from holdfast.model.run import SCHEMA

if TYPE_CHECKING:
    from collections.abc import Iterable

LAST_WORDS_S = 10.0
"""How long the rest of the output may take after the exit record is written; the reader may be slow."""
LAST = b"l"


class Relay:
    """The child that passes an attempt's output on; `pid` is one of the bystanders of the job."""

    def __init__(
        self, run_dir: str, attempt: int, streams: tuple[int, int], *, grace_limit_s: float | None, as_json: bool
    ) -> None:
        """Start it. `streams` are standard output and error as the place gave them."""
        read_end, self._end = os.pipe2(os.O_CLOEXEC)
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            with contextlib.suppress(BaseException):
                libc.set_name("holdfast-relay")
                libc.set_parent_death_signal(signal.SIGKILL)
                os.setsid()
                if os.getppid() == parent:
                    close_all_except({read_end, *streams})
                    _Child(run_dir, attempt, streams, read_end, as_json=as_json).run(grace_limit_s)
                code = 0
            os._exit(code)
        os.close(read_end)

    def finish(self, *, last: bool) -> None:
        """The attempt is over: have the rest passed on, for a while. `last`: no other attempt follows."""
        with contextlib.suppress(OSError):
            os.write(self._end, LAST if last else b"n")
        os.close(self._end)
        if not wait_briefly(self._has_left, LAST_WORDS_S):
            with contextlib.suppress(ProcessLookupError):
                # Our own child that nobody has reaped: the pid cannot mean anybody else.
                os.kill(self.pid, signal.SIGKILL)
            wait_briefly(self._has_left, 1.0)

    def _has_left(self) -> bool:
        try:
            return os.waitpid(self.pid, os.WNOHANG)[0] != 0
        except ChildProcessError:
            return True


class _Child:
    """The child's life."""

    def __init__(self, run_dir: str, attempt: int, streams: tuple[int, int], end: int, *, as_json: bool) -> None:
        self._run_dir, self._attempt, self._end, self._as_json = run_dir, attempt, end, as_json
        self._out, self._err = streams

    def run(self, grace_limit_s: float | None) -> None:
        name = os.path.basename(self._run_dir)
        kills = "" if grace_limit_s is None else f"; the place kills {grace_limit_s:g} s after its signal"
        self._say(f"run {name}, attempt {self._attempt}, supervised by this process (pid {os.getppid()}){kills}")
        directory = wire.attempt_dir(self._run_dir, self._attempt)
        tail = TailReader(f"{directory}/{wire.OUTPUT}")
        with ChangeWatch(directory, wake_fd=self._end) as changes:
            os.set_blocking(self._end, False)
            while (told := self._hear()) is None:
                self._pass(tail.read())
                changes.wait()
        self._pass(tail.read_rest())
        tail.close()
        self._tell_end(last=told == LAST)

    def _hear(self) -> bytes | None:
        try:
            return os.read(self._end, 1)
        except BlockingIOError:
            return None

    def _pass(self, pieces: Iterable[bytes]) -> None:
        for data in pieces:
            if not self._as_json:
                self._write(self._out, data)

    def _tell_end(self, *, last: bool) -> None:
        view = observe_run(self._run_dir, attempt=self._attempt)
        code = view.exit_code
        self._say(f"attempt {self._attempt} of {view.run_id}: {view.condition}, exit code {code}: {view.note}")
        if last and self._as_json:
            followed = read_followed(self._run_dir, 0 if code is None else code)
            text = json.dumps({"schema": SCHEMA, **wire.encode(followed)}, indent=1, ensure_ascii=False)
            self._write(self._out, f"{clean_json(text)}\n".encode("utf-8", "backslashreplace"))

    def _say(self, text: str) -> None:
        with contextlib.suppress(OSError):
            self._write(self._err, f"holdfast: {text}\n".encode("utf-8", "backslashreplace"))

    def _write(self, descriptor: int, data: bytes) -> None:
        """Write all of it, also to a pipe that the place keeps non-blocking for itself."""
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(descriptor, view) :]
            except BlockingIOError:
                select.select([], [descriptor], [])
