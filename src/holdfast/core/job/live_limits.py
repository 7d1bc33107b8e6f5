"""What of a job can be changed while it runs, and the job that a change makes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.model import wire
from holdfast.model.job import JobSpec, Limits
from holdfast.model.units import format_bytes

LIVE_FIELDS = frozenset(
    {
        *("timeouts.total_s", "timeouts.run_s", "gpu.max_hold_s", "priority"),
        *("limits.memory_bytes", "limits.memory_high_bytes", "limits.swap_bytes", "limits.tasks"),
        *("limits.cpus", "limits.cpu_weight", "limits.affinity"),
    }
)
"""Fields of `JobSpec` that a running job can be given anew."""


def change_fields(spec: JobSpec, values: Mapping[str, object]) -> JobSpec:
    """A job with other values in some of its `LIVE_FIELDS`, given as JSON.

    Raises:
        WireError: a field is none of them, or a value has the wrong form.
    """
    encoded: dict[str, Any] = wire.encode(spec)
    for name, value in values.items():
        if name not in LIVE_FIELDS:
            raise wire.WireError(f"{name[:40]} cannot be changed while the job runs")
        group, _, leaf = name.rpartition(".")
        (encoded[group] if group else encoded)[leaf] = value
    return wire.decode(JobSpec, encoded)


def find_new_memory(before: Limits, after: Limits) -> int | None:
    """The memory limit that a live tree is to be held by from now on; None where it has that one already, or none."""
    return None if after.memory_bytes == before.memory_bytes else after.memory_bytes


def describe_excess(used_bytes: int, limit_bytes: int) -> str:
    """Why a tree that uses so much memory cannot have a limit; empty where it can."""
    if used_bytes < limit_bytes:
        return ""
    used, asked = format_bytes(used_bytes), format_bytes(limit_bytes)
    return f"it uses {used} of memory, so a limit of {asked} would kill it"
