"""Reconciling: what is out of line is put in line and listed, nothing is started again, strangers are left alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.agent.control.create import next_attempt
from holdfast.agent.control.settle import settle_vanished
from holdfast.agent.kept_environment import keep_environment, read_kept
from holdfast.agent.patrol.reconcile import RepairKind, reconcile
from holdfast.agent.patrol.sentinel import records
from holdfast.agent.view import observe
from holdfast.host.clock import epoch_s, format_utc, utc_now
from holdfast.host.contain.create import create_group, find_group
from holdfast.host.files import fallback, files
from holdfast.model import wire
from holdfast.model.job import Retries
from holdfast.model.record import replace
from holdfast.model.run import Ended, Outcome, Preflight
from tests.agent.driving import job
from tests.rundirs import dead_process, ended, living_process, make_run, running, write
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.agent.driving import Drive

pytestmark = pytest.mark.process


@pytest.fixture
def sleeper() -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    """Processes that stand for sentinels."""
    made: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        made.append(subprocess.Popen(["sleep", "600"], start_new_session=True))
        return made[-1]

    yield start
    for process in made:
        process.kill()
        process.wait()


def record(run_dir: str, pid: int, condition: str = "ended", **changes: Any) -> str:
    """Write a sentinel's record; its path."""
    values: dict[str, Any] = {
        "run_id": os.path.basename(run_dir),
        "run_dir": run_dir,
        "attempt": 1,
        "condition": condition,
        "host": os.uname().nodename,
        "process": living_process(pid),
        "armed_at": utc_now(),
        "until": epoch_s() + 600,
    }
    made = records.SentinelRecord(**{**values, **changes})
    path = records.path_of(made.run_id, condition)
    os.makedirs(records.directory(), mode=0o700, exist_ok=True)
    write(path, wire.to_bytes(made))
    return path


@pytest.mark.slow
@pytest.mark.gotcha("U16")
@pytest.mark.requirement("MON-11", "B-87")
def test_five_stale_sentinels_are_ended_and_listed_and_a_good_one_stays(
    tmp_path: Path, sleeper: Callable[[], subprocess.Popen[bytes]]
) -> None:
    root = str(tmp_path / "runs")
    me = living_process(os.getpid())
    live = make_run(root, "20261120-100000-live-0a1b", running(keeper=me, job=me), supervisor=me)
    over = make_run(root, "20261120-100001-over-0a1b", ended())
    again = make_run(root, "20261120-100002-again-0a1b", running(keeper=me, job=me), supervisor=me)
    make_run(root, "20261120-100002-again-0a1b", running(keeper=me, job=me), supervisor=me, attempt=2)
    stale = [sleeper() for _ in range(5)]
    record(over, stale[0].pid)
    record(over, stale[1].pid, "step=5")
    record(again, stale[2].pid)
    record(f"{root}/20261120-100003-none-0a1b", stale[3].pid)
    record(live, stale[4].pid, "failed", until=epoch_s() - 60)
    good = sleeper()
    kept = record(live, good.pid)
    shown = reconcile([root], dry_run=True)
    assert [repair.done for repair in shown.repairs] == [False] * 5
    assert shown.exit_code == 1
    assert [process.poll() for process in stale] == [None] * 5
    done = reconcile([root])
    assert {(repair.kind, repair.done, repair.problem) for repair in done.repairs} == {(RepairKind.SENTINEL, True, "")}
    whys = " | ".join(repair.why for repair in done.repairs)
    for word in ("has ended", "superseded by 2", "directory is gone", "life was over"):
        assert word in whys
    assert done.exit_code == 0
    assert [process.wait() for process in stale] == [-signal.SIGTERM] * 5
    assert good.poll() is None
    assert os.listdir(records.directory()) == [os.path.basename(kept)]
    again_done = reconcile([root])
    assert (again_done.repairs, again_done.sentinels) == ((), 1)


