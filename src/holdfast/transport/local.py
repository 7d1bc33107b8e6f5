"""This machine as a place: the same calls, through the same frame, with no link in between."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from holdfast.model.errors import CutOff, HoldfastError, Unreachable
from holdfast.model.place import LOCAL

from .calls import Calls
from .child import Child, Ending
from .frame import build_plain_line


class LocalTransport(Calls):
    """Commands through ``sh -c`` on this machine. A command that is given up is ended, with its process group."""

    name = LOCAL
    place = LOCAL

    def open_terminal(self, script: str, words: Sequence[str] = ()) -> int:
        """As of `base.Transport`."""
        return subprocess.call(["/bin/sh", "-c", build_plain_line(script, words)])

    def _start(self, line: str, nonce: str, stdin: int) -> Child:
        try:
            return Child(["/bin/sh", "-c", line], nonce, stdin=stdin, env=None, group=True)
        except OSError as error:
            raise Unreachable(
                f"{LOCAL}: /bin/sh cannot be started: {error.strerror}", details={"place": LOCAL, "why": "shell"}
            ) from error

    def _explain(self, ending: Ending) -> HoldfastError:
        return CutOff(
            f"{LOCAL}: the command was ended from outside (status {ending.returncode})",
            hint="ask again: whether it had an effect is not known",
            details={"place": LOCAL, "why": "ended"},
        )
