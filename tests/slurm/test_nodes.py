"""One run over two nodes of a real Slurm: ranks, one end for all, one stop for all, and nobody left behind."""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.slurm.cluster import Slurm
from tests.slurm.lab import Lab, LabRun
from tests.waiting import wait_until

pytestmark = pytest.mark.cluster

TELL = """\
import json, os
names = ("HOLDFAST_NODES", "HOLDFAST_NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "PET_NNODES", "PET_NODE_RANK",
         "PET_MASTER_PORT", "PET_NPROC_PER_NODE", "SLURM_PROCID", "SLURM_NTASKS", "CUDA_VISIBLE_DEVICES",
         "SLURM_STEP_ID", "SLURMD_NODENAME", "HOLDFAST_RUN_ID", "HOLDFAST_NODES_LINK", "NCCL_DEBUG",
         "SLURM_CPUS_PER_TASK")
print(json.dumps({name: os.environ.get(name) for name in names}))
"""


def _output(run: LabRun, node: int, attempt: int = 1) -> str:
    path = run.path / f"attempts/{attempt}/nodes/{node}/output.log"
    return path.read_text() if path.exists() else ""


def _nodes(run: LabRun, attempt: int = 1) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run.path / f"attempts/{attempt}/nodes.json").read_text())
    return found


def _order(lab: Lab, *words: str, command: tuple[str, ...]) -> LabRun:
    done = lab("run", "--on", "lab", "-d", "--nodes", "2", *words, "--", *command)
    return LabRun(lab, done.stdout.strip())


def _list_left(run: LabRun) -> list[str]:
    """The command lines of all processes of a run, on all nodes."""
    mark, found = f"HOLDFAST_RUN_ID={run.run_id}".encode(), []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.append(Path(f"/proc/{pid}/cmdline").read_text())
        except OSError:
            continue
    return found


def _is_gone(run: LabRun) -> bool:
    return not _list_left(run)


@pytest.mark.requirement("MN-01", "MN-02", "MN-04", "SLM-06", "B-67")
def test_MN_04_each_node_runs_the_command_and_is_told_its_place(lab: Lab) -> None:
    # Node 0 gets other cards than node 1.
    blocker = lab.slurm.sbatch("--gres=gpu:2", "--nodelist=n1", "--wrap", "sleep 600")
    lab.slurm.wait_for(blocker, "RUNNING")
    run = _order(
        lab, "--gpus", "2", "--limit-cpus", "2", "--env", "NCCL_DEBUG=WARN", command=(sys.executable, "-c", TELL)
    )
    assert lab("wait", run.name).returncode == 0, run.output()
    first, second = json.loads(run.output()), json.loads(_output(run, 1))
    same = (
        "HOLDFAST_NODES",
        "MASTER_ADDR",
        "MASTER_PORT",
        "PET_NNODES",
        "SLURM_NTASKS",
        "HOLDFAST_RUN_ID",
        "NCCL_DEBUG",
    )
    assert [first[name] for name in same] == [second[name] for name in same]
    assert (first["HOLDFAST_NODE_RANK"], second["HOLDFAST_NODE_RANK"]) == ("0", "1")
    assert (first["PET_NODE_RANK"], second["PET_NODE_RANK"], second["SLURM_PROCID"]) == ("0", "1", "1")
    for told in (first, second):
        assert (told["PET_NPROC_PER_NODE"], told["PET_NNODES"]) == ("2", "2")
        assert (told["SLURM_CPUS_PER_TASK"], told["SLURM_STEP_ID"], told["HOLDFAST_NODES_LINK"]) == ("2", None, None)
    assert (first["CUDA_VISIBLE_DEVICES"], second["CUDA_VISIBLE_DEVICES"]) == ("2,3", "0,1"), "each has its own"
    assert {first["SLURMD_NODENAME"], second["SLURMD_NODENAME"]} == {"n1", "n2"}
    record = _nodes(run)
    assert [(node["state"], node["code"]) for node in record["nodes"]] == [("ended", 0), ("ended", 0)]
    facts = [node["facts"] for node in record["nodes"]]
    assert facts[0]["environment"] == facts[1]["environment"]
    assert facts[0]["environment"]["NCCL_DEBUG"] == "WARN"
    assert (facts[0]["cards"], facts[1]["cards"], record["warnings"]) == (2, 2, [])
    assert str(record["port"]) == first["MASTER_PORT"]
    assert _list_left(run) == []


