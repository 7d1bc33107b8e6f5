"""How many jobs without cards a box takes at once; apart from `presence`, so that a wait loads no control groups."""

from __future__ import annotations

import os

from holdfast.host.contain.tree import read_effective


def count_cpu_slots() -> int:
    """How many run at once where nobody said otherwise: the CPUs that this account may use."""
    cpus = read_effective().cpus
    return max(1, int(cpus)) if cpus is not None else (os.cpu_count() or 1)
