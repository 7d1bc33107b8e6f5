"""Allocations that somebody else decides: inside Slurm or Kubernetes holdfast takes no lease, it only verifies.

Source: the environment that srun(1) and sbatch(1) give a step, and the service variables that the kubelet gives every
container (kubernetes.io, "Connecting Applications with Services").
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_NO_DEVICES = frozenset({"", "none", "void", "NoDevFiles"})


@dataclass(frozen=True, slots=True)
class Allocation:
    """What a scheduler gave us: `devices` as it wrote them (indexes or UUIDs), None when it says nothing about cards.

    `source` is the variable that names the devices.
    """

    scheduler: str
    name: str
    devices: tuple[str, ...] | None
    source: str | None = None


def imposed_allocation(environ: Mapping[str, str]) -> Allocation | None:
    """The allocation we run inside, or None on a box where leases decide."""
    job = environ.get("SLURM_JOB_ID")
    if job:
        step = environ.get("SLURM_STEP_ID")
        names = ("CUDA_VISIBLE_DEVICES", "SLURM_STEP_GPUS", "SLURM_JOB_GPUS")
        return _read("slurm", f"{job}.{step}" if step else job, environ, names)
    if environ.get("KUBERNETES_SERVICE_HOST"):
        pod = environ.get("HOSTNAME", "pod")
        return _read("kubernetes", pod, environ, ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"))
    return None


def _read(scheduler: str, name: str, environ: Mapping[str, str], variables: tuple[str, ...]) -> Allocation:
    for variable in variables:
        value = environ.get(variable)
        if value is None or (variable == "NVIDIA_VISIBLE_DEVICES" and value == "all"):
            continue
        parts = () if value.strip() in _NO_DEVICES else value.split(",")
        return Allocation(scheduler, name, tuple(part.strip() for part in parts if part.strip()), variable)
    return Allocation(scheduler, name, None)
