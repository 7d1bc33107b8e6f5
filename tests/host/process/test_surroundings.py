"""What ends us with itself: a job of Slurm, process 1, a notebook."""

from __future__ import annotations

import pytest

from holdfast.host.process.surroundings import find_allocation, find_notebook, is_container_init

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


def test_a_notebook_is_known_by_its_variables_and_a_shell_is_none() -> None:
    assert find_notebook({"JPY_PARENT_PID": "12"}) == "JPY_PARENT_PID"
    assert find_notebook({"COLAB_GPU": "1"}) == "COLAB_GPU"
    assert find_notebook({"KAGGLE_KERNEL_RUN_TYPE": "Batch"}) == "KAGGLE_KERNEL_RUN_TYPE"
    assert find_notebook({"JPY_PARENT_PID": "", "HOME": "/"}) is None
    assert not is_container_init()
