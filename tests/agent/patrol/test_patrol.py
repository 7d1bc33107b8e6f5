"""One patrol over real run directories and real runs: what it says, and that it changes nothing."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import time
from typing import TYPE_CHECKING

import pytest

from holdfast.agent.patrol import gather, memory, patrol, watch
from holdfast.agent.patrol.tick import ObservedRun, PatrolResult
from holdfast.core.patrol.evidence import RunStatus, StallLimits
from holdfast.diagnosis.ended.judgement import EndedJudgement
from holdfast.host.clock import epoch_s, format_utc
from holdfast.model import wire
from holdfast.model.record import replace
from holdfast.model.run import Created, Ended, Outcome
from holdfast.model.verdict import Confidence, FailureClass, Verdict
from tests.agent.driving import job
from tests.rundirs import dead_process, ended, living_process, make_run, running, write
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.agent.driving import Drive

pytestmark = pytest.mark.process

LONG_AGO = epoch_s() - 10_000


def hash_tree(root: str) -> str:
    """Names, sizes, times and contents of everything below."""
    digest = hashlib.sha256()
    for directory, names, files in os.walk(root):
        names.sort()
        digest.update(directory.encode())
        for name in sorted(files):
            path = f"{directory}/{name}"
            facts = os.lstat(path)
            digest.update(f"{name} {facts.st_size} {facts.st_mtime_ns} {facts.st_mode}".encode())
            with open(path, "rb") as file:
                digest.update(file.read())
    return digest.hexdigest()


def make_live(root: Path | str, run_id: str, *, samples: list[dict[str, object]] | None = None) -> str:
    """A run whose recorded processes are this test's own."""
    me = living_process(os.getpid())
    run_dir = make_run(root, run_id, running(keeper=me, job=me), supervisor=me)
    if samples:
        lines = "".join(json.dumps(sample) + "\n" for sample in samples)
        write(f"{run_dir}/attempts/1/{wire.HEALTH}", lines)
    return run_dir


def sample(at: float, **values: object) -> dict[str, object]:
    """One line of health.jsonl."""
    return {"utc": format_utc(at), "cards": [], **values}


def make_old(run_dir: str) -> None:
    """As if it had been made long ago."""
    os.utime(run_dir, (LONG_AGO, LONG_AGO))


def only(tick: PatrolResult) -> ObservedRun:
    """The one run of a tick."""
    (seen,) = tick.seen
    return seen


@pytest.mark.slow
@pytest.mark.requirement("MON-02", "MON-15")
def test_two_ticks_say_the_same_and_change_nothing(tmp_path: Path) -> None:
    root = str(tmp_path / "runs")
    make_live(root, "20261120-100000-alive-0a1b")
    make_run(root, "20261120-100001-done-0a1b", ended())
    make_run(root, "20261120-100002-gone-0a1b", running(), supervisor=dead_process())
    before = hash_tree(root)
    first, second = patrol.run_patrol([root]), patrol.run_patrol([root])
    assert first.summary == second.summary == "3 runs: 1 running, 1 finished, 1 dead"
    assert (first.exit_code, second.exit_code) == (1, 1)
    assert hash_tree(root) == before
    gone = next(seen for seen in first.seen if "gone" in seen.run_id)
    assert gone.judgement.ending.action == f"holdfast restart {gone.run_id}"


@pytest.mark.requirement("MON-09", "B-62", "B-84")
def test_without_a_job_nothing_is_alive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = "20261120-100000-gone-0a1b"
    make_run(tmp_path, run_id, running(), supervisor=dead_process())
    # A patrol that was started from inside a job has that job's marker on it.
    monkeypatch.setenv("HOLDFAST_RUN_ID", run_id)
    monkeypatch.setenv("HOLDFAST_ATTEMPT", "1")
    tick = patrol.run_patrol([str(tmp_path)])
    assert (tick.alive, only(tick).standing) == (0, RunStatus.DEAD)
    assert patrol.run_patrol([str(tmp_path / "none")]).alive == 0


