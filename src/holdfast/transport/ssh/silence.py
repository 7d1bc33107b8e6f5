"""A connection of the user's own that ssh does not watch: whether it still carries anything, once nothing comes.

Ours are watched by ssh itself (`ServerAliveInterval`). Through one that was opened without it, a call would wait for as
long as TCP does, which may be for ever.
"""

from __future__ import annotations

import subprocess
import time
from types import TracebackType

from holdfast.transport.child import Silent

from .command import choose_environment


class SilenceCheck:
    """When nothing came for a while, a second call over the same connection; no answer to that is `Silent`."""

    def __init__(self, argv: list[str], *, quiet_s: float, answer_s: float) -> None:
        """`argv`: a call that does nothing, and ends with any answer."""
        self._argv, self._quiet_s, self._answer_s = argv, quiet_s, answer_s
        self._call: subprocess.Popen[bytes] | None = None
        self.due = time.monotonic() + quiet_s

    def __enter__(self) -> SilenceCheck:  # noqa: PYI034 - nothing is derived from it
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_call()

    def note(self, *, heard: bool) -> None:
        """As of `child.Silence`."""
        now = time.monotonic()
        if heard or (self._call is not None and self._call.poll() is not None):
            # Whatever it answered, an answer came: a connection that has ended ends the call that is followed.
            self._end_call()
            self.due = now + self._quiet_s
        elif now < self.due:
            return
        elif self._call is None:
            self._begin_call()
            self.due = now + self._answer_s
        else:
            raise Silent

    def _begin_call(self) -> None:
        null = subprocess.DEVNULL
        try:
            self._call = subprocess.Popen(
                self._argv, stdin=null, stdout=null, stderr=null, start_new_session=True, env=choose_environment()
            )
        except OSError:
            return  # no process to be had: nothing is known, and it is tried again

    def _end_call(self) -> None:
        if self._call is not None:
            self._call.kill()
            self._call.wait()
            self._call = None
