"""What a job says against its options of sbatch."""

from __future__ import annotations

import pytest

from holdfast.core.slurm.contradictions import refuse_contradictions
from holdfast.model.errors import UsageError
from holdfast.model.gpu import GpuRequest
from holdfast.model.job import Checkpoints, DiskNeeds, GpuOptions, JobSpec, Limits, Timeouts
from holdfast.model.record import replace

pytestmark = pytest.mark.pure

JOB = JobSpec(
    "x",
    ("x",),
    "/code",
    gpus=GpuRequest(2),
    limits=Limits(memory_bytes=8 << 30, cpus=8),
    timeouts=Timeouts(total_s=7200.0),
)


@pytest.mark.requirement("SLM-01")
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"gres": "gpu:1"}, "gpus: 2, and gres=gpu:1 of slurm gives 1"),
        ({"gres": "gpu"}, "gpus: 2, and gres=gpu of slurm gives 1"),
        ({"gpus": "a100:4"}, "gpus: 2, and gpus=a100:4 of slurm gives 4"),
        ({"cpus-per-task": "2"}, "limits.cpus: 8, and cpus-per-task=2 of slurm gives 2"),
        ({"mem": "4G"}, "limits.memory: 8 GiB, and mem=4G of slurm is less"),
        ({"mem": "4096"}, "mem=4096 of slurm is less"),
        ({"time": "60"}, "timeout: 2h00m, and time=60 of slurm is 1h00m"),
    ],
)
def test_what_contradicts_the_job_is_refused_and_both_are_named(options: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        refuse_contradictions(JOB, options)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"gres": "gpu:a100:2,shard:4", "cpus-per-task": "8", "mem": "8G", "time": "2:00:00"},
        {"gres": "craynetwork:1", "gpus-per-node": "2", "mem": "0", "time": "UNLIMITED"},
        {"gres": "gpu:a:1,gpu:b:1", "mem": "1T", "time": "1-00"},
    ],
)
def test_what_gives_the_job_what_it_says_passes(options: dict[str, str]) -> None:
    refuse_contradictions(JOB, options)


def test_the_cards_of_all_nodes_together_are_counted_as_such() -> None:
    refuse_contradictions(replace(JOB, nodes=2), {"gpus": "4"})
    refuse_contradictions(replace(JOB, nodes=2), {"gres": "gpu:2"})
    with pytest.raises(UsageError):
        refuse_contradictions(replace(JOB, nodes=2), {"gpus": "2"})


@pytest.mark.requirement("SLM-07")
@pytest.mark.gotcha("SLURM5")
@pytest.mark.parametrize("path", ["/tmp/ckpt", "$TMPDIR/ckpt", "/dev/shm"])
def test_SLM_07_checkpoints_on_a_nodes_own_disk_are_refused(path: str) -> None:
    plain = JobSpec("x", ("x",), "/code")
    for job in (
        JobSpec("x", ("x",), "/code", checkpoints=Checkpoints(mirror=path)),
        JobSpec("x", ("x",), "/code", disk=DiskNeeds(paths=(path,))),
    ):
        with pytest.raises(UsageError, match="which each node has for itself"):
            refuse_contradictions(job, {})
    refuse_contradictions(plain, {})
    refuse_contradictions(JobSpec("x", ("x",), "/code", checkpoints=Checkpoints(mirror="/tmpfiles/x")), {})


def test_a_wait_for_cards_is_refused_where_slurm_has_the_line_but_with_a_deadline_of_its_own() -> None:
    patient = replace(JOB, gpu=GpuOptions(wait_s=3600.0))
    with pytest.raises(UsageError, match="1h00m, and Slurm's line is the wait") as caught:
        refuse_contradictions(patient, {})
    assert "--slurm deadline=TIME" in caught.value.hint
    refuse_contradictions(patient, {"deadline": "now+1hour"})
