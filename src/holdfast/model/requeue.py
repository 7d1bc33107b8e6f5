"""What the queue decided after an attempt without success, and where the next one may run."""

from __future__ import annotations

from enum import Enum

from .record import record


class RequeueAction(str, Enum):
    """What the queue does after an attempt without success."""

    NOTHING = "nothing"
    SAME = "same"
    ALONE = "alone"
    """The next attempt shares its cards with nobody."""
    LARGER = "larger"
    """The next attempt needs cards with more memory."""


@record
class AttemptPlacement:
    """Where an attempt may run, beyond what the job says: the content of ``placement.json``.

    `alone`: it shares no card although the job would. `min_total_bytes`: each card must have more room than this.
    """

    alone: bool = False
    min_total_bytes: int | None = None
    why: str = ""


@record
class Requeue:
    """What follows, why (for people), the pause before it in seconds, and where it may run."""

    kind: RequeueAction
    why: str
    wait_s: float = 0.0
    placement: AttemptPlacement | None = None

    @property
    def again(self) -> bool:
        """Whether another attempt follows."""
        return self.kind is not RequeueAction.NOTHING
