"""When the place ends a supervisor in the foreground: asked again now and then, and told to the job.

A site may give a running job more time, or less. It is told by ``deadline.json``, by which the training library goes as
soon as it is there. Loaded where a scheduler starts the runs, alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from holdfast.host.clock import format_utc

if TYPE_CHECKING:
    from holdfast.agent.supervise.context import SupervisorContext

EVERY_S = 300.0
"""What a scheduler is asked by thousands of jobs is asked seldom."""
WITHIN_S = 30.0


class EndingPlace(Protocol):
    """A place that ends us at `end_s` (epoch seconds, None: not known), as far as it has said; `ask_end` asks it."""

    end_s: float | None

    def ask_end(self) -> float | None:
        """When it ends us; None where it does not say."""
        ...


class PlaceEndWatch:
    """Asks the place now and then when it ends us, in a child: the supervisor waits for no scheduler."""

    def __init__(self, context: SupervisorContext, place: EndingPlace) -> None:
        """Nothing is asked before `begin`: whoever stands here has just asked."""
        self._context, self._place = context, place

    def begin(self) -> None:
        """Ask every five minutes from now on."""
        self._context.loop.timers.arm("place_end", EVERY_S, self._look)

    def _look(self) -> None:
        self._context.loop.run_child(self._place.ask_end, self._note, lambda _: None, within_s=WITHIN_S)
        self.begin()

    def _note(self, end_s: float | None) -> None:
        if end_s is not None and end_s != self._place.end_s:
            self._place.end_s = end_s
            self._context.recorder.note_deadlines(place_end=end_s)
            self._context.recorder.event("place_end", at=format_utc(end_s))
