"""What ends us with itself: a job of Slurm, process 1, a notebook."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from holdfast.host.process.surroundings import find_allocation, find_notebook, is_container_init, is_in_pod

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.files

V1 = "5:memory:/slurm/uid_1000/job_42/step_batch\n1:name=systemd:/system.slice/slurmd.service\n"
V2 = "0::/system.slice/slurmstepd.scope/job_42/step_0/user/task_0\n"


@pytest.mark.parametrize("cgroup", [V1, V2])
def test_a_job_of_slurm_is_believed_when_our_control_group_says_so(cgroup: str) -> None:
    found = find_allocation({"SLURM_JOB_ID": "42", "SLURM_RESTART_COUNT": "2"}, cgroup=cgroup)
    assert found is not None
    assert (found.job_id, found.restarts) == ("42", 2)
    assert find_allocation({"SLURM_JOB_ID": "4"}, cgroup=cgroup) is None
    assert find_allocation({"SLURM_JOB_ID": "42"}, cgroup="0::/user.slice/session-1.scope\n") is None
    assert find_allocation({}, cgroup=cgroup) is None


def test_a_pod_is_believed_by_what_the_kubelet_puts_around_it(tmp_path: Path) -> None:
    here, nowhere = ({"HOLDFAST_SERVICE_ACCOUNT": str(path)} for path in (tmp_path, tmp_path / "none"))
    box = {"cgroup": "0::/user.slice\n", "hosts": "127.0.0.1 localhost\n"}
    assert is_in_pod(here, **box)
    assert not is_in_pod({**nowhere, "KUBERNETES_SERVICE_HOST": "10.0.0.1"}, **box)
    assert is_in_pod(nowhere, cgroup="0::/kubepods.slice/kubepods-pod1.slice/cri-1.scope\n", hosts="")
    for managed in ("# Kubernetes-managed hosts file.\n", "# Kubernetes-managed hosts file (host network).\n"):
        assert is_in_pod(nowhere, cgroup="0::/\n", hosts=f"{managed}127.0.0.1 localhost\n")


def test_a_notebook_is_known_by_its_variables_and_a_shell_is_none() -> None:
    assert find_notebook({"JPY_PARENT_PID": "12"}) == "JPY_PARENT_PID"
    assert find_notebook({"COLAB_GPU": "1"}) == "COLAB_GPU"
    assert find_notebook({"KAGGLE_KERNEL_RUN_TYPE": "Batch"}) == "KAGGLE_KERNEL_RUN_TYPE"
    assert find_notebook({"JPY_PARENT_PID": "", "HOME": "/"}) is None
    assert not is_container_init()
