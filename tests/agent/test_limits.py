"""Limits that hold on the running tree, and an outcome that says so when one ended it."""

from __future__ import annotations

import os
import signal

import pytest

from holdfast.model import wire
from holdfast.model.job import IsolationLevel, Limits, UnenforcedPolicy
from holdfast.model.run import Outcome, RequestKind
from tests.agent.driving import Drive, job, read_text
from tests.waiting import wait_until

pytestmark = pytest.mark.process

MIB = 1024**2


@pytest.mark.gotcha("U9")
@pytest.mark.requirement("LIM-01")
def test_LIM_01_a_hog_is_killed_at_its_memory_limit_and_the_outcome_says_so(drive: Drive) -> None:
    run = drive(*job("hog", 300 * MIB), limits=Limits(memory_bytes=100 * MIB))
    end = run.ended()
    assert end.outcome is Outcome.FAILED
    assert end.status is not None
    assert end.status.signal == signal.SIGKILL
    assert b"ready" not in run.output()
    record = run.read(wire.EXIT)
    assert record["usage"]["oom_kills"], record["usage"]
    assert "memory" in end.evidence, end.evidence


@pytest.mark.slow
@pytest.mark.requirement("LIM-01")
def test_LIM_01_a_job_below_its_limit_is_left_alone(drive: Drive) -> None:
    run = drive(*job("hog", 30 * MIB), limits=Limits(memory_bytes=200 * MIB))
    run.ready()
    run.ask()
    assert run.ended().outcome is Outcome.STOPPED


@pytest.mark.requirement("LIM-01")
def test_limits_are_in_the_manifest_with_their_mechanism(drive: Drive) -> None:
    run = drive(*job("exit_with", 0), limits=Limits(memory_bytes=200 * MIB, tasks=50, open_files=64))
    run.ended()
    limits = {limit["name"]: limit["mechanism"] for limit in run.read(wire.MANIFEST)["limits"]}
    assert limits.keys() >= {"memory", "tasks", "open_files"}
    assert limits["open_files"] == "rlimit"


@pytest.mark.slow
def test_the_task_limit_stops_a_fork_bomb_from_growing(drive: Drive) -> None:
    program = (
        "import os, signal\nn = 0\n"
        "try:\n  while n < 200:\n    if os.fork() == 0: signal.pause()\n    n += 1\n"
        "except OSError: os.write(1, b'refused after %d\\n' % n)\nos.write(1, b'ready\\n')\nsignal.pause()\n"
    )
    run = drive(job()[0], "-I", "-S", "-c", program, limits=Limits(tasks=20))
    run.ready()
    assert b"refused after" in run.output()
    assert len(run.marked()) <= 20
    run.ask(RequestKind.STOP_NOW)
    run.ended()
    run.assert_gone()


@pytest.mark.slow
def test_a_limit_that_nothing_can_hold_fails_or_warns_as_the_job_says(drive: Drive) -> None:
    """A CPU number that this box does not have."""
    request = Limits(affinity=(4095,))
    refused = drive(*job("exit_with", 0), limits=request).ended()
    assert (refused.outcome, refused.exit_code) == (Outcome.FAILED, 78)
    assert "affinity" in refused.evidence
    taken = drive(*job("exit_with", 0), limits=Limits(affinity=(4095,), unenforced=UnenforcedPolicy.WARN)).ended()
    assert taken.outcome is Outcome.SUCCEEDED


@pytest.mark.slow
def test_the_group_is_the_jobs_and_not_ours(drive: Drive) -> None:
    run = drive(*job("stay"), limits=Limits(memory_bytes=200 * MIB), containment=IsolationLevel.SUBREAPER)
    state = run.ready()
    named = run.read(wire.MANIFEST)["cgroup"]
    assert named is not None
    places = [path for path in (named["unified"], *named["v1"].values()) if path]
    held = {int(pid) for path in places for pid in read_text(f"{path}/cgroup.procs").split()}
    assert held == {state.job.process.pid}
    assert os.getpid() not in held
    run.ask()
    run.ended()
    wait_until(lambda: not any(os.path.exists(path) for path in places))


@pytest.mark.slow
@pytest.mark.requirement("LIM-01")
def test_LIM_01_an_adopted_job_is_still_under_its_limit(drive: Drive) -> None:
    run = drive(*job("stay"), limits=Limits(memory_bytes=64 * MIB))
    run.ready()
    run.kill_supervisor()
    run.adopt()
    manifest = run.read(wire.MANIFEST)
    memory = manifest["cgroup"]["v1"].get("memory") or manifest["cgroup"]["unified"]
    name = "memory.limit_in_bytes" if "memory" in manifest["cgroup"]["v1"] else "memory.max"
    assert int(read_text(f"{memory}/{name}")) == 64 * MIB
    run.ask()
    run.ended()
