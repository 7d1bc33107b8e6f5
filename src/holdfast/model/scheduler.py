"""What a scheduler says of the job of a run: an observation, which is not the run's state."""

from __future__ import annotations

from enum import Enum

from .record import record
from .run import StopCause

SCHEDULER_AWAY = "scheduler"
"""`details["why"]` of a `PlaceError`: the place answers, and its scheduler does not."""


class Phase(str, Enum):
    """Where a job stands."""

    WAITING = "waiting"
    RUNNING = "running"
    SUSPENDED = "suspended"
    """Its processes are kept from running: none of them hears anything before it is resumed."""
    ENDING = "ending"
    """Its processes are being ended; whether it is started again shows afterwards."""
    OVER = "over"
    UNKNOWN = "unknown"


@record
class SchedulerReport:
    """What a scheduler says of the job of a run. `native_id` is its own name for it, empty when it has none.

    `phase` says whether it waits, runs or is over; `state` and `reason` are its own words. `evidence` says in a
    sentence what was seen, `cause` why it ended where that is told; `advice` what can be changed.
    """

    native_id: str
    phase: Phase
    state: str
    reason: str = ""
    evidence: str = ""
    cause: StopCause | None = None
    advice: str = ""

    @property
    def pending(self) -> str:
        """What stands in a list for a run that it has not started: ``pending (Resources)``."""
        return f"pending ({self.reason})" if self.reason else "pending"
