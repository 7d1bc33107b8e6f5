"""When to stop: signals, deadlines, and whether one more save still fits (LIB-01, LIB-03, SPOT-01).

Everything here but the signal handlers is pure. The loop asks once per step, not once per epoch (B-52).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping

from holdfast.model.record import record

from .signals import ShieldedInit, StopSignals, shield_worker

__all__ = [
    "Budget",
    "Deadline",
    "ShieldedInit",
    "StepClock",
    "StopReason",
    "StopSignals",
    "after_signal",
    "earliest_deadline",
    "grace_s",
    "shield_worker",
]

TORCHRUN_GRACE_S = 30.0
"""What torchrun leaves its ranks between TERM and KILL when nothing else is set.

Source: torch/distributed/launcher/api.py, ``TORCH_ELASTIC_SHUTDOWN_TIMEOUT``, default 30."""

DEADLINES = (("HOLDFAST_DEADLINE", "walltime of the run"), ("SLURM_JOB_END_TIME", "SLURM_JOB_END_TIME"))
"""Variables that hold an end in epoch seconds, and how each is called. Source of the second: sbatch(1), output
environment variables."""

STEPS_KEPT = 256


@record
class StopReason:
    """Why the loop ends: `why` is signal, deadline, operator, memory, user, nonfinite or another word of stop.json."""

    why: str
    detail: str
    signum: int = 0


@record
class Deadline:
    """The moment after which nothing runs any more, in seconds of `time.monotonic`, and who says so."""

    at_monotonic: float
    source: str


def earliest_deadline(
    environ: Mapping[str, str], *, time_limit_s: float | None, now_epoch: float, now_monotonic: float
) -> tuple[Deadline | None, tuple[str, ...]]:
    """The first of the known ends, and a sentence about each value that is none.

    Epoch seconds are converted once, here, so that a wall clock which is set later moves nothing.

    Args:
        environ: Where `DEADLINES` are looked up.
        time_limit_s: The script's own limit, counted from now.
        now_epoch: The wall clock, in seconds since 1970.
        now_monotonic: `time.monotonic` at the same moment.

    Raises:
        ValueError: `time_limit_s` is not a number of seconds above 0.
    """
    found, problems = [], []
    for name, source in DEADLINES:
        text = environ.get(name, "")
        end = _positive(text)
        if end is not None:
            found.append(Deadline(now_monotonic + (end - now_epoch), source))
        elif text:
            problems.append(f"{name}={text[:40]!r} is not a time in seconds since 1970, so it is not a deadline")
    if time_limit_s is not None:
        if not 0 < time_limit_s < math.inf:
            raise ValueError(f"time_limit={time_limit_s!r} is not a number of seconds above 0")
        found.append(Deadline(now_monotonic + time_limit_s, "time_limit="))
    return min(found, key=lambda deadline: deadline.at_monotonic, default=None), tuple(problems)


def grace_s(environ: Mapping[str, str]) -> float | None:
    """Seconds between the request to stop and the KILL; None when nobody says.

    What holdfast planned for the run; else what torchrun was told; else torchrun's default when it started us. Under
    both, the supervisor's word counts: it is the one that was given for this run.
    """
    for name in ("HOLDFAST_GRACE", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"):
        seconds = _seconds(environ.get(name, ""))
        if seconds is not None:
            return seconds
    return TORCHRUN_GRACE_S if environ.get("TORCHELASTIC_RUN_ID") else None


def after_signal(at: float, grace: float | None) -> Deadline | None:
    """The deadline that a signal at `at` (monotonic seconds) sets; None when the grace is unknown."""
    return None if grace is None else Deadline(at + grace, "grace after the signal")


class Budget:
    """Whether what must still be done fits before a deadline. Pure: all times are seconds given by the caller."""

    STEPS = 2.0
    """A step that begins now may be the slowest, and the check comes once per step."""
    SAVES = 1.5
    """A save into a busy disk takes longer than the one that was measured."""
    MARGIN_S = 2.0
    """For closing loaders, trackers and process groups, and for the interpreter's exit."""

    @classmethod
    def needed_s(cls, step_p99_s: float, save_s: float) -> float:
        """Seconds that must be left when another step begins."""
        return cls.STEPS * step_p99_s + cls.SAVES * save_s + cls.MARGIN_S

    @classmethod
    def must_stop(cls, now: float, deadline: Deadline, step_p99_s: float, save_s: float) -> bool:
        """Whether to save and leave at this step boundary, because after another step the save might not fit.

        Args:
            now: `time.monotonic`.
            deadline: The end that counts.
            step_p99_s: What a slow step takes; 0 when unknown.
            save_s: Measured time of a save until it is durable; 0 when unknown.
        """
        return deadline.at_monotonic - now <= cls.needed_s(step_p99_s, save_s)

    @staticmethod
    def flush_fits(left_s: float | None, save_s: float | None) -> tuple[bool, str]:
        """Whether to try one last save, and the sentence that says why.

        An unknown time is worth a try: a save that is cut off harms no earlier checkpoint.
        """
        if left_s is None:
            return True, "a last save is tried: nobody says how much time is left"
        if save_s is None:
            return True, f"a last save is tried: none was measured yet, {max(left_s, 0.0):.1f} s are left"
        if save_s <= left_s:
            return True, f"a last save fits: it takes about {save_s:.1f} s and {left_s:.1f} s are left"
        left = max(left_s, 0.0)
        return False, (
            f"the last save is left out: it takes about {save_s:.1f} s and only {left:.1f} s are left; "
            "the newest checkpoint stands"
        )


class StepClock:
    """Durations of the last `STEPS_KEPT` steps, in seconds; `add` is the deque's own append, without a Python frame."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=STEPS_KEPT)
        self.add = self._recent.append

    def p99(self) -> float:
        """What a slow step takes, of 99 in 100 at most; 0 before the first. Sorts up to 256 numbers (about 10 us)."""
        durations = sorted(self._recent)
        return durations[math.ceil(0.99 * len(durations)) - 1] if durations else 0.0

    def rate(self) -> float:
        """Steps per second over what is kept; 0 before the first."""
        spent = sum(self._recent)
        return len(self._recent) / spent if spent > 0 else 0.0


def _seconds(text: str) -> float | None:
    """A finite number of seconds from 0, or None."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value < math.inf else None


def _positive(text: str) -> float | None:
    return _seconds(text) or None
