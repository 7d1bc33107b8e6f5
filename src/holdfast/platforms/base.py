"""The contract between holdfast and a place where jobs run, stated here once: what a caller asks for, and no more.

Whatever a platform is, its supervisor and its run directory are the same: it starts the one and reaches the other. What
is asked of a run that is there (a look, a stop) goes to the run itself, by the verb that a person would type there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from holdfast.model.record import record
from holdfast.model.run import State

if TYPE_CHECKING:
    from holdfast.model.errors import HoldfastError
    from holdfast.model.order import Order, RunRef


@record
class ProvenStart:
    """Where a start stands: the newest state on record, and the exit code if it has ended already.

    `warnings` say by which ways nobody can be told of the run.
    """

    run_id: str
    run_dir: str
    attempt: int
    state: State
    exit_code: int | None
    warnings: tuple[str, ...] = ()


@record
class OrderResult:
    """What became of an order: the run, and where its start stands when that was to be proven.

    `problem` is what went wrong once the run was there: it is to be looked at, and not to be ordered anew.
    """

    ref: RunRef
    started: ProvenStart | None = None
    problem: HoldfastError | None = None


class Platform(Protocol):
    """A place where jobs run."""

    kind: str
    """``local``, ``ssh`` or ``slurm``."""

    def submit(self, order: Order, *, prove_s: float | None = None) -> OrderResult:
        """Take the order, whose code is there: on return its run exists, and its supervisor has been started.

        The same order may be sent any number of times, and is one run. With `prove_s` the start is waited for: until
        the job has lived for so many seconds, has ended, or stands in line for a card.

        Raises:
            Taken: the run id belongs to another job.
            PlaceError: no answer; whether there is a run is not known, and to ask again is right.
            HoldfastError: it was not taken; nothing runs.
        """
        ...
