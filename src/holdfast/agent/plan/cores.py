"""How many cores a job has here: what the box, its group and its own limits leave it (LIM-08)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.core.job.limits import count_cores
from holdfast.host.contain.tree import read_effective

if TYPE_CHECKING:
    from holdfast.model.job import Limits


def count_job_cores(limits: Limits) -> float:
    """The cores that a job with these limits has when it is started from here; whole or in part, above 0."""
    allowed = os.sched_getaffinity(0)
    return count_cores(limits, read_effective().cpus or float(len(allowed)), allowed)
