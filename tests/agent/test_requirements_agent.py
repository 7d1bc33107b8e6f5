"""Requirements that only a whole run shows: a save at a boundary, every rule at once, a warning before the kill."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from holdfast.agent.supervise.priority import ChosenPriority
from holdfast.agent.supervise.recorder import Recorder
from holdfast.agent.supervise.start.containment import reopen_containment
from holdfast.core.job.limits import THREAD_VARIABLES
from holdfast.host.process import libc, processes
from holdfast.model import wire
from holdfast.model.job import JobSpec, Limits
from holdfast.model.run import Outcome, RequestKind
from tests.agent.driving import JOB, Drive, Driven, read_text
from tests.kernel_calls import get_io_priority, list_open_files
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.agent.supervise.context import SupervisorContext

pytestmark = pytest.mark.process

MIB = 1024**2
TRAINER = os.path.join(os.path.dirname(JOB), "trainer.py")


def trainer(*words: object) -> tuple[str, ...]:
    """The command of the small trainer."""
    return (sys.executable, "-I", "-S", TRAINER, *(str(word) for word in words))


def is_whole(path: str) -> bool:
    """Whether a checkpoint is as long as its first line says."""
    with open(path, "rb") as file:
        said = int(file.readline())
        return len(file.read()) == said > 0


# --- B-17: the stop leaves the save to the step boundary -----------------------------------------------------------


@pytest.mark.requirement("B-17")
@pytest.mark.parametrize("where", ["save", pytest.param("step", marks=pytest.mark.slow)])
def test_B_17_a_flag_only_handler_gets_to_its_boundary_and_saves_there(drive: Drive, where: str) -> None:
    run = drive(*trainer("flag_only", where), grace_s=1.6, grace_max_s=60.0)
    run.ready()
    if where == "save":
        wait_until(lambda: b"save begins" in run.output(), what="a save is under way")
    run.ask()
    end = run.ended()
    assert end.outcome is Outcome.STOPPED
    assert end.status is not None
    assert (end.status.code, end.status.signal) == (143, None)
    assert is_whole(f"{run.run_dir}/checkpoints/last")
    assert not os.path.exists(f"{run.run_dir}/checkpoints/last.partial")
    assert run.output().endswith(b"save ends\nleaves at a step boundary\n")
    assert not run.events("kill_sent")


# --- B-18: one plain run has all of it -----------------------------------------------------------------------------

PLAIN = """
import json, os, sys, time
attempt = os.environ["HOLDFAST_RUN_DIR"] + "/attempts/" + os.environ["HOLDFAST_ATTEMPT"]
facts = {"manifest": json.load(open(attempt + "/manifest.json")), "environ": dict(os.environ), "nice": os.nice(0)}
try:
    open(os.environ["DATA"] + "/planted", "w").close()
    facts["data"] = "written"
except OSError as error:
    facts["data"] = error.strerror
facts["read"] = open(os.environ["DATA"] + "/images").read()
print(json.dumps(facts))
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os._exit(0)
    os._exit(0)
os.wait()
print("ready")
while not os.path.exists(attempt + "/../../artifacts/go"):
    time.sleep(0.01)
