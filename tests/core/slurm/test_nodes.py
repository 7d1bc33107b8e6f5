"""What several nodes are launched with, told and compared by."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core.job.job_hash import hash_encoded_job, hash_job
from holdfast.core.job.nodes import refuse_nodes
from holdfast.core.slurm.nodes import build_launch, build_member_environ, compare, count_cards, tell_ranks
from holdfast.core.slurm.script import ScriptPlan, list_directives
from holdfast.model import wire
from holdfast.model.container import ContainerSpec
from holdfast.model.errors import Unsupported
from holdfast.model.gpu import GpuRequest
from holdfast.model.job import JobSpec
from holdfast.model.nodes import NodeFacts
from holdfast.model.record import replace
from holdfast.model.slurm import SlurmRecord

pytestmark = pytest.mark.pure

HERE = NodeFacts("n1", "b1", "6.1", "535.104.05", 4, 8, "/code", "/usr/bin/python3", "abc", {"NCCL_DEBUG": "WARN"})


@pytest.mark.requirement("MN-01", "MN-02")
def test_MN_01_nodes_that_differ_are_refused_or_named() -> None:
    assert compare(HERE, replace(HERE, host="n2", boot_id="b2")) == ([], [])
    bad: tuple[tuple[dict[str, Any], str], ...] = (
        ({"run": ""}, "does not see the run's directory"),
        ({"run": "def"}, "another run.json"),
        ({"workdir": "/tmp"}, "working directory /code"),
        ({"program": ""}, "the command is not there: /usr/bin/python3"),
        ({"cards": 2}, "it has 2 cards, the first node 4 cards"),
        ({"cards": None}, "no cards named by Slurm"),
    )
    for change, words in bad:
        wrong, odd = compare(HERE, replace(HERE, **change))
        assert words in "".join(wrong)
        assert odd == []
    mild: tuple[tuple[dict[str, Any], str], ...] = (
        ({"cpus": 4}, "4 cores, the first node 8"),
        ({"driver": "550.1"}, "its NVIDIA driver is 550.1, on the first node 535.104.05"),
        ({"environment": {}}, "NCCL_DEBUG is not set, on the first node 'WARN'"),
    )
    for change, words in mild:
        wrong, odd = compare(HERE, replace(HERE, **change))
        assert words in "".join(odd)
        assert wrong == []


@pytest.mark.requirement("SLM-06")
def test_SLM_06_srun_is_told_the_cores_and_leaves_the_leaders_node_out() -> None:
    environ = {"SLURMD_NODENAME": "n7", "SLURM_CPUS_PER_TASK": "16"}
    words = build_launch(environ, 4, ("python3", "x"))
    assert {"--nodes=3", "--ntasks=3", "--exclude=n7", "--cpus-per-task=16"} <= {*words}
    assert words[-2:] == ("python3", "x")
    assert not any("cpus" in word for word in build_launch({"SLURMD_NODENAME": "n7"}, 2, ()))


@pytest.mark.requirement("MN-04")
def test_MN_04_each_node_is_told_its_place_and_a_persons_value_wins() -> None:
    base = {"MASTER_ADDR": "n1", "MASTER_PORT": "4242", "CUDA_VISIBLE_DEVICES": "0,1", "PET_NNODES": "1:2"}
    told = tell_ranks(base, 2, 0)
    assert told == {
        "HOLDFAST_NODES": "2",
        "HOLDFAST_NODE_RANK": "0",
        "PET_NODE_RANK": "0",
        "PET_MASTER_ADDR": "n1",
        "PET_MASTER_PORT": "4242",
        "PET_NPROC_PER_NODE": "2",
    }
    assert "PET_NPROC_PER_NODE" not in tell_ranks({**base, "CUDA_VISIBLE_DEVICES": "-1"}, 2, 0)
    step = {**base, **told, "SLURM_STEP_ID": "0", "SLURM_NTASKS": "1", "SLURM_PROCID": "0", "HOLDFAST_NODES_LINK": "x"}
    found = build_member_environ(step, {"SLURM_NTASKS": "2"}, 1)
    assert (found["SLURM_PROCID"], found["SLURM_NODEID"], found["HOLDFAST_NODE_RANK"]) == ("1", "1", "1")
    assert found["SLURM_NTASKS"] == "2"
    assert not {"SLURM_STEP_ID", "HOLDFAST_NODES_LINK"} & found.keys()
    assert [count_cards({"CUDA_VISIBLE_DEVICES": text}) for text in ("", "-1", "0,3")] == [0, 0, 2]


def test_the_script_asks_for_nodes_with_all_else_for_each_and_one_node_is_as_ever() -> None:
    job = JobSpec("train", ("true",), ".", gpus=GpuRequest(count=4), nodes=2)
    plan = ScriptPlan("20261123-101500-train-3fa2", "/r", SlurmRecord("train", "c"), job, ("stand",))
    found = list_directives(plan)
    assert (found["nodes"], found["ntasks-per-node"], found["gres"]) == ("2", "1", "gpu:4")
    assert "ntasks" not in found
    alone = list_directives(replace(plan, job=replace(job, nodes=1)))
    assert (alone["nodes"], alone["ntasks"]) == ("1", "1")
    assert "ntasks-per-node" not in alone


def test_a_job_of_one_node_hashes_as_before_and_others_do_not() -> None:
    job = JobSpec("train", ("true",), ".")
    before = {name: value for name, value in wire.encode(job).items() if name != "nodes"}
    assert hash_job(job) == hash_encoded_job(before)
    assert hash_job(replace(job, nodes=2)) != hash_job(job)


def test_several_nodes_need_a_scheduler_and_no_container() -> None:
    job = JobSpec("train", ("true",), ".", nodes=2)
    refuse_nodes(replace(job, nodes=1), "")
    refuse_nodes(job, "slurm")
    with pytest.raises(Unsupported, match="kind slurm"):
        refuse_nodes(job, "")
    with pytest.raises(Unsupported, match="container"):
        refuse_nodes(replace(job, container=ContainerSpec(image="some.sif")), "slurm")
