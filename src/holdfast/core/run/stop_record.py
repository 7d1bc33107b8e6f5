"""Reads a training's stop record at an end that nobody here asked for (LIB-18, POST-09, SPOT-02). Pure.

The record is the job's claim, so it decides only where the exit status agrees with it: the library leaves with 143,
"stopped, resume me"; a script may turn that into 0 (then the record keeps an interrupted run from being a success), and
a launcher that starts the ranks ends with 1 when one of them did not end with 0 (torchrun raises ChildFailedError,
`accelerate launch` exits with 1). Any other status (a crash while leaving, a KILL) stays what it is, and the record is
only evidence.
"""

from __future__ import annotations

from holdfast.model.errors import EXIT_STOPPED, EXIT_TIMED_OUT
from holdfast.model.identity import WaitStatus
from holdfast.model.run import Outcome, StopRecord

EXIT_PREEMPTED = 143
"""128 + SIGTERM: as a shell reports a process that was asked to leave."""
EXIT_CAUSE = 1
"""Ended for a cause although the job itself said 0."""
LAUNCHER_FAILED = 1
ASIDE = {
    "signal": (Outcome.PREEMPTED, EXIT_PREEMPTED),
    "deadline": (Outcome.TIMED_OUT, EXIT_TIMED_OUT),
    "operator": (Outcome.STOPPED, EXIT_STOPPED),
    "user": (Outcome.STOPPED, EXIT_STOPPED),
}
"""Left in good order before all steps were done: outcome and exit code. `user`: the script's own decision."""
PLACE_END = ("deadline", "SLURM_JOB_END_TIME")
"""Why and detail of a training that left ahead of its place's own end (`training.stopping.budget.DEADLINES`): none of
the run's limits was reached, so it may go on, as after the place's warning."""
BROKEN = {
    "memory": "its memory neared a limit",
    "nonfinite": "a value was not finite",
    "save_failed": "a checkpoint could not be saved",
    "exception": "an exception",
}
"""Left because something was wrong: the words for it."""


def judge_leaving(stop: StopRecord, status: WaitStatus | None) -> tuple[Outcome, int, str] | None:
    """Outcome, exit code and evidence of an end without a request; None where the status alone decides.

    `status` is None when nobody witnessed the end (the box went down): then a record that everything was saved is the
    better evidence.
    """
    code = EXIT_PREEMPTED if status is None else status.exit_code
    ending = "its exit status was not witnessed" if status is None else f"the job ended with {status.describe()}"
    words = f"{describe_leaving(stop, sent=status is not None and status.asked)}; {ending}"
    if stop.why in ASIDE:
        # Exit code 0 after a decision of the script's own is that script's word: it stopped early and is content.
        content = stop.why == "user" and code == 0
        trusted = code in (0, EXIT_PREEMPTED) or (code == LAUNCHER_FAILED and stop.saved)
        unproven = status is None and not stop.saved
        ended = ASIDE["signal" if (stop.why, stop.detail) == PLACE_END else stop.why]
        return None if content or unproven or not trusted else (*ended, words)
    if stop.why in BROKEN and status is not None:
        return Outcome.FAILED, code or EXIT_CAUSE, words
    return None


def describe_leaving(stop: StopRecord, *, sent: bool = False) -> str:
    """What was saved and why it left: ``saved step 120, stopped by SIGTERM from outside``.

    `sent`: the signal was holdfast's own, for a stop that was asked for or because the job's supervisor was gone.
    """
    detail = f" ({stop.detail})" if stop.detail else ""
    reasons = {
        "signal": f"stopped by {stop.detail or 'a signal'}{', sent by holdfast' if sent else ' from outside'}",
        "operator": f"asked to stop{detail}",
        "user": f"stopped by its own script{detail}",
        "finished": f"all of its steps were done{detail}",
    }
    if stop.why == "deadline":
        return f"{describe_saved(stop)} before the deadline{detail}"
    reason = reasons.get(stop.why) or f"{BROKEN.get(stop.why, stop.why)}{detail}"
    return f"{describe_saved(stop)}, {reason}"


def describe_saved(stop: StopRecord) -> str:
    """What a resume begins from: ``saved step 120``, or that leaving saved nothing and which step is durable."""
    known = stop.checkpoint_step if stop.checkpoint_step is not None else stop.step
    if stop.saved:
        return "saved" if known is None else f"saved step {known}"
    if stop.checkpoint_step is None:
        return "saved nothing"
    at = "" if stop.step is None else f" at step {stop.step}"
    return f"saved nothing{at}, the last durable step is {stop.checkpoint_step}"
