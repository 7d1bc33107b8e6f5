"""What a daemon says that is not so: of a client that it lost, of another's process, of a name that two runs have."""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from holdfast.host.container.recorded import is_first
from holdfast.host.process import processes
from holdfast.model import wire
from holdfast.model.container import LABEL_DIRECTORY, LABEL_RUN
from holdfast.model.job import Limits, UnenforcedPolicy
from holdfast.model.run import Outcome
from tests.agent.containers.stand_in import ID, StandIn, first_child
from tests.waiting import LIMIT_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.agent.driving import Drive

pytestmark = [
    pytest.mark.process,
    pytest.mark.timeout(180),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make namespaces"),
]
WAITS = "import os, sys, time\nwhile not os.path.exists('go'): time.sleep(0.02)\nsys.exit(5)"


@pytest.fixture
def docker(tmp_path: Path) -> Iterator[StandIn]:
    """A Docker of the test's own; none other is asked."""
    made = StandIn(tmp_path / "bin").make()
    yield made
    made.end()


@pytest.mark.requirement("CTR-04")
def test_a_client_that_its_daemon_lost_is_not_the_end_of_the_training(drive: Drive, docker: StandIn) -> None:
    run = drive("python3", "-c", WAITS, container=docker.container, environ=docker.environ)
    init = docker.begin()
    state = run.running()
    docker.write("lost")
    wait_until(lambda: run.events("client_lost"), what="the client is known to be lost")
    wait_until(lambda: not processes.is_alive(state.keeper), what="nobody is left below the keeper")
    assert (run.kind(), is_first(init)) == ("running", True)
    with open(f"{drive.workdir}/go", "w", encoding="ascii"):
        pass
    ended = run.ended()
    assert (ended.outcome, ended.status and ended.status.code) == (Outcome.FAILED, 5)
    assert run.read(wire.EXIT)["status"]["code"] == 5
    assert ended.status is not None
    assert ended.status.ended_at > run.events("client_lost")[0]["utc"]
    assert not run.events("term_sent")


WITHOUT = {
    "ServerVersion": "28", "CgroupDriver": "cgroupfs", "MemoryLimit": False, "SwapLimit": False, "CpuCfsQuota": True,
    "CPUShares": False, "PidsLimit": True,
}  # fmt: skip
WARNED = "WARNING: Your kernel does not support cgroup blkio weight. Weight discarded."


@pytest.mark.requirement("CTR-10")
def test_CTR_10_what_its_kernel_cannot_hold_is_said_and_held_otherwise(drive: Drive, docker: StandIn) -> None:
    docker.write("info", json.dumps(WITHOUT))
    docker.write("warning", f"{WARNED}\n")
    limits = Limits(memory_bytes=1 << 30, cpus=1.0, cpu_weight=50, tasks=500, unenforced=UnenforcedPolicy.WARN)
    run = drive("true", container=docker.container, environ=docker.environ, limits=limits)
    docker.begin()
    assert run.ended().outcome is Outcome.SUCCEEDED
    held = {item["name"]: item["mechanism"] for item in run.read("manifest.json")["limits"]}
    assert (
        held.items() >= {"memory": "watchdog", "cpus": "container", "cpu_weight": "none", "tasks": "container"}.items()
    )
    created = docker.asked("create")[0]
    assert "--memory" not in created
    assert "--cpu-shares" not in created
    assert "--cpus=1 " in created
    told = {one["subject"]: one for one in run.read("preflight.json")["findings"] if one["id"] == "container.limits"}
    assert set(told) == {"limits.memory", "limits.cpu_weight"}
    assert "its kernel has nothing to hold it by" in told["limits.memory"]["evidence"]
    # What it says all the same is kept.
    assert [event["data"]["words"] for event in run.events("container_warned")] == [WARNED]


@pytest.mark.requirement("CTR-10")
def test_CTR_10_a_limit_that_nothing_holds_is_refused_unless_the_job_says_otherwise(
    drive: Drive, docker: StandIn
) -> None:
    docker.write("info", json.dumps(WITHOUT))
    run = drive("true", container=docker.container, environ=docker.environ, limits=Limits(cpu_weight=50))
    ended = run.ended()
    assert ended.exit_code == 78
    assert ended.refusal is not None
    assert "cpu_weight 50: docker says that its kernel has nothing to hold it by" in ended.refusal.message


