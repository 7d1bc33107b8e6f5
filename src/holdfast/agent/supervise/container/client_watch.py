"""Whether the runtime's client leaves once all inside have ended.

Its end is the job's end. One whose daemon hangs, or that somebody has stopped, would hold the run and its cards for
ever; what ended is known without it: the first process by the kernel, the command by what was written inside.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.host.process import pidfd

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.agent.supervise.loop import Loop
    from holdfast.model.identity import ProcessId

LEAVES_WITHIN_S = 60.0
"""It still hands on the last output, to a disk that may be slow, and Podman's takes its container's mounts away."""


class ClientWatch:
    """One watch; calls `emptied` when all inside have ended, and `then` when the client is late, again and again."""

    def __init__(self, loop: Loop, then: Callable[[], None], emptied: Callable[[], None]) -> None:
        """Nobody is watched before `begin`."""
        self._loop, self._then, self._emptied = loop, then, emptied
        self._held: pidfd.HeldProcess | None = None
        self._begun = False

    def begin(self, init: ProcessId) -> None:
        """Watch the first process inside; a second time is nothing."""
        if self._begun:
            return
        self._begun = True
        self._held = pidfd.hold_process(init)
        if self._held is None:
            self._await_client()
        else:
            self._loop.add_process(self._held, self._on_empty)

    def _on_empty(self) -> None:
        self._let_go()
        self._await_client()
        self._emptied()

    def _await_client(self) -> None:
        self._loop.timers.arm("client", LEAVES_WITHIN_S, self._tell)

    def _tell(self) -> None:
        self._await_client()
        self._then()

    def _let_go(self) -> None:
        if self._held is not None:
            self._loop.remove_process(self._held)
            self._held.close()
            self._held = None

    def end(self) -> None:
        """The client has left, or nobody waits for it any more."""
        self._let_go()
        self._loop.timers.disarm("client")
