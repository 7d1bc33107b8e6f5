"""Reconciling: what is out of line is put in line and listed, nothing is started again, strangers are left alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.agent import observe, sentinel_records
from holdfast.agent.reconcile import Kind, reconcile
from holdfast.host.clock import epoch_s, format_utc, utc_now
from holdfast.model import wire
from holdfast.model.run import Ended, Outcome
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
    made = sentinel_records.Record(**{**values, **changes})
    path = sentinel_records.path_of(made.run_id, condition)
    os.makedirs(sentinel_records.directory(), mode=0o700, exist_ok=True)
    write(path, wire.to_bytes(made))
    return path


@pytest.mark.slow
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
    assert [deed.done for deed in shown.deeds] == [False] * 5
    assert shown.exit_code == 1
    assert [process.poll() for process in stale] == [None] * 5
    done = reconcile([root])
    assert {(deed.kind, deed.done, deed.problem) for deed in done.deeds} == {(Kind.SENTINEL, True, "")}
    whys = " | ".join(deed.why for deed in done.deeds)
    for word in ("has ended", "superseded by 2", "directory is gone", "life was over"):
        assert word in whys
    assert done.exit_code == 0
    assert [process.wait() for process in stale] == [-signal.SIGTERM] * 5
    assert good.poll() is None
    assert os.listdir(sentinel_records.directory()) == [os.path.basename(kept)]
    again_done = reconcile([root])
    assert (again_done.deeds, again_done.sentinels) == ((), 1)


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
    write(f"{sentinel_records.directory()}/torn.json", "{")
    done = reconcile([root])
    assert {(deed.kind, deed.why, deed.done) for deed in done.deeds} == {
        (Kind.RECORD, "its process is gone", True),
        (Kind.RECORD, "it ended long ago", True),
        (Kind.RECORD, "it cannot be read", True),
    }
    assert stranger.poll() is None
    left = [found.condition for _, found in sentinel_records.list_all() if found is not None]
    assert sorted(left) == ["failed", "step=1"]


def test_an_end_of_a_moment_ago_is_its_sentinels_own_business(
    tmp_path: Path, sleeper: Callable[[], subprocess.Popen[bytes]]
) -> None:
    fresh = Ended(utc_now(), Outcome.SUCCEEDED, 0, "exit code 0")
    run_dir = make_run(tmp_path, state=fresh)
    record(run_dir, sleeper().pid)
    assert reconcile([str(tmp_path)]).deeds == ()


def test_a_sentinel_that_went_along_with_an_automatic_attempt_stays(
    tmp_path: Path, sleeper: Callable[[], subprocess.Popen[bytes]]
) -> None:
    me = living_process(os.getpid())
    run_dir = make_run(tmp_path, state=ended(Outcome.FAILED, 1))
    write(f"{run_dir}/attempts/1/{wire.RETRY}", json.dumps({"retry": True}))
    make_run(tmp_path, state=running(keeper=me, job=me), supervisor=me, attempt=2)
    waiting = sleeper()
    record(run_dir, waiting.pid)
    assert reconcile([str(tmp_path)]).deeds == ()
    assert waiting.poll() is None


@pytest.mark.requirement("MON-11", "PROC-15")
def test_a_run_whose_supervisor_died_is_taken_up_and_its_job_goes_on(drive: Drive) -> None:
    run = drive(*job("stay"))
    before = run.ready()
    run.kill_supervisor()
    shown = reconcile([drive.root], dry_run=True)
    assert [(deed.subject, deed.done) for deed in shown.deeds] == [(run.run_id, False)]
    assert not run.supervised()
    (deed,) = reconcile([drive.root]).deeds
    assert (deed.done, deed.problem) == (True, "")
    assert "the job is not touched" in deed.deed
    assert run.running().job == before.job
    assert reconcile([drive.root]).deeds == ()
    run.ask()
    run.ended()


@pytest.mark.requirement("MON-11", "PROC-15")
def test_a_run_of_which_nothing_is_left_is_recorded_as_lost_and_not_started_again(drive: Drive) -> None:
    run = drive(*job("stay"))
    state = run.ready()
    run.kill_supervisor()
    run.kill(state.keeper)
    run.kill(state.job.process)
    (deed,) = reconcile([drive.root]).deeds
    assert (deed.done, deed.problem) == (True, "")
    assert run.ended().outcome is Outcome.LOST
    assert observe.list_attempts(run.run_dir) == (1,)
    run.assert_gone()


@pytest.mark.requirement("MON-11", "MON-15")
def test_a_job_that_had_not_begun_is_called_off(drive: Drive) -> None:
    run = drive.create(*job("stay"))
    state = run.read(wire.STATE)
    state["supervisor"] = wire.encode(dead_process())
    state["state"] = {"kind": "preflight", "since": utc_now()}
    write(run.path(wire.STATE), json.dumps(state))
    (deed,) = reconcile([drive.root]).deeds
    assert "called off" in deed.deed
    assert deed.done
    assert run.ended().outcome is Outcome.STOPPED
    assert run.output() == b""
    wait_until(lambda: not run.alive(), what="nothing of it lives")


def test_what_cannot_be_looked_at_is_not_in_line(tmp_path: Path) -> None:
    file = tmp_path / "runs"
    file.write_text("")
    found = reconcile([str(file)])
    assert found.exit_code == 1
    assert "Not a directory" in found.unread[0]
    assert reconcile([str(tmp_path / "none")]).exit_code == 0