COUNT = """\
import os, signal, sys, time
rank = os.environ["HOLDFAST_NODE_RANK"]
saved = os.path.join(os.environ["HOLDFAST_RUN_DIR"], "step-" + rank)
step = int(open(saved).read()) if os.path.exists(saved) else 0
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
print("begin", step, os.environ["HOLDFAST_ATTEMPT"], os.environ["MASTER_PORT"], flush=True)
while step < int(sys.argv[1]):
    time.sleep(0.05)
    step += 1
    if asked:
        with open(saved, "w") as file:
            file.write(str(step))
        print("saved", step, flush=True)
        sys.exit(143)
"""


def _count(lab: Lab, *words: str, steps: int = 100_000) -> LabRun:
    """Two nodes that count, save on TERM, and go on from there."""
    (lab.code / "count.py").write_text(COUNT)
    return _order(lab, *words, command=("sh", "-c", f"sleep 1000 & exec {sys.executable} count.py {steps}"))


def _wait_begun(run: LabRun, attempt: int = 1) -> None:
    run.wait_begun(attempt)
    wait_until(lambda: "begin" in _output(run, 1, attempt), what=f"node 1 counts in attempt {attempt}")


@pytest.mark.timeout(180)
@pytest.mark.requirement("MN-04")
def test_a_warned_run_saves_on_all_nodes_and_goes_on_over_all_and_scancel_lets_all_save(lab: Lab) -> None:
    run = _count(lab)
    _wait_begun(run)
    lab.slurm.call("scancel", "--batch", "--signal=USR1", run.job)
    _wait_begun(run, 2)
    saved = [run.output().split()[-1], _output(run, 1).split()[-1]]
    assert [run.output(2).split()[1], _output(run, 1, 2).split()[1]] == saved
    assert (run.exit(1)["outcome"], _nodes(run)["first"]) == ("preempted", None)
    assert run.output().split()[3] != run.output(2).split()[3], "each attempt has a port of its own"

    lab.slurm.call("scancel", run.job)
    assert lab("wait", run.name, code=None).returncode == 130
    for text in (run.output(2), _output(run, 1, 2)):
        assert text.split()[-2] == "saved"
    assert (run.exit(2)["outcome"], _nodes(run, 2)["first"]) == ("stopped", None)
    assert [node["code"] for node in _nodes(run, 2)["nodes"]] == [143, 143]
    wait_until(lambda: not _list_left(run), what="nobody is left on any node")


@pytest.mark.requirement("MN-03", "MN-04")
def test_MN_03_a_node_that_fails_ends_all_and_is_named_with_the_last_of_its_output(lab: Lab) -> None:
    (lab.code / "fail.sh").write_text(
        "[ $HOLDFAST_NODE_RANK = 1 ] || exec sleep 600\necho boom on $SLURMD_NODENAME\nexit 7\n"
    )
    run = _order(lab, command=("sh", "fail.sh"))
    assert lab("wait", run.name, code=None).returncode == 7
    failed = _nodes(run)["nodes"][1]["host"]
    assert run.exit()["outcome"] == "failed"
    assert f"node 1 ({failed}) failed with exit code 7" in run.exit()["evidence"]
    assert f"boom on {failed}" in run.output()
    shown = lab("show", run.name).stdout
    assert f"{failed}, ended since" in shown
    assert "exit code 7; failed first" in shown
    done = lab("logs", run.name)
    assert "the other: --node 1" in done.stderr
    assert "has 2 nodes, and none is 2" in lab("logs", run.name, "--node", "2", code=64).stderr
    assert "slurm-lead" not in shown
    assert lab("logs", run.name, "--node", "1").stdout == f"boom on {failed}\n"
    assert _list_left(run) == []