@pytest.mark.requirement("MON-11", "PROC-08")
def test_stale_records_go_and_nobody_else_is_touched(
    tmp_path: Path, sleeper: Callable[[], subprocess.Popen[bytes]]
) -> None:
    root = str(tmp_path / "runs")
    over = make_run(root, "20261120-100001-over-0a1b", ended())
    stranger = sleeper()
    real = living_process(stranger.pid)
    record(over, stranger.pid, process=replace(real, start_ticks=real.start_ticks - 1))
    record(over, stranger.pid, "failed", host="b17")
    record(over, stranger.pid, "step=1", outcome="met", ended_at=utc_now(), detached=True)
    record(over, stranger.pid, "step=2", outcome="met", ended_at=format_utc(epoch_s() - 8 * 86400), detached=True)
    write(f"{records.directory()}/torn.json", "{")
    done = reconcile([root])
    assert {(repair.kind, repair.why, repair.done) for repair in done.repairs} == {
        (RepairKind.RECORD, "its process is gone", True),
        (RepairKind.RECORD, "it ended long ago", True),
        (RepairKind.RECORD, "it cannot be read", True),
    }
    assert stranger.poll() is None
    left = [found.condition for _, found in records.list_all() if found is not None]
    assert sorted(left) == ["failed", "step=1"]


@pytest.mark.slow
def test_an_end_of_a_moment_ago_is_its_sentinels_own_business(
    tmp_path: Path, sleeper: Callable[[], subprocess.Popen[bytes]]
) -> None:
    fresh = Ended(utc_now(), Outcome.SUCCEEDED, 0, "exit code 0")
    run_dir = make_run(tmp_path, state=fresh)
    record(run_dir, sleeper().pid)
    assert reconcile([str(tmp_path)]).repairs == ()


def test_a_sentinel_that_went_along_with_an_automatic_attempt_stays(
    tmp_path: Path, sleeper: Callable[[], subprocess.Popen[bytes]]
) -> None:
    me = living_process(os.getpid())
    run_dir = make_run(tmp_path, state=ended(Outcome.FAILED, 1))
    write(f"{run_dir}/attempts/1/{wire.RETRY}", json.dumps({"retry": True}))
    make_run(tmp_path, state=running(keeper=me, job=me), supervisor=me, attempt=2)
    waiting = sleeper()
    record(run_dir, waiting.pid)
    assert reconcile([str(tmp_path)]).repairs == ()
    assert waiting.poll() is None


@pytest.mark.requirement("MON-11", "PROC-15")
def test_a_run_whose_supervisor_died_is_taken_up_and_its_job_goes_on(drive: Drive) -> None:
    run = drive(*job("stay"))
    before = run.ready()
    run.kill_supervisor()
    shown = reconcile([drive.root], dry_run=True)
    assert [(repair.subject, repair.done) for repair in shown.repairs] == [(run.run_id, False)]
    assert not run.supervised()
    (repair,) = reconcile([drive.root]).repairs
    assert (repair.done, repair.problem) == (True, "")
    assert "the job is not touched" in repair.repair
    assert run.running().job == before.job
    assert reconcile([drive.root]).repairs == ()
    run.ask()
    run.ended()


@pytest.mark.requirement("MON-11", "PROC-15")
def test_a_run_of_which_nothing_is_left_is_recorded_as_lost_and_not_started_again(drive: Drive) -> None:
    run = drive(*job("stay"))
    state = run.ready()
    run.kill_supervisor()
    run.kill(state.keeper)
    run.kill(state.job.process)
    (repair,) = reconcile([drive.root]).repairs
    assert (repair.done, repair.problem) == (True, "")
    assert run.ended().outcome is Outcome.LOST
    assert observe.list_attempts(run.run_dir) == (1,)
    run.assert_gone()


@pytest.mark.slow
@pytest.mark.requirement("MON-11", "MON-15")
def test_a_job_that_had_not_begun_is_called_off(drive: Drive) -> None:
    run = drive.create(*job("stay"))
    state = run.read(wire.STATE)
    state["supervisor"] = wire.encode(dead_process())
    state["state"] = {"kind": "preflight", "since": utc_now()}
    write(run.path(wire.STATE), json.dumps(state))
    (repair,) = reconcile([drive.root]).repairs
    assert "called off" in repair.repair
    assert repair.done
    assert run.ended().outcome is Outcome.STOPPED
    assert run.output() == b""
    wait_until(lambda: not run.alive(), what="nothing of it lives")


@pytest.mark.slow
def test_what_cannot_be_looked_at_is_not_in_line(tmp_path: Path) -> None:
    file = tmp_path / "runs"
    file.write_text("")
    found = reconcile([str(file)])
    assert found.exit_code == 1
    assert "Not a directory" in found.unread[0]
    assert reconcile([str(tmp_path / "none")]).exit_code == 0


