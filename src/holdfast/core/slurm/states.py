"""The states of Slurm's jobs: which of them are an end, and what end that is of a run that left no record of its own.

A run's own exit record is the truth; this table speaks only where there is none, because everything was killed.
Source: squeue(1) and sacct(1), JOB STATE CODES, of Slurm 20.02 to 25.05. A state that is not in it is unknown: nothing
follows from it.
"""

from __future__ import annotations

from holdfast.model.record import record
from holdfast.model.run import StopCause
from holdfast.model.scheduler import Phase


@record
class StateMeaning:
    """What a state means. `cause` is why an end came that the run itself could not record; None: not told by it."""

    phase: Phase
    words: str
    cause: StopCause | None = None


_WAITING, _RUNNING, _SUSPENDED, _OVER = Phase.WAITING, Phase.RUNNING, Phase.SUSPENDED, Phase.OVER
STATES = {
    "PENDING": StateMeaning(_WAITING, "waits"),
    "REQUEUED": StateMeaning(_WAITING, "is to be started again"),
    "REQUEUE_FED": StateMeaning(_WAITING, "is to be started again by another cluster"),
    "REQUEUE_HOLD": StateMeaning(_WAITING, "was put back and is held"),
    "SPECIAL_EXIT": StateMeaning(_WAITING, "was put back with a special exit code, and is held"),
    "RESV_DEL_HOLD": StateMeaning(_WAITING, "is held: its reservation was deleted"),
    "CONFIGURING": StateMeaning(_WAITING, "has nodes, which are being made ready"),
    "POWER_UP_NODE": StateMeaning(_WAITING, "has nodes, which are being powered up"),
    "RUNNING": StateMeaning(_RUNNING, "runs"),
    "SIGNALING": StateMeaning(_RUNNING, "is being signalled"),
    "STAGE_OUT": StateMeaning(_RUNNING, "writes files out"),
    "STOPPED": StateMeaning(_SUSPENDED, "was stopped by a signal, and keeps its processors"),
    "SUSPENDED": StateMeaning(_SUSPENDED, "is suspended, and others have its processors"),
    "RESIZING": StateMeaning(_RUNNING, "changes its size"),
    "COMPLETING": StateMeaning(Phase.ENDING, "is ending"),
    "COMPLETED": StateMeaning(_OVER, "ended with exit code 0"),
    "FAILED": StateMeaning(_OVER, "failed"),
    "CANCELLED": StateMeaning(_OVER, "was cancelled", StopCause.SIGNAL),
    "TIMEOUT": StateMeaning(_OVER, "reached its time limit", StopCause.DEADLINE),
    "DEADLINE": StateMeaning(_OVER, "could not end before its deadline", StopCause.DEADLINE),
    "PREEMPTED": StateMeaning(_OVER, "was preempted", StopCause.PREEMPTION),
    "OUT_OF_MEMORY": StateMeaning(_OVER, "used more memory than it was given", StopCause.MEMORY),
    "NODE_FAIL": StateMeaning(_OVER, "lost a node"),
    "BOOT_FAIL": StateMeaning(_OVER, "its node did not come up"),
    "LAUNCH_FAILED": StateMeaning(_OVER, "could not be launched on its node"),
    "RECONFIG_FAIL": StateMeaning(_OVER, "its node could not be reconfigured"),
    "REVOKED": StateMeaning(Phase.UNKNOWN, "was started by another cluster, which is the one to ask"),
}


def find_meaning(state: str) -> StateMeaning:
    """What a state means as Slurm prints it: ``CANCELLED by 1000``, ``RUNNING+CLOUD`` and lower case too."""
    name = state.strip().upper().split(" ")[0].split("+")[0].split(",")[0]
    unknown = StateMeaning(Phase.UNKNOWN, f"is in the state {state[:60]!r}, which holdfast does not know")
    return STATES.get(name, unknown)
