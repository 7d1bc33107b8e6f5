"""What is asked of a runtime about a container that runs or has just ended, beside the supervisor's loop."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from holdfast.host.container import members as inside

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.agent.supervise.context import SupervisorContext
    from holdfast.agent.supervise.loop import Child
    from holdfast.host.container.runtime import Runtime
    from holdfast.model.container import ContainerRecord

    from .room import Room

ASK_WITHIN_S = 10.0
END_WITHIN_S = 45.0
"""Two calls of 20 s each: to go on, and a signal. Who is given up here leaves its client, so each call is first."""


class RuntimeRequests:
    """Requests of one container. Each ends by itself, and its client with it, also when nobody waits any more."""

    def __init__(self, context: SupervisorContext) -> None:
        """Nothing is asked yet."""
        self._context = context
        self._ending: Child | None = None

    def end(self, runtime: Runtime, container: ContainerRecord, number: int, *, refused: bool) -> None:
        """A container that was signalled is to act on it: it goes on where somebody has paused it.

        With `refused` the kernel did not let us signal all inside: the runtime is asked to.
        """
        paused = inside.is_paused(container)
        if not (paused or refused) or (self._ending is not None and self._ending.under_way):
            return
        recorder, name = self._context.recorder, container.runtime.value
        if paused:
            recorder.event("container_paused", runtime=name, id=container.id)

        def work() -> object:
            if paused:
                runtime.unpause(container.id)
            if refused:
                runtime.signal(container.id, number)
            return True

        def fail(why: str) -> None:
            recorder.log(f"{name}, asked for {signal.Signals(number).name}: {why}")
            if paused:
                recorder.event("container_stays_paused", why=why[:400])

        self._ending = self._context.loop.run_child(work, lambda _: None, fail, within_s=END_WITHIN_S)

    def ask_memory(
        self, runtime: Runtime, container: ContainerRecord, room: Room, then: Callable[[bool], None]
    ) -> None:
        """Call `then` with whether the kernel killed inside for want of memory.

        The container's group and its counters go with its end: what was read inside before that counts. Where nobody
        was left inside to read (all of it was killed, or the image has no Python) the runtime is asked.
        """
        status = self._context.recorder.read_status()
        if status is None or room.tells_memory_kills():
            then(status is not None)
            return
        if status.exit_code != 128 + signal.SIGKILL or room.read_end(status) is not None:
            then(False)
            return
        self._context.loop.run_child(
            lambda: runtime.was_out_of_memory(container.id),
            lambda answer: then(answer is True),
            lambda _why: then(False),
            within_s=ASK_WITHIN_S,
        )