@pytest.mark.slow
@pytest.mark.requirement("POST-04")
@pytest.mark.skipif(os.geteuid() != 0, reason="control groups of this machine belong to root")
def test_empty_control_groups_of_ended_runs_go_and_others_stay(tmp_path: Path) -> None:
    root, me = str(tmp_path / "runs"), living_process(os.getpid())
    # Control groups are the whole machine's: other tests must not meet these.
    ids = [f"20261120-10000{number}-groups-{os.urandom(2).hex()}" for number in range(3)]
    make_run(root, ids[0], ended())
    make_run(root, ids[1], running(keeper=me, job=me), supervisor=me)
    names = [f"{run_id}.1" for run_id in ids]
    made = [create_group(name) for name in names]
    if None in made:
        pytest.skip("no control groups here")
    try:
        shown = reconcile([root], dry_run=True)
        assert [(repair.kind, repair.done) for repair in shown.repairs] == [(RepairKind.REST, False)]
        done = reconcile([root])
        assert [(repair.kind, repair.repair) for repair in done.repairs] == [(RepairKind.REST, "1 thing removed")]
        assert [find_group(name) is None for name in names] == [True, False, False]
    finally:
        for group in made:
            assert group is not None
            group.remove()


@pytest.mark.requirement("POST-04")
@pytest.mark.skipif(os.geteuid() != 0, reason="control groups of this machine belong to root")
def test_a_run_whose_supervisor_died_before_its_job_leaves_no_control_group(drive: Drive) -> None:
    run = drive.create(*job("stay"))
    name = f"{run.run_id}.1"
    if create_group(name) is None:
        pytest.skip("no control groups here")
    state = run.state()
    write(run.path(wire.STATE), wire.to_bytes(replace(state, state=Preflight(utc_now()), supervisor=dead_process())))
    assert settle_vanished(run.run_dir).over
    assert run.ended().outcome is Outcome.STOPPED
    assert find_group(name) is None


@pytest.mark.slow
@pytest.mark.requirement("MON-11", "OBS-02", "POST-03")
def test_an_end_without_its_exit_record_is_told_and_finished(drive: Drive) -> None:
    """Seen: 33 of 33 runs that were killed there stayed so, `ls` called them succeeded, `reconcile` did nothing."""
    run = drive(*job("exit_with", 3))
    run.ended()
    for name in (wire.EXIT, wire.VERDICT, wire.FAILURE):
        os.unlink(run.path(name))
    assert observe.observe_run(run.run_dir).condition == "finalizing, unsupervised"
    report = reconcile([drive.root])
    assert [(repair.subject, repair.done) for repair in report.repairs] == [(run.run_id, True)]
    assert run.read(wire.EXIT)["exit_code"] == 3
    assert os.path.exists(run.path(wire.FAILURE))
    assert run.read(wire.VERDICT)
    assert not reconcile([drive.root]).repairs


@pytest.mark.slow
@pytest.mark.requirement("MON-11")
def test_a_run_whose_supervisor_died_at_once_is_ended_at_once(drive: Drive) -> None:
    run = drive.create("true")
    state = replace(run.state(), supervisor=dead_process())
    write(run.path(wire.STATE), wire.to_bytes(state))
    report = reconcile([drive.root])
    assert [(repair.subject, repair.done) for repair in report.repairs] == [(run.run_id, True)]
    assert run.ended().outcome is Outcome.STOPPED


@pytest.mark.slow
@pytest.mark.requirement("OBS-02", "POST-03")
def test_all_else_is_written_when_the_exit_record_is(drive: Drive) -> None:
    """Also the attempt that follows has begun then."""
    words = "import sys; sys.exit('wandb.errors.CommError: Run initialization has timed out after 90.0 sec.')"
    run = drive(sys.executable, "-c", words, retries=Retries(max=1, wait_s=0.01))
    run.ended()
    at = os.stat(run.path(wire.EXIT)).st_mtime_ns
    earlier = [run.path(name) for name in (wire.VERDICT, wire.FAILURE, wire.MANIFEST, wire.RETRY)]
    for path in (*earlier, f"{run.run_dir}/{wire.ATTEMPTS}"):
        assert os.stat(path).st_mtime_ns <= at, path
    assert "outcome" in run.read(wire.MANIFEST)
    run.attempt = 2
    assert run.ended().exit_code == 1


