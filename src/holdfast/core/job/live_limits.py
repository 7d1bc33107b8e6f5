"""What of a job can be changed while it runs, and the job that a change makes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.model import wire
from holdfast.model.job import JobSpec

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
