"""Measures how often runs are interrupted here, for the cadence of checkpoints (CKPT-09, SPOT-03). Pure."""

from __future__ import annotations

from collections.abc import Iterable

PRIOR_S = 3 * 3600.0
"""What is assumed of a box that nobody has watched yet, and counted as one observation: three hours."""


def mean_time_between(running_times_s: Iterable[float], *, prior_s: float = PRIOR_S) -> float | None:
    """Mean seconds between interruptions, from the running times of the attempts that were interrupted.

    (prior + sum of the running times) / (1 + their number): the prior is one more observation, so that a single early
    interruption does not make a job save all the time, and after some of them the prior hardly counts. None without
    any: then nothing was observed, and whoever asks has a default of its own.
    """
    seen = [max(0.0, value) for value in running_times_s]
    return (prior_s + sum(seen)) / (1 + len(seen)) if seen else None