@pytest.mark.slow
@pytest.mark.parametrize("kept", [False, True])
def test_an_attempt_that_was_to_follow_is_begun_with_the_kept_environment(drive: Drive, *, kept: bool) -> None:
    """Its supervisor was killed before it had taken it up."""
    run = drive.create("sh", "-c", 'echo "$MARK $HOLDFAST_REASON"')
    write(run.path(wire.STATE), wire.to_bytes(replace(run.state(), state=ended(Outcome.FAILED, 1))))
    write(run.path(wire.EXIT), json.dumps({"outcome": "failed", "exit_code": 1}))
    write(run.path(wire.RETRY), json.dumps({"retry": True}))
    run.attempt = next_attempt(run.run_dir, "retry", generation=1)
    write(run.path(wire.STATE), wire.to_bytes(replace(run.state(), created_at="2020-01-01T00:00:00.000Z")))
    if kept:
        keep_environment(run.run_id, {**drive.environ, "MARK": "kept"})
    (repair,) = reconcile([drive.root]).repairs
    assert (repair.done, "is begun" in repair.repair, "called off" in repair.repair) == (True, kept, not kept)
    assert run.ended().outcome is (Outcome.SUCCEEDED if kept else Outcome.STOPPED)
    assert run.output() == (b"kept retry\n" if kept else b"")
    assert read_kept(run.run_id) is None


def test_an_environment_that_was_half_kept_goes_once_it_is_nobodys(tmp_path: Path) -> None:
    root = str(tmp_path / "runs")
    memory = fallback.private_directory(fallback.MEMORY_ROOTS)
    assert memory is not None
    left = []
    for name, age_s in (("old", 7200), ("new", 60)):
        run_id = os.path.basename(make_run(root, f"20261120-100000-{name}-0a1b", ended(), supervisor=dead_process()))
        left.append(f"{memory}/.{run_id}.environment.4242.{os.urandom(4).hex()}.tmp")
        write(left[-1], b'{"TOKEN": "s')
        os.utime(left[-1], (epoch_s() - age_s,) * 2)
    other = f"{memory}/.20261120-100000-elsewhere-0a1b.environment.4242.{os.urandom(4).hex()}.tmp"
    write(other, b"{}")
    os.utime(other, (epoch_s() - 7200,) * 2)
    try:
        assert reconcile([root], dry_run=True).repairs
        assert [os.path.exists(path) for path in (*left, other)] == [True, True, True]
        reconcile([root])
        assert [os.path.exists(path) for path in (*left, other)] == [False, True, True]
    finally:
        for path in (*left, other):
            files.remove_quietly(path)


@pytest.mark.slow
def test_records_that_a_full_disk_refused_are_brought_home(tmp_path: Path) -> None:
    root = str(tmp_path / "runs")
    run_dir = make_run(root, "20261120-100000-full-0a1b", ended(), supervisor=dead_process())
    live = make_run(root, "20261120-100000-live-0a1b", ended(), supervisor=living_process(os.getpid()))
    for place in (run_dir, live):
        aside = fallback.directory(os.path.basename(place), 1)
        assert aside is not None
        os.makedirs(aside, mode=0o700)
        write(f"{aside}/verdict.json", b'{"schema": 1}')
    try:
        verdict = f"{run_dir}/attempts/1/verdict.json"
        # A directory in its place stands for the disk that still takes nothing.
        os.mkdir(verdict)
        refused = reconcile([root])
        assert [(repair.subject, repair.done) for repair in refused.repairs] == [(os.path.basename(run_dir), False)]
        assert "see df" in refused.repairs[0].problem
        os.rmdir(verdict)
        assert reconcile([root], dry_run=True).exit_code == 1
        assert not os.path.exists(verdict)
        report = reconcile([root])
        assert [repair.done for repair in report.repairs] == [True]
        assert os.path.exists(verdict)
        # Whose supervisor lives does it itself.
        left = fallback.list_aside()
        assert ((os.path.basename(live), 1) in left, (os.path.basename(run_dir), 1) in left) == (True, False)
        assert reconcile([root]).repairs == ()
    finally:
        fallback.clear(os.path.basename(live), 1)
        fallback.clear(os.path.basename(run_dir), 1)
