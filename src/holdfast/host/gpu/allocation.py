"""Allocations that somebody else decides: inside Slurm or Kubernetes holdfast takes no lease, it only verifies.

Source: the environment that srun(1) and sbatch(1) give a step, the service variables that the kubelet gives every
container (kubernetes.io, "Connecting Applications with Services"), and the list of UUIDs that NVIDIA's device plugin
sets in a pod (k8s-device-plugin, "device list strategy: envvar"). ``all`` in a pod comes from the image and gives
nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.model.record import record

_SLURM = ("CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "SLURM_STEP_GPUS", "SLURM_JOB_GPUS")
_NODE_WIDE = frozenset({"SLURM_STEP_GPUS", "SLURM_JOB_GPUS"})
_KUBERNETES = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
_NO_DEVICES = frozenset({"", "none", "void", "NoDevFiles"})


@record
class Allocation:
    """What a scheduler gave us: `devices` as it wrote them (indexes or UUIDs), None when it says nothing about cards.

    `source` is the variable that names the devices.
    """

    scheduler: str
    name: str
    devices: tuple[str, ...] | None
    source: str | None = None

    @property
    def node_wide(self) -> bool:
        """Whether its indexes count all cards of the node, also those that are hidden from us."""
        return self.source in _NODE_WIDE

    def describe(self) -> str:
        """What it gave, in words."""
        if self.source is None:
            return f"{self.scheduler} job {self.name} names no cards in any variable that holdfast knows"
        return f"{self.scheduler} job {self.name} gave {self.source}={','.join(self.devices or ()) or 'none'}"


def imposed_allocation(environ: Mapping[str, str]) -> Allocation | None:
    """The allocation we run inside, or None on a box where leases decide."""
    job = environ.get("SLURM_JOB_ID")
    if job:
        step = environ.get("SLURM_STEP_ID")
        return _read("slurm", f"{job}.{step}" if step else job, environ, _SLURM)
    if environ.get("KUBERNETES_SERVICE_HOST"):
        pod = environ.get("HOSTNAME", "pod")
        return _read("kubernetes", pod, environ, _KUBERNETES)
    return None


def _read(scheduler: str, name: str, environ: Mapping[str, str], variables: tuple[str, ...]) -> Allocation:
    for variable in variables:
        value = environ.get(variable)
        if value is None or (variable == "NVIDIA_VISIBLE_DEVICES" and value == "all"):
            continue
        parts = () if value.strip() in _NO_DEVICES else value.split(",")
        return Allocation(scheduler, name, tuple(part.strip() for part in parts if part.strip()), variable)
    return Allocation(scheduler, name, None)
