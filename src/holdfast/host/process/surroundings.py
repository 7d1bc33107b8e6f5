"""What we run inside of that ends us with it: a scheduler's job, process 1 of a container, a notebook.

A variable alone proves no allocation: a shell keeps the environment of one that it was opened from.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from holdfast.model.pattern import compile_later
from holdfast.model.record import record

from .processes import read_stat

MOST_ANCESTORS = 64
INITS = frozenset({"tini", "docker-init", "podman-init", "catatonit", "dumb-init"})
"""Process 1 of a container that only passes signals on to its one child, and ends with it."""
NOTEBOOKS = ("COLAB_", "KAGGLE_")
SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
MANAGED_HOSTS = "# Kubernetes-managed hosts file"
_SLURM_GROUP = compile_later(r"/job_(\d+)(?:/|$)", re.ASCII)


@record
class SlurmJob:
    """The job of Slurm that we are a process of, how often it was started again, and what proves it."""

    job_id: str
    restarts: int
    proof: str


def find_allocation(environ: Mapping[str, str], *, cgroup: str | None = None) -> SlurmJob | None:
    """The scheduler's job that ends us with itself; None without.

    `SLURM_JOB_ID` counts when our control group is that job's, or when an ancestor of ours is its slurmstepd.
    Source: Slurm's cgroup plugin (``.../job_<id>/step_<id>/...``); sbatch(1), SLURM_RESTART_COUNT.
    """
    job_id = environ.get("SLURM_JOB_ID", "")
    if not job_id:
        return None
    restarts = environ.get("SLURM_RESTART_COUNT", "")
    count = int(restarts) if restarts.isascii() and restarts.isdigit() else 0
    text = _read("/proc/self/cgroup") if cgroup is None else cgroup
    if any(job_id in _SLURM_GROUP.findall(line) for line in text.splitlines()):
        return SlurmJob(job_id, count, "our control group is that job's")
    if "slurmstepd" in _list_ancestors():
        return SlurmJob(job_id, count, "slurmstepd is an ancestor of ours")
    return None


def is_in_pod(environ: Mapping[str, str], *, cgroup: str | None = None, hosts: str | None = None) -> bool:
    """Whether a pod of Kubernetes is around us: its service account, the kubelet's hosts file, or its control group.

    ``HOLDFAST_SERVICE_ACCOUNT`` stands in for the directory of the first in tests.
    Source: kubernetes.io, "Configure Service Accounts for Pods"; kubelet, managedHostsHeader; its cgroup ``kubepods``.
    """
    if os.path.isdir(environ.get("HOLDFAST_SERVICE_ACCOUNT", SERVICE_ACCOUNT)):
        return True
    if (_read("/etc/hosts") if hosts is None else hosts).startswith(MANAGED_HOSTS):
        return True
    return "kubepods" in (_read("/proc/self/cgroup") if cgroup is None else cgroup)


def is_container_init() -> bool:
    """Whether the container or namespace ends when we do: process 1, or the one child of a small init."""
    if os.getpid() == 1:
        return True
    first = read_stat(1) if os.getppid() == 1 else None
    return first is not None and first.comm in INITS


def find_notebook(environ: Mapping[str, str]) -> str | None:
    """The variable by which we know that a cell of a notebook started us; None elsewhere.

    Interrupting a cell sends INT to all that any cell has started. Source: jupyter_client, ``JPY_PARENT_PID``.
    """
    names = ("JPY_PARENT_PID", *sorted(name for name in environ if name.startswith(NOTEBOOKS)))
    return next((name for name in names if environ.get(name)), None)


def _list_ancestors() -> list[str]:
    """The names of our parent, its parent and so on."""
    names: list[str] = []
    pid = os.getppid()
    while pid > 0 and len(names) < MOST_ANCESTORS:
        stat = read_stat(pid)
        if stat is None:
            break
        names.append(stat.comm)
        pid = stat.ppid
    return names


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(1 << 16)
    except OSError:
        return ""
