"""Allocations that somebody else decides: inside Slurm or Kubernetes holdfast takes no lease, it only verifies.

Source: the environment that srun(1) and sbatch(1) give a step, the service variables that the kubelet gives every
container (kubernetes.io, "Connecting Applications with Services"), and the list of UUIDs that NVIDIA's device plugin
sets in a pod (k8s-device-plugin, "device list strategy: envvar"). ``all`` in a pod comes from the image and gives
nothing. ``void`` is what a CDI spec leaves there: the cards were put into the pod by other means
(NVIDIA/nvidia-container-toolkit#395), so they are those that can be seen.

A variable alone proves nothing: a shell, a tmux, an exported file keep it when the allocation is another's.
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.host.process import surroundings
from holdfast.model.record import record

SLURM, KUBERNETES = "slurm", "kubernetes"
_VARIABLES = {SLURM: "SLURM_JOB_ID", KUBERNETES: "KUBERNETES_SERVICE_HOST"}
_SLURM = ("CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "SLURM_STEP_GPUS", "SLURM_JOB_GPUS")
_NODE_WIDE = frozenset({"SLURM_STEP_GPUS", "SLURM_JOB_GPUS"})
_KUBERNETES = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
_INJECTED = "void"
_NO_DEVICES = frozenset({"", "none", "void", "NoDevFiles"})


@record
class Allocation:
    """What a scheduler gave us: `devices` as it wrote them (indexes or UUIDs), None when it says nothing about cards.

    `source` is the variable that names the devices; with `devices` None it says that all that can be seen were given.
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
        if self.devices is None:
            return f"{self.scheduler} job {self.name} gave the cards that can be seen ({self.source}={_INJECTED})"
        return f"{self.scheduler} job {self.name} gave {self.source}={','.join(self.devices or ()) or 'none'}"


def imposed_allocation(environ: Mapping[str, str]) -> Allocation | None:
    """The allocation we run inside, or None on a box where leases decide."""
    named = name_allocation(environ)
    return named if named is not None and _is_proven(named, environ) else None


def find_unproven(environ: Mapping[str, str]) -> str:
    """The variable of an allocation that we do not run inside; empty where there is none, or it is ours."""
    named = name_allocation(environ)
    return "" if named is None or _is_proven(named, environ) else _VARIABLES[named.scheduler]


def name_allocation(environ: Mapping[str, str]) -> Allocation | None:
    """The allocation that the variables name, whether we run inside or not. Pure."""
    job = environ.get(_VARIABLES[SLURM])
    if job:
        step = environ.get("SLURM_STEP_ID")
        return _read(SLURM, f"{job}.{step}" if step else job, environ, _SLURM)
    if environ.get(_VARIABLES[KUBERNETES]):
        pod = environ.get("HOSTNAME", "pod")
        return _read(KUBERNETES, pod, environ, _KUBERNETES)
    return None


def _is_proven(named: Allocation, environ: Mapping[str, str]) -> bool:
    if named.scheduler == SLURM:
        return surroundings.find_allocation(environ) is not None
    return surroundings.is_in_pod(environ)


def _read(scheduler: str, name: str, environ: Mapping[str, str], variables: tuple[str, ...]) -> Allocation:
    for variable in variables:
        value = environ.get(variable)
        if value is None or (variable == "NVIDIA_VISIBLE_DEVICES" and value == "all"):
            continue
        if variable == "NVIDIA_VISIBLE_DEVICES" and value.strip() == _INJECTED:
            return Allocation(scheduler, name, None, variable)
        parts = () if value.strip() in _NO_DEVICES else value.split(",")
        return Allocation(scheduler, name, tuple(part.strip() for part in parts if part.strip()), variable)
    return Allocation(scheduler, name, None)