sys.exit(3)
"""


@pytest.mark.slow
@pytest.mark.requirement("B-18")
def test_B_18_a_plain_run_has_every_rule_without_asking(drive: Drive, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "images").write_text("pixels")
    with open(os.environ["HOLDFAST_RULES"], "w", encoding="ascii") as rules:
        rules.write("nice = 10\n")
    run = drive(sys.executable, "-c", PLAIN, env={"DATA": str(data)}, data=(str(data),), health_every_s=0.1)
    state = run.ready()
    facts = json.loads(run.output().splitlines()[0])
    assert facts["manifest"]["run_id"] == run.run_id, "the manifest was there before the job"
    assert facts["nice"] == max(10, os.nice(0))
    assert get_io_priority(state.job.process.pid) == (libc.IOPRIO_BEST_EFFORT, 7)
    for name in THREAD_VARIABLES:
        assert 1 <= int(facts["environ"][name]) <= (os.cpu_count() or 1), name
    assert facts["environ"]["PYTHONUNBUFFERED"] == "1"
    assert facts["environ"]["CUDA_VISIBLE_DEVICES"] == "-1", "a job without cards sees none"
    wait_until(lambda: len(health(run)) >= 2, what="health samples")
    assert isinstance(health(run)[0]["memory_bytes"], int)
    assert isinstance(health(run)[0]["tasks"], int)

    def zombies() -> list[int]:
        found = [processes.read_stat(pid) for pid in processes.list_pids()]
        return [stat.pid for stat in found if stat is not None and stat.state == "Z" and stat.ppid == state.keeper.pid]

    wait_until(lambda: not zombies(), what="the keeper has reaped the job's orphan")
    assert facts["read"] == "pixels"
    if run.read(wire.MANIFEST)["containment"]["level"] == "pid_namespace":
        assert facts["data"] == "Read-only file system"
    open(f"{run.run_dir}/artifacts/go", "x").close()
    end = run.ended()
    assert (end.outcome, end.exit_code) == (Outcome.FAILED, 3)
    found = [finding["id"] for finding in run.read(wire.POSTFLIGHT)["findings"] if finding["level"] == "fail"]
    assert bool(found) is (facts["data"] == "written"), "a write to the data is prevented, or found"
    note = read_text(run.path(wire.FAILURE))
    for words in ("class: `unknown`", "exit code: 3", "## What to do", "lines of its output", "ready"):
        assert words in note


def health(run: Driven) -> list[dict[str, object]]:
    """The samples taken so far."""
    try:
        lines = read_text(run.path(wire.HEALTH)).split("\n")[:-1]
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in lines]


# --- memory: said before, and named after --------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.requirement("B-46", "LIM-03", "LIM-09", "LIB-16")
def test_B_46_LIM_03_the_job_is_warned_and_asked_to_save_before_the_kernel_kills(drive: Drive) -> None:
    run = drive(*trainer("fill", 75, 130, 0.3), limits=Limits(memory_bytes=100 * MIB))
    end = run.ended()
    warned = run.events("memory_high")
    assert [event["data"]["limit_bytes"] for event in warned] == [100 * MIB]
    assert 90 * MIB < warned[0]["data"]["used_bytes"] <= 100 * MIB
    ending = next(event for event in run.events() if event["event"] in ("finalizing", "stopping"))
    assert warned[0]["seq"] < ending["seq"]
    assert is_whole(f"{run.run_dir}/checkpoints/asked"), "it saved when it was asked"
    assert (end.outcome, end.exit_code) == (Outcome.FAILED, 128 + signal.SIGKILL)
    assert end.status is not None
    assert end.status.signal == signal.SIGKILL
    assert "memory" in end.evidence
    note = read_text(run.path(wire.FAILURE))
    assert "class: `out_of_memory`" in note
    assert "SIGKILL" in note
    assert "SIGTERM" not in note, "nothing claims that it was asked to end"
    assert not run.events("term_sent")
    assert b"a handler ran" not in run.output()


@pytest.mark.slow
@pytest.mark.requirement("LIM-03")
def test_LIM_03_the_soft_limit_warns_and_leaves_the_job_alone(drive: Drive) -> None:
    limits = Limits(memory_high_bytes=60 * MIB, memory_bytes=400 * MIB)
    run = drive(*trainer("fill", 40, 80, 0.01), limits=limits, health_every_s=0.2)
    run.ready()
    wait_until(lambda: b"save ends" in run.output(), what="the job has saved because it was asked to")
    assert is_whole(f"{run.run_dir}/checkpoints/asked")
    (event,) = run.events("memory_high")
    assert event["data"]["threshold_bytes"] == 60 * MIB
    assert event["data"]["used_bytes"] > 60 * MIB
    assert run.kind() == "running"
    run.kill_supervisor()
    run.adopt()
    taken = len(health(run))
    wait_until(lambda: len(health(run)) >= taken + 8, what="more than one look of the next supervisor's watchdog")
    assert run.events("memory_high") == [event], "it is said once"
    run.ask(RequestKind.STOP_NOW)
    assert run.ended().outcome is Outcome.STOPPED


@pytest.mark.slow
@pytest.mark.requirement("LIM-03")
def test_LIM_03_a_job_below_its_limits_is_asked_nothing(drive: Drive) -> None:
    run = drive(*trainer("fill", 20, 21, 0.01), limits=Limits(memory_bytes=400 * MIB), health_every_s=0.2)
    run.ready()
    wait_until(lambda: len(health(run)) >= 8, what="more than one look of the watchdog")
    assert not run.events("memory_high")
    assert not os.path.exists(run.path(wire.CHECKPOINT_REQUEST))
    run.ask(RequestKind.STOP_NOW)
    run.ended()


@pytest.mark.slow
@pytest.mark.requirement("LIM-01", "B-44")
def test_LIM_01_who_takes_over_knows_what_the_kernel_holds(drive: Drive) -> None:
    """A supervisor that adopted the run finds each limit's mechanism again."""
    run = drive(*trainer("fill", 20, 21, 0.01), limits=Limits(memory_bytes=400 * MIB, tasks=200))
    run.ready()
    spec = wire.decode(JobSpec, wire.parse_object(read_text(f"{run.run_dir}/{wire.RUN}").encode(), wire.RUN)["job"])
    recorder = Recorder(run.run_dir, run.run_id, 1)
    facts = SimpleNamespace(
        spec=spec,
        run_id=run.run_id,
        attempt=1,
        recorder=recorder,
        choose_priority=lambda asked: ChosenPriority(asked, "asked for"),
    )
    containment = reopen_containment(cast("SupervisorContext", facts))
    held = {item["name"]: item["mechanism"] for item in run.read(wire.MANIFEST)["limits"]}
    assert {limit.name: limit.mechanism.value for limit in containment.plan.limits} == held
    run.ask(RequestKind.STOP_NOW)
    run.ended()


