"""Allocations of Slurm and Kubernetes are taken as given."""

from __future__ import annotations

import pytest

from holdfast.host.gpu.allocation import Allocation, find_unproven, imposed_allocation, name_allocation
from holdfast.host.process import surroundings
from tests.each import each

pytestmark = pytest.mark.pure


@pytest.mark.requirement("LEASE-17")
@each(
    ("environ", "expected"),
    [
        ({}, None),
        ({"CUDA_VISIBLE_DEVICES": "0"}, None),
        ({"SLURM_JOB_ID": ""}, None),
        ({"SLURM_CONF": "/etc/slurm.conf"}, None),
        ({"SLURM_JOB_ID": "7"}, Allocation("slurm", "7", None)),
        (
            {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "CUDA_VISIBLE_DEVICES": "0,2"},
            Allocation("slurm", "7.0", ("0", "2"), "CUDA_VISIBLE_DEVICES"),
        ),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "3"}, Allocation("slurm", "7", ("3",), "SLURM_JOB_GPUS")),
        ({"SLURM_JOB_ID": "7", "GPU_DEVICE_ORDINAL": "1"}, Allocation("slurm", "7", ("1",), "GPU_DEVICE_ORDINAL")),
        (
            {"SLURM_JOB_ID": "7", "CUDA_VISIBLE_DEVICES": "NoDevFiles"},
            Allocation("slurm", "7", (), "CUDA_VISIBLE_DEVICES"),
        ),
        (
            {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "pod-1", "NVIDIA_VISIBLE_DEVICES": "GPU-a, GPU-b"},
            Allocation("kubernetes", "pod-1", ("GPU-a", "GPU-b"), "NVIDIA_VISIBLE_DEVICES"),
        ),
        (
            {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "NVIDIA_VISIBLE_DEVICES": "all"},
            Allocation("kubernetes", "pod", None),
        ),
        (
            {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "NVIDIA_VISIBLE_DEVICES": "void"},
            Allocation("kubernetes", "pod", None, "NVIDIA_VISIBLE_DEVICES"),
        ),
    ],
)
def test_LEASE_17_the_schedulers_word_is_read_and_not_changed(
    environ: dict[str, str], expected: Allocation | None
) -> None:
    before = dict(environ)
    assert name_allocation(environ) == expected
    assert environ == before


@pytest.mark.requirement("LEASE-17")
def test_LEASE_17_variables_alone_are_no_allocation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen: a shell with the variable of a job that was over took a card that another run had leased."""
    slurm, pod = {"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "3"}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    monkeypatch.setattr(surroundings, "_list_ancestors", lambda: ["tmux: server", "bash"])
    monkeypatch.setattr(surroundings, "is_in_pod", lambda _environ: False)
    assert [imposed_allocation(environ) for environ in ({}, slurm, pod)] == [None, None, None]
    assert [find_unproven(environ) for environ in ({}, slurm, pod)] == ["", *(next(iter(one)) for one in (slurm, pod))]
    monkeypatch.setattr(surroundings, "_list_ancestors", lambda: ["slurm_script", "slurmstepd"])
    monkeypatch.setattr(surroundings, "is_in_pod", lambda _environ: True)
    assert imposed_allocation(slurm) == Allocation("slurm", "7", ("3",), "SLURM_JOB_GPUS")
    assert imposed_allocation(pod) == Allocation("kubernetes", "pod", None)
    assert [find_unproven(environ) for environ in ({}, slurm, pod)] == ["", "", ""]
