"""The two ways to call a box, on top of a child that carries one framed answer; local and ssh only start it."""

from __future__ import annotations

import contextlib
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from holdfast.model.errors import HoldfastError, TooLate

from .base import MOST_BYTES, Done
from .child import STALL_S, Child, Ending, Late, Silence, Silent, Sink, Woken
from .frame import build_line, make_nonce

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

MOST_AT_ONCE = 8
"""Calls at once through one connection. Source: MaxSessions is 10 by default (sshd_config(5)), and others use some."""
START_LIMIT_S = 60.0
"""How long a followed command may take to begin: slow homes and module systems take 20 s."""
WOKEN = -1


class Calls:
    """What `base.Transport` asks for, for a subclass that starts the child and explains how it failed."""

    name: str
    place: str
    """The place's name, for messages and details."""
    stall_s = STALL_S
    """How long input may stand still, as of `Child.serve`."""

    def __init__(self) -> None:
        """Nothing is started before the first call."""
        self._slots = threading.BoundedSemaphore(MOST_AT_ONCE)

    def _start(self, line: str, nonce: str, stdin: int) -> Child:
        """Start the child that has the box's login shell read `line`.

        Raises:
            HoldfastError: it could not be started.
        """
        raise NotImplementedError

    def _explain(self, ending: Ending) -> HoldfastError:
        """The error for a child that gave no whole answer."""
        raise NotImplementedError

    def _watch_silence(self) -> AbstractContextManager[Silence | None]:
        """What looks after the link of one followed call; None: the child notices by itself that it is dead."""
        return contextlib.nullcontext()

    def _explain_silence(self) -> HoldfastError:
        """The error for a link on which nothing gets through."""
        raise NotImplementedError

    def run(
        self,
        script: str,
        words: Sequence[str] = (),
        *,
        stdin: bytes | Iterable[bytes] = b"",
        limit_s: float,
        most_bytes: int = MOST_BYTES,
        stall_s: float | None = None,
    ) -> Done:
        """As of `base.Transport`; output and errors are each kept up to `most_bytes`."""
        deadline = time.monotonic() + limit_s
        stall_s = self.stall_s if stall_s is None else stall_s
        nonce = make_nonce()
        line = build_line(nonce, script, words)
        out, err = _Kept(most_bytes), _Kept(most_bytes)
        if not self._slots.acquire(timeout=limit_s):
            seen = f"{MOST_AT_ONCE} calls were in the way; nothing was sent"
            raise self._too_late(limit_s, seen, "ask again when one of them has ended")
        try:
            child = self._start(line, nonce, subprocess.DEVNULL if stdin == b"" else subprocess.PIPE)
            with contextlib.closing(child):
                child.send(stdin)
                try:
                    child.serve(out.add, err.add, deadline=deadline, stall_s=stall_s)
                except Late as late:
                    raise self._too_late(
                        self.stall_s if late.stalled else limit_s, *_describe(late, self.place)
                    ) from None
                if child.code is None:
                    raise self._explain(child.ending())
                return Done(code=child.code, out=out.join(), err=err.join(), cut=out.cut or err.cut)
        finally:
            self._slots.release()

    def follow(
        self,
        script: str,
        words: Sequence[str] = (),
        *,
        out: Sink,
        err: Sink,
        stdin_fd: int | None = None,
        wake_fd: int | None = None,
        woken: Callable[[], bool] | None = None,
    ) -> int:
        """As of `base.Transport`. It takes none of the places of `run`."""
        nonce = make_nonce()
        line = build_line(nonce, script, words)
        wake = None if wake_fd is None else (wake_fd, woken or (lambda: True))
        child = self._start(line, nonce, subprocess.DEVNULL if stdin_fd is None else stdin_fd)
        with contextlib.closing(child), self._watch_silence() as silence:
            begin_by = time.monotonic() + START_LIMIT_S
            try:
                child.serve(out, err, start_deadline=begin_by, wake=wake, silence=silence)
            except Woken:
                return WOKEN
            except Silent:
                raise self._explain_silence() from None
            except Late as late:
                raise self._too_late(START_LIMIT_S, *_describe(late, self.place)) from None
            if child.code is None:
                raise self._explain(child.ending())
            return child.code

    def _too_late(self, limit_s: float, seen: str, hint: str) -> TooLate:
        return TooLate(
            f"{self.place}: no answer within {limit_s:g} s ({seen})",
            hint=hint,
            details={"place": self.place, "why": "limit"},
        )


class _Kept:
    """Output that is kept up to a limit; the rest is read and dropped."""

    def __init__(self, most: int) -> None:
        self._pieces: list[bytes] = []
        self._room = most
        self.cut = False

    def add(self, data: bytes) -> None:
        """Keep what there is room for."""
        kept = data[: self._room]
        self._room -= len(kept)
        self.cut = self.cut or len(kept) < len(data)
        self._pieces.append(kept)

    def join(self) -> bytes:
        """All that was kept."""
        return b"".join(self._pieces)


def _describe(late: Late, place: str) -> tuple[str, str]:
    """What was seen of a call that ended too late, and what to do."""
    hint = "ask again: whether it had an effect there is not known"
    if late.stalled:
        return "it takes no more of what is sent", hint
    if late.begun:
        return "it began, and did not end", hint
    return "it has not begun", f"{hint}; if it stays so, see that a login at {place} comes to its end"