@pytest.mark.requirement("CTR-04", "CTR-05")
def test_of_what_goes_on_without_a_client_nobody_says_how_it_ended_unless_it_was_written(
    drive: Drive, docker: StandIn
) -> None:
    run = drive("python3", "-c", WAITS, container=docker.container, environ=docker.environ)
    docker.begin()
    run.running()
    docker.write("lost")
    wait_until(lambda: run.events("client_lost"), what="the client is known to be lost")
    docker.end()
    assert run.ended().outcome is Outcome.LOST


@pytest.mark.requirement("CTR-05")
def test_whoever_takes_over_after_the_client_was_lost_finds_the_end_that_was_written_inside(
    drive: Drive, docker: StandIn
) -> None:
    run = drive("python3", "-c", WAITS, container=docker.container, environ=docker.environ)
    init = docker.begin()
    run.running()
    docker.write("lost")
    wait_until(lambda: run.events("client_lost"), what="the client is known to be lost")
    run.kill_supervisor()
    # Nobody is left who could end it: it ends itself, and says how.
    wait_until(lambda: not is_first(init), what="it has ended")
    run.adopt()
    ended = run.ended()
    assert ended.status is not None
    assert (ended.status.code, ended.status.signal) == (None, 15)


@pytest.mark.slow
@pytest.mark.requirement("PROC-08", "LEASE-09")
def test_a_process_that_a_daemon_names_and_that_has_another_room_is_nobody_of_ours(
    drive: Drive, docker: StandIn
) -> None:
    stranger = subprocess.Popen(["unshare", "--pid", "--fork", "--kill-child", "sleep", "1000"])
    try:
        pid = first_child(stranger.pid)
        wait_until(lambda: is_first(pid), what="it is there")
        before = os.getpriority(os.PRIO_PROCESS, pid)
        docker.write("pid", pid)
        run = drive("true", container=docker.container, environ=docker.environ)
        ended = run.ended(LIMIT_S)
        assert ended.exit_code == 71
        assert ended.refusal is not None
        assert f"process {pid} here is another's" in ended.refusal.message
        assert "DOCKER_HOST" in ended.refusal.hint
        assert run.read("container.json")["init"] is None
        assert (stranger.poll(), is_first(pid), os.getpriority(os.PRIO_PROCESS, pid)) == (None, True, before)
    finally:
        stranger.kill()
        stranger.wait()


@pytest.mark.requirement("PROC-03", "CTR-05")
@pytest.mark.parametrize("stopped", [True, False])
def test_a_container_of_our_name_that_is_another_runs_is_not_removed(
    drive: Drive, docker: StandIn, stopped: bool
) -> None:
    docker.write("labels", json.dumps({LABEL_RUN: "another", LABEL_DIRECTORY: "/runs/another"}))
    docker.write("taken")
    docker.write("hold")
    run = drive("true", container=docker.container, environ=docker.environ)
    wait_until((docker.place / "asked").exists, what="it is being created")
    if stopped:
        run.ask()
        run.wait_kind("ended")
    (docker.place / "hold").unlink()
    ended = run.ended()
    assert not docker.asked("rm")
    assert not run.events("container_left")
    if not stopped:
        assert ended.refusal is not None
        assert "already in use" in ended.refusal.message
        assert "the container of another in /runs/another" in ended.refusal.hint


@pytest.mark.requirement("CTR-05")
def test_one_that_an_earlier_start_of_the_same_attempt_left_is_replaced(drive: Drive, docker: StandIn) -> None:
    run = drive.create("python3", "-c", WAITS, container=docker.container, environ=docker.environ)
    docker.write("labels", json.dumps({LABEL_RUN: run.run_id, LABEL_DIRECTORY: run.run_dir}))
    docker.write("taken")
    run.start()
    docker.begin()
    run.running()
    assert docker.asked("rm") == [f"rm --force --volumes {ID}"]
    run.ask()
    assert run.ended().outcome is Outcome.STOPPED
    wait_until(lambda: len(docker.asked("rm")) == 2, what="it is removed")