@pytest.mark.requirement("MON-06", "MON-13", "B-32", "B-63")
def test_a_string_in_an_old_log_decides_nothing(tmp_path: Path) -> None:
    run_id = "20261120-100000-again-0a1b"
    make_run(tmp_path, run_id, ended(Outcome.FAILED, 1))
    write(f"{tmp_path}/{run_id}/attempts/1/{wire.OUTPUT}", "Traceback (most recent call last):\nTraining complete\n")
    me = living_process(os.getpid())
    make_run(tmp_path, run_id, running(keeper=me, job=me), supervisor=me, attempt=2)
    write(f"{tmp_path}/{run_id}/attempts/2/{wire.OUTPUT}", "mean squared Error 0.1\n0 errors\nTraining complete\n")
    seen = only(patrol.run_patrol([str(tmp_path)]))
    assert (seen.attempt, seen.standing, seen.escalate) == (2, RunStatus.RUNNING, False)


@pytest.mark.requirement("MON-07", "OBS-10")
def test_a_run_whose_steps_stopped_is_stalled_and_one_that_moves_is_not(tmp_path: Path) -> None:
    now = epoch_s()
    steps = [sample(now - 6000 + 30 * n, step=n, cpu_s=1.0 * n) for n in range(40)]
    stood = [sample(now - 4800 + 30 * n, step=39, cpu_s=40.0) for n in range(160)]
    stuck = make_live(tmp_path, "20261120-100000-stuck-0a1b", samples=[*steps, *stood])
    write(f"{stuck}/attempts/1/{wire.HEARTBEAT}", json.dumps({"step": 39}))
    slow = [sample(now - 6000 + 30 * n, step=n // 10, cpu_s=1.0 * n) for n in range(200)]
    make_live(tmp_path, "20261120-100001-slow-0a1b", samples=slow)
    tick = patrol.run_patrol([str(tmp_path)])
    found = {seen.run_id[16:-5]: seen for seen in tick.seen}
    assert found["stuck"].standing is RunStatus.STALLED
    assert found["stuck"].judgement.alarms[0].action == f"holdfast diagnose {found['stuck'].run_id}"
    assert (found["slow"].standing, found["slow"].escalate) == (RunStatus.RUNNING, False)


@pytest.mark.requirement("MON-07", "MON-06")
def test_a_stall_that_the_run_has_recovered_from_is_over(tmp_path: Path) -> None:
    def event(name: str, **data: object) -> str:
        return json.dumps({"seq": 1, "event": name, "data": {"clock": "no_progress", **data}}) + "\n"

    run_dir = make_live(tmp_path, "20261120-100000-clock-0a1b")
    path = f"{run_dir}/attempts/1/{wire.EVENTS}"
    write(path, event("stalled", what="no step for 400 s"))
    stalled = only(patrol.run_patrol([str(tmp_path)]))
    assert (stalled.standing, stalled.escalate) == (RunStatus.STALLED, True)
    for after in ("recovered", "supervisor_resumed"):
        # A new supervisor's clocks begin anew and say it again when it is still so.
        write(path, event("stalled", what="no step for 400 s") + event(after))
        assert only(patrol.run_patrol([str(tmp_path)])).standing is RunStatus.RUNNING


def test_a_supervisor_that_has_never_taken_a_sample_is_told(tmp_path: Path) -> None:
    me = living_process(os.getpid())
    for name, age in (("young", 20.0), ("mute", 3600.0)):
        since = format_utc(epoch_s() - age)
        make_run(
            tmp_path, f"20261120-100000-{name}-0a1b", replace(running(keeper=me, job=me), since=since), supervisor=me
        )
    found = {seen.run_id[16:-5]: seen for seen in patrol.run_patrol([str(tmp_path)]).seen}
    assert [line.row for line in found["mute"].judgement.alarms] == ["silent"]
    assert not found["young"].escalate


@pytest.mark.requirement("MON-10", "STOR-01")
def test_disks_are_judged_by_the_last_sample(tmp_path: Path) -> None:
    size = {"free_bytes": 60 << 30, "total_bytes": 100 << 30, "free_inodes": 50, "total_inodes": 100}
    disks = [
        {"mount_point": "/well", "kind": "ext4", **size, "full_in_s": 90_000, "full_between_s": [9000, None]},
        {"mount_point": "/soon", "kind": "ext4", **size, "full_in_s": 1800, "full_between_s": [900, 3600]},
        {"mount_point": "/unsure", "kind": "ext4", **size, "full_in_s": 1800, "full_between_s": [900, None]},
        {"mount_point": "/many", "kind": "ext4", **size, "free_inodes": 3},
        {"mount_point": "/gone", "kind": "nfs4", "unread": "no answer within 5 s"},
    ]
    make_live(tmp_path, "20261120-100000-disks-0a1b", samples=[sample(epoch_s(), disks=disks)])
    said = {line.row: line.text for line in only(patrol.run_patrol([str(tmp_path)])).judgement.alarms}
    assert said == {
        "inodes": "/many: 97% of the inodes are used",
        "filling": "/soon: full in 30m00s at this rate",
        "unread": "could not be read: the disk /gone: no answer within 5 s",
    }


@pytest.mark.requirement("MON-10", "LIM-09")
def test_memory_near_the_limit_and_a_card_at_fault_are_told(tmp_path: Path) -> None:
    now = epoch_s()
    card = {"index": 0, "utilisation_pct": 50, "faults": ["lost: fell off the bus"]}
    facts = {"memory_bytes": 99, "memory_limit_bytes": 100, "cards": [card], "step": 1}
    make_live(tmp_path, "20261120-100000-cache-0a1b", samples=[sample(now, memory_anon_bytes=50, **facts)])
    make_live(tmp_path, "20261120-100001-full-0a1b", samples=[sample(now, memory_anon_bytes=95, **facts)])
    rows = {seen.run_id[16:-5]: seen.judgement.rows[1:] for seen in patrol.run_patrol([str(tmp_path)]).seen}
    assert rows == {"cache": ("card",), "full": ("memory", "card")}


@pytest.mark.requirement("MON-10")
def test_a_disk_without_inodes_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_live(tmp_path, "20261120-100000-many-0a1b")
    real = os.statvfs(tmp_path)
    fields = list(real)
    fields[5:8] = [100_000, 4_000, 4_000]
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result(fields))
    seen = only(patrol.run_patrol([str(tmp_path)]))
    assert "96% of the inodes" in next(line.text for line in seen.judgement.alarms if line.row == "inodes")


@pytest.mark.requirement("MON-16", "MON-12")
def test_a_directory_that_is_not_whole_is_unknown_and_says_why(tmp_path: Path) -> None:
    cases = {"record": wire.RUN, "state": f"attempts/1/{wire.STATE}"}
    for number, (name, path) in enumerate(cases.items()):
        run_dir = make_live(tmp_path, f"20261120-10000{number}-{name}-0a1b")
        os.unlink(f"{run_dir}/{path}")
        write(f"{run_dir}/attempts/1/{wire.SUPERVISOR_LOG}", b"taken up once\n")
        make_old(run_dir)
    bare = make_run(tmp_path, "20261120-100005-bare-0a1b", Created())
    os.rename(f"{bare}/attempts/1", f"{tmp_path}/elsewhere")
    make_old(bare)
    tick = patrol.run_patrol([str(tmp_path)])
    said = {seen.run_id[16:-5]: seen.judgement.ending.text for seen in tick.seen}
    assert {seen.standing for seen in tick.seen} == {RunStatus.UNKNOWN}
    assert "run.json does not exist" in said["record"]
    assert "attempts/1/state.json does not exist" in said["state"]
    assert "no attempt" in said["bare"]
    assert tick.exit_code == 1


@pytest.mark.requirement("MON-16")
def test_a_run_of_a_newer_version_a_damaged_one_and_another_hosts_are_unknown(tmp_path: Path) -> None:
    newer = make_live(tmp_path, "20261120-100000-newer-0a1b")
    record = json.loads((tmp_path / "20261120-100000-newer-0a1b" / "run.json").read_text())
    write(f"{newer}/run.json", json.dumps({**record, "schema": 7}))
    broken = make_live(tmp_path, "20261120-100001-broken-0a1b")
    write(f"{broken}/attempts/1/state.json", b"\xff\xfe{")
    make_run(tmp_path, "20261120-100002-far-0a1b", running(), supervisor=dead_process(), host="b17")
    tick = patrol.run_patrol([str(tmp_path)])
    said = {seen.run_id[16:-5]: seen for seen in tick.seen}
    assert {seen.standing for seen in tick.seen} == {RunStatus.UNKNOWN}
    assert "newer holdfast (schema 7" in said["newer"].judgement.ending.text
    assert "state.json" in said["broken"].judgement.ending.text
    assert said["broken"].escalate
    assert "host b17" in said["far"].judgement.ending.text
    assert not said["far"].escalate


@pytest.mark.slow
@pytest.mark.gotcha("GEN8")
@pytest.mark.requirement("MON-14")
def test_a_run_that_does_not_answer_costs_its_own_answer_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = gather.gather_evidence
    for number in range(3):
        make_live(tmp_path, f"20261120-10000{number}-r{number}-0a1b")

    def hang(run_dir: str, *args: object) -> object:
        if "-r1-" in run_dir:
            signal.pause()
        return good(run_dir, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(watch, "gather_evidence", hang)
    tick = patrol.run_patrol([str(tmp_path)], each_s=1.0)
    standings = {seen.run_id[16:-5]: seen.standing for seen in tick.seen}
    assert standings == {"r0": RunStatus.RUNNING, "r1": RunStatus.UNKNOWN, "r2": RunStatus.RUNNING}
    assert tick.exit_code == 1


@pytest.mark.slow
@pytest.mark.gotcha("U17")
@pytest.mark.requirement("MON-14")
def test_a_place_where_nothing_answers_is_given_up_and_a_patrol_ends_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(30):
        make_live(tmp_path, f"20261120-1000{number:02d}-r-0a1b")
    monkeypatch.setattr(watch, "gather_evidence", lambda *_: signal.pause())
    began = time.monotonic()
    tick = patrol.run_patrol([str(tmp_path)], each_s=1.0)
    assert len(tick.seen) == 30
    assert {seen.standing for seen in tick.seen} == {RunStatus.UNKNOWN}
    assert any("does not answer" in seen.judgement.ending.text for seen in tick.seen)
    late = patrol.run_patrol([str(tmp_path)], each_s=60.0, whole_s=1.0)
    assert {seen.standing for seen in late.seen} == {RunStatus.UNKNOWN}
    # Thirty runs of 60 s each: what is shown is that the bound holds, not how fast this machine is.
    assert time.monotonic() - began < 60


def test_a_strange_run_is_reported_and_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = gather.gather_evidence
    for number in range(2):
        make_live(tmp_path, f"20261120-10000{number}-r{number}-0a1b")

    def fail(run_dir: str, *args: object) -> object:
        if "-r1-" in run_dir:
            raise RecursionError("too deep")
        return good(run_dir, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(watch, "gather_evidence", fail)
    texts = {seen.run_id[16:-5]: seen.judgement.ending.text for seen in patrol.run_patrol([str(tmp_path)]).seen}
    assert "too deep" in texts["r1"]
    assert texts["r0"] == "running"


@pytest.mark.requirement("MON-10")
def test_a_failure_is_told_once_with_a_memory_and_a_standing_wrong_is_told_again(tmp_path: Path) -> None:
    root = str(tmp_path / "runs")
    fresh = Ended(format_utc(epoch_s()), Outcome.FAILED, 3, "the job ended with exit code 3")
    run_dir = make_run(root, "20261120-100000-failed-0a1b", fresh)
    judged = EndedJudgement(Verdict(FailureClass.BUG, Confidence.LIKELY, "read the traceback"))
    write(f"{run_dir}/attempts/1/{wire.VERDICT}", wire.to_bytes(judged))
    first = patrol.compare_with_memory(patrol.run_patrol([root]), memory.load_memory())
    assert first.exit_code == 1
    assert "(bug)" in only(first).judgement.ending.text
    assert only(first).judgement.ending.action == "read the traceback"
    memory.save_memory(first, memory.load_memory())
    again = patrol.compare_with_memory(patrol.run_patrol([root]), memory.load_memory())
    assert (again.exit_code, only(again).news, only(again).standing) == (0, False, RunStatus.DEAD)
    make_run(root, "20261120-100001-gone-0a1b", running(), supervisor=dead_process())
    for _ in range(2):
        later = patrol.compare_with_memory(patrol.run_patrol([root]), memory.load_memory())
        memory.save_memory(later, memory.load_memory())
        assert later.exit_code == 1
    assert not any(seen.news for seen in later.seen)


@pytest.mark.slow
@pytest.mark.requirement("MON-16")
def test_a_directory_of_live_runs_that_went_away_is_told_until_it_is_back(tmp_path: Path) -> None:
    here, there = str(tmp_path / "here"), str(tmp_path / "there")
    for root in (here, there):
        make_live(root, "20261120-100000-alive-0a1b")
    memory.save_memory(patrol.run_patrol([here, there]), memory.load_memory())
    os.rename(there, f"{there}.away")
    for _ in range(2):
        gone = patrol.compare_with_memory(patrol.run_patrol([here, there]), memory.load_memory())
        memory.save_memory(gone, memory.load_memory())
        assert gone.exit_code == 1
        assert "1 of its runs had not ended" in gone.blind[0]
    memory.save_memory(
        patrol.compare_with_memory(patrol.run_patrol([here]), memory.load_memory()), memory.load_memory()
    )
    os.rename(f"{there}.away", there)
    back = patrol.compare_with_memory(patrol.run_patrol([here, there]), memory.load_memory())
    assert (back.exit_code, [seen.news for seen in back.seen]) == (0, [False, False])


GARBAGE = (
    b"",
    b"{",
    b"[]",
    b"null\n",
    b"\xff" * 100,
    b"x" * 1_000_000,
    b'{"schema": "x", "job": 3, "utc": 3, "step": [], "phase": {}, "cards": [1], "disks": [3], "event": 1}\n',
    (
        b'{"job": {"stall": 1, "health_every_s": "x"}, "utc": "2026-11-20T10:00:00.000Z", "step": NaN, "data": 3,'
        b' "cards": [{"faults": 1, "utilisation_pct": "x"}], "disks": [{"free_bytes": -1, "full_between_s": [1, {}]}],'
        b' "cpu_s": 1e999, "memory_share": Infinity, "event": "stalled"}\n'
    ),
    b'{"a":' * 5000,
)


@pytest.mark.slow
@pytest.mark.requirement("MON-16")
@pytest.mark.parametrize(
    "name",
    [wire.RUN, wire.DESIRED, *(f"attempts/1/{name}" for name in (wire.STATE, wire.MANIFEST, wire.EVENTS, wire.HEALTH))]
    + [f"attempts/1/{name}" for name in (wire.HEARTBEAT, wire.STATUS, wire.EXIT, wire.FAILURE)],
)
def test_no_content_of_any_file_breaks_a_look(tmp_path: Path, name: str) -> None:
    for number, content in enumerate(GARBAGE):
        run_dir = make_live(tmp_path, f"20261120-10000{number}-bad-0a1b", samples=[sample(epoch_s(), step=1)])
        write(f"{run_dir}/{name}", content)
    tick = patrol.run_patrol([str(tmp_path)])
    assert len(tick.seen) == len(GARBAGE)
    said = [line.text for seen in tick.seen for line in (seen.judgement.ending, *seen.judgement.alarms)]
    assert not [text for text in said if "could not be looked at" in text]


def test_a_damaged_memory_tells_everything_anew(tmp_path: Path, isolated_environment: dict[str, str]) -> None:
    state = f"{isolated_environment['XDG_STATE_HOME']}/holdfast"
    os.makedirs(state, exist_ok=True)
    write(f"{state}/patrol.json", "{not json")
    found = patrol.compare_with_memory(patrol.run_patrol([str(tmp_path)]), memory.load_memory())
    assert "told anew" in found.notice


@pytest.mark.slow
@pytest.mark.requirement("MON-01", "MON-07")
def test_a_real_run_is_seen_running_stalled_and_finished_and_ends_without_any_watcher(drive: Drive) -> None:
    run = drive(*job("stay"), health_every_s=0.2)
    run.ready()
    seen = only(patrol.run_patrol([drive.root]))
    assert (seen.standing, seen.alive) == (RunStatus.RUNNING, True)
    soon = StallLimits(first_s=0.0, floor_s=0.0)

    def stalls() -> bool:
        return only(patrol.run_patrol([drive.root], limits=soon)).standing is RunStatus.STALLED

    # It prints nothing more and does nothing: what is needed are two samples that show that.
    wait_until(stalls, what="the patrol sees that it stands still")
    run.ask()
    run.ended()
    finished = only(patrol.run_patrol([drive.root]))
    assert (finished.standing, finished.alive, finished.escalate) == (RunStatus.FINISHED, False, False)


@pytest.mark.requirement("MON-15", "MON-06", "B-86")
def test_a_run_whose_processes_were_killed_is_dead_and_stays_as_it_is(drive: Drive) -> None:
    run = drive(*job("stay"))
    state = run.ready()
    run.kill_supervisor()
    orphan = only(patrol.run_patrol([drive.root]))
    assert (orphan.standing, orphan.escalate) == (RunStatus.RUNNING, True)
    assert orphan.judgement.ending.action == f"holdfast adopt {run.run_id}"
    run.kill(state.keeper)
    run.kill(state.job.process)
    before = hash_tree(run.run_dir)
    dead = only(patrol.run_patrol([drive.root]))
    assert (dead.standing, dead.escalate, dead.alive) == (RunStatus.DEAD, True, False)
    assert hash_tree(run.run_dir) == before