@pytest.mark.requirement("B-73")
def test_B_73_a_cpu_limit_throttles_without_stop_and_continue(drive: Drive) -> None:
    # A tenth of a core is less than what a busy box leaves a job: the limit is what it meets.
    run = drive(*trainer("watch_child", 1.5), limits=Limits(cpus=0.1))
    assert run.ended().outcome is Outcome.SUCCEEDED
    assert b"stopped or continued 0 times" in run.output()
    (limit,) = [item for item in run.read(wire.MANIFEST)["limits"] if item["name"] == "cpus"]
    if limit["mechanism"] != "affinity":
        assert run.read(wire.EXIT)["usage"]["throttled_s"] > 0, "the limit was felt"


# --- RAIL-09: what preflight cannot see ----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.requirement("RAIL-09")
def test_RAIL_09_an_installer_among_the_processes_is_noticed_while_it_runs(drive: Drive, tmp_path: Path) -> None:
    tool = tmp_path / "pip"
    tool.write_text("#!/bin/sh\nwhile :; do sleep 0.05; done\n")
    tool.chmod(0o755)
    run = drive(*trainer("install_quietly", tool), health_every_s=0.1)
    run.ready()
    (event,) = wait_until(lambda: run.events("install_seen"), what="the installer is seen")
    assert "pip install torch" in event["data"]["command"]
    samples = len(health(run))
    wait_until(lambda: len(health(run)) > samples + 2, what="more samples")
    assert len(run.events("install_seen")) == 1, "it is said once"
    run.ask(RequestKind.STOP_NOW)
    run.ended()


# --- B-47: nothing listens -----------------------------------------------------------------------------------------


def listening(pids: set[int]) -> list[str]:
    """Network sockets that one of these processes holds and that wait for others: TCP in LISTEN, any UDP."""
    inodes = {}
    for table in ("tcp", "tcp6", "udp", "udp6"):
        try:
            lines = read_text(f"/proc/net/{table}").splitlines()[1:]
        except FileNotFoundError:
            continue
        for line in lines:
            fields = line.split()
            if table.startswith("udp") or fields[3] == "0A":
                inodes[f"socket:[{fields[9]}]"] = f"{table} {fields[1]}"
    found = []
    for pid in pids:
        found += [f"pid {pid}: {inodes[target]}" for target in list_open_files(pid) if target in inodes]
    return found


@pytest.mark.slow
@pytest.mark.requirement("B-47", "ETIQ-06")
def test_B_47_nothing_of_a_run_listens_on_the_network(drive: Drive) -> None:
    with socket.create_server(("127.0.0.1", 0)):
        assert listening({os.getpid()}), "a listener is seen by this test"
    cards = {"HOLDFAST_SIMULATED_GPUS": "1"}
    run = drive(*trainer("flag_only", "step"), environ=cards, health_every_s=0.1, limits=Limits(memory_bytes=400 * MIB))
    state = run.ready()
    wait_until(lambda: health(run), what="a sample")
    ours = {run.supervisor().pid, state.keeper.pid, *(member.pid for member in run.marked())}
    assert len(ours) >= 3
    assert listening(ours) == []
    run.ask(RequestKind.STOP_NOW)
    run.ended()