def _kill(run: LabRun, word: str, *, last: bool = False) -> None:
    """End the process of a run whose command line has `word` as it is: the first of those, or the `last` it forked."""
    found: dict[int, int] = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if word.encode() in words[:6] and any(run.run_id.encode() in one for one in words):
            found[int(pid)] = parent
    (first,) = [pid for pid, parent in found.items() if parent not in found]
    os.kill(next(pid for pid in found if pid not in found.values()) if last else first, 9)


@pytest.mark.timeout(240)
@pytest.mark.requirement("MN-03", "MN-04")
def test_nobody_is_left_on_any_node_whoever_is_killed(lab: Lab) -> None:
    member = _count(lab, "--retries", "1", "--retry-wait", "0s")
    _wait_begun(member)
    _kill(member, "slurm-node")
    _wait_begun(member, 2)
    assert _nodes(member)["nodes"][1]["state"] == "gone"
    assert "node 1 (" in member.exit()["evidence"]
    assert member.exit()["failure_class"] == "transient", "it is tried again, in the same job of Slurm"
    _kill(member, "slurm-node", last=True)
    assert lab("wait", member.name, code=None).returncode == 71
    wait_until(partial(_is_gone, member), what="nobody is left after the member was killed")

    launcher = _count(lab)
    _wait_begun(launcher)
    _kill(launcher, "slurm-lead")
    assert lab("wait", launcher.name, code=None).returncode == 137
    wait_until(lambda: not _list_left(launcher), what="nobody is left after the launcher was killed")

    supervisor = _count(lab)
    _wait_begun(supervisor)
    _kill(supervisor, "slurm-batch")
    wait_until(lambda: not _list_left(supervisor), what="nobody is left after the supervisor was killed")


def test_several_nodes_are_refused_where_there_are_none(lab: Lab) -> None:
    for words in (("run", "-d"), ("preflight",), ("submit",)):
        done = lab(*words, "--nodes", "2", "--", "true", code=64)
        assert "only a place of kind slurm has several" in done.stderr
    image = lab("run", "--on", "lab", "-d", "--nodes", "2", "--image", "some.sif", "--", "true", code=64)
    assert "`container` is for one node" in image.stderr
    many = lab("run", "--on", "lab", "-d", "--nodes", "3", "--", "true", code=78)
    assert "3 nodes are more than partition low has" in many.stderr


@pytest.mark.slow
def test_a_job_of_a_sweep_may_run_on_several_nodes(lab: Lab) -> None:
    command = ("sh", "-c", "echo {x} on $HOLDFAST_NODE_RANK")
    lab("sweep", "submit", "--on", "lab", "--name", "two", "--nodes", "2", "--grid", "x=1,2", "--", *command)
    said = set()
    for run_id in lab.list_states():
        run = LabRun(lab, f"lab:{run_id}")
        assert lab("wait", run.name).returncode == 0
        said |= {run.output(), _output(run, 1)}
    assert said == {"1 on 0\n", "1 on 1\n", "2 on 0\n", "2 on 1\n"}


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_lost_node_has_the_run_put_back_for_nodes_that_are_there(
    isolated_environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Slurm.started() as slurm:
        monkeypatch.setenv("SLURM_CONF", str(slurm.conf))
        lab = Lab(slurm, tmp_path)
        run = _count(lab)
        _wait_begun(run)
        slurm.stop_node(_nodes(run)["nodes"][1]["host"])
        wait_until((run.path / "attempts/2/state.json").exists, what="it is tried again in the same job")
        slurm.call("scontrol", "update", f"NodeName={_nodes(run)['nodes'][1]['host']}", "State=DOWN", "Reason=test")
        wait_until(lambda: run.state.startswith("pending"), what="Slurm has put it back")
        assert (run.exit(1)["failure_class"], run.exit(2)["outcome"]) == ("transient", "preempted")
        lab("stop", run.name)
