"""The last save before leaving, where one fits before the end that is known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .ranks.agreement import Agreement, AgreementLost
from .reporting.heartbeat import write_stderr
from .stopping.budget import Budget

if TYPE_CHECKING:
    from .checkpointer import Checkpointing
    from .stopping.watch import StopMonitor

FLUSH = "flush"
FLUSH_WAIT_S = 60.0


def save_before_leaving(
    checkpoints: Checkpointing, watch: StopMonitor, agreement: Agreement | None, own: dict[str, Any], rank: int
) -> bool:
    """Whether everything up to this step is durable, after a last save where one fits before the end.

    `agreement` is that of several ranks, which all save or none; None: there is one only.
    """
    checkpoints.saver.wait(watch.patience())
    if checkpoints.is_durable(own["step"]):
        return True
    left = watch.time_left()  # after the wait: what is left of it counts
    fits, words = Budget.flush_fits(left, checkpoints.save_seconds)
    if checkpoints.busy:
        fits, words = False, "the last save is left out: the one before it is still under way"
    if agreement is not None:
        fits = _agree(agreement, rank, fits=fits)
    if not fits:
        if rank == 0:
            write_stderr(words)
        return False
    why = "" if watch.reason is None else watch.reason.why
    return checkpoints.save_now(own, f"stop ({why})", timeout=watch.patience)


def _agree(agreement: Agreement, rank: int, *, fits: bool) -> bool:
    """Either all ranks save or none: the clock of the first one decides."""
    try:
        if rank == 0:
            agreement.publish(FLUSH, b"1" if fits else b"0")
            return fits
        return agreement.wait_for(FLUSH, FLUSH_WAIT_S) == b"1"
    except (AgreementLost, OSError) as error:
        write_stderr(f"no last save: {error}")
        return False
