"""A connection of its own that also listens on this machine's loopback, and carries what comes to the box's."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.core.control_characters import one_line
from holdfast.model.errors import Unsupported
from holdfast.model.place import Place
from holdfast.model.record import record

from .command import Sharing, Timing, build_options, find_program, target
from .transport import SshTransport

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from holdfast.transport.child import Silence

LOOPBACK = "127.0.0.1"
_OWN_FORWARD = re.compile(r"^((?:local|remote|dynamic)forward) (.*)$", re.MULTILINE | re.IGNORECASE)


@record
class Forward:
    """`port` of the box's loopback, which is `local` on this machine's."""

    port: int
    local: int


class ForwardingTransport(SshTransport):
    """Calls that each have a connection of their own; while one lasts the ports are open here.

    ssh listens before the command of the call begins, and ends with an error where it cannot.
    """

    def __init__(self, place: Place, forwards: Sequence[Forward], *, timing: Timing | None = None) -> None:
        """Nothing is started before the first call."""
        super().__init__(place, timing=timing)
        self._forwards = tuple(forwards)

    def _watch_silence(self) -> AbstractContextManager[Silence | None]:
        return contextlib.nullcontext()  # its connection is its own, which ssh watches

    def build_argv(self, line: str) -> list[str]:
        """As of `SshTransport`.

        Raises:
            Unsupported: the user's configuration would open other ports along with these.
        """
        config = self.read_config()
        own = _OWN_FORWARD.search(config.text)
        if own:
            # ssh has no way to leave these out and to keep ours: ClearAllForwardings clears both.
            raise Unsupported(
                f"{self.place}: ssh's configuration opens ports of its own for this host ({one_line(own[0], 100)}), "
                "which would be opened along with these",
                hint="move that line to another Host, or use it: `ssh -N HOST` opens what it says",
            )
        words = [f"{LOOPBACK}:{one.local}:{LOOPBACK}:{one.port}" for one in self._forwards]
        opened = [word for forward in words for word in ("-L", forward)]
        options = [*build_options(self._timing, Sharing(), forwards=True), *config.overrides]
        return [find_program(), *options, *opened, *target(self._place), line]
