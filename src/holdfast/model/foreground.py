"""A supervisor that stands in the foreground of a place: what the place's signals mean there, and when it kills."""

from __future__ import annotations

from collections.abc import Callable

from .record import record
from .run import StopCause


@record
class PlaceSignal:
    """What a signal of the place means, and how long after it the place kills (None: not known); `detail` says more."""

    cause: StopCause
    kills_in_s: float | None = None
    detail: str = ""


@record(frozen=False)
class Foreground:
    """How a place treats the supervisor that is its own process: a batch step, process 1 of a container, a cell.

    `term` is what TERM stands for: ``preemption`` or ``signal`` (somebody stopped it). `grace_limit_s` is how long
    after its signal the place kills; None: not known. `own_group` False: no control group is made, because the
    scheduler finds what it has to end by its own. `bystanders` are pids of children that are none of the job's.
    `heard` is the first signal that asked for a stop, 0 without: nothing more is begun here then. Where the place can
    be asked, `explain` tells what a signal means, within seconds. `beside` begins what the place has the supervisor do
    beside its job, and is given its context.
    """

    term: StopCause = StopCause.SIGNAL
    grace_limit_s: float | None = None
    own_group: bool = True
    bystanders: frozenset[int] = frozenset()
    heard: int = 0
    explain: Callable[[int], PlaceSignal] | None = None
    beside: Callable[..., None] | None = None
