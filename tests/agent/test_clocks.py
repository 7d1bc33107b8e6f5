"""The clocks beside the wall clock on real jobs: what stands still is told, with its stacks; what is slow is not."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.agent.clocks import build_rules, read_intervals, read_mark
from holdfast.agent.stacks import ask_for_stacks
from holdfast.host import processes
from holdfast.model import wire
from holdfast.model.job import JobSpec, Notify, Stall, StallAction
from holdfast.model.run import Outcome, StopCause
from tests.agent.driving import Drive, Driven, read_text, timeouts
from tests.waiting import wait_until

pytestmark = pytest.mark.process

PACER = str(Path(__file__).parent / "jobs" / "pacer.py")
QUICK = Stall(no_progress_s=1.0, startup_s=30.0)


def train(*words: str) -> tuple[str, ...]:
    return (sys.executable, PACER, *words)


def stalled(run: Driven) -> dict[str, Any]:
    found = wait_until(lambda: run.events("stalled"), what=f"it stalled; {run.log()}")
    assert len(found) == 1
    data: dict[str, Any] = found[0]["data"]
    return data


@pytest.mark.requirement("MON-07")
def test_MON_07_a_trainer_that_hangs_on_a_lock_is_told_with_its_stacks_and_lives_on(drive: Drive) -> None:
    run = drive(*train("--stacks", "steps:8:0.3", "hang"), stall=QUICK, notify=Notify(("true",)))
    data = stalled(run)
    assert (data["clock"], data["step"], data["limit_s"]) == ("no_progress", 8, 1.0)
    assert data["waited_s"] >= 1.0
    assert data["stacks"]["answered"] == data["stacks"]["asked"] == 1
    assert "in hang_on_a_lock" in read_text(run.path("stacks.txt")), "the line that hangs"
    threads = read_text(run.path(wire.THREADS))
    assert "no step for" in threads
    assert f"process {run.running().job.process.pid} " in threads
    names = [event["event"] for event in run.events()]
    assert names.index("stacks") < names.index("stalled")
    assert run.kind() == "running"
    run.ask()
    assert run.ended().outcome is Outcome.STOPPED
    assert "notified" in [event["event"] for event in run.events()], "an alert is told to whoever is told of anything"


@pytest.mark.slow
@pytest.mark.requirement("MON-07")
def test_MON_07_with_action_stop_it_ends_after_its_stacks_were_taken(drive: Drive) -> None:
    stop = Stall(no_progress_s=0.6, startup_s=30.0, action=StallAction.STOP)
    run = drive(*train("--stacks", "steps:5:0.4", "hang"), stall=stop, grace_s=0.5)
    end = run.ended()
    assert (end.outcome, end.exit_code) == (Outcome.TIMED_OUT, 124)
    assert end.request is not None
    assert end.request.cause is StopCause.STALLED
    assert "no step for" in end.evidence
    assert "**stalled**" in read_text(run.path(wire.FAILURE)) or "stalled" in read_text(run.path(wire.FAILURE))
    names = [event["event"] for event in run.events()]
    assert names.index("stacks") < names.index("stalled") < names.index("stopping")
    run.assert_gone()


@pytest.mark.slow
@pytest.mark.requirement("MON-07")
def test_MON_07_slow_but_moving_is_not_stalled_nor_is_a_long_first_step_nor_another_phase(drive: Drive) -> None:
    go = f"{drive.workdir}/go"
    slow = drive(*train("steps:5:0.6"), stall=Stall(no_progress_s=2.0, startup_s=30.0))
    first = drive(*train("steps:1:2.0", f"wait:{go}"), stall=Stall(no_progress_s=0.5, startup_s=30.0))
    phase = drive(*train("steps:3:0.7", "phase:eval", f"wait:{go}"), stall=Stall(no_progress_s=1.5, startup_s=30.0))
    assert slow.ended().outcome is Outcome.SUCCEEDED
    for run in (slow, first, phase):
        assert run.events("stalled") == [], run.run_id
    Path(go).touch()
    for run in (first, phase):
        run.ended()


@pytest.mark.soak
@pytest.mark.requirement("MON-07")
def test_MON_07_what_goes_on_again_is_told_and_may_stall_again(drive: Drive) -> None:
    go = f"{drive.workdir}/go"
    rules = Stall(no_progress_s=0.6, startup_s=30.0)
    run = drive(*train("steps:5:0.4", f"wait:{go}", "steps:3:0.05", "hang"), stall=rules)
    wait_until(lambda: run.events("stalled"), what="the first stall")
    Path(go).touch()
    wait_until(lambda: len(run.events("stalled")) == 2, what="the second stall")
    (again,) = run.events("recovered")
    assert again["data"]["clock"] == "no_progress"
    assert run.events("stalled")[1]["data"]["step"] == 8
    run.ask()
    run.ended()


@pytest.mark.slow
@pytest.mark.requirement("MON-07")
def test_MON_07_a_supervisor_that_was_stopped_does_not_count_the_time(drive: Drive) -> None:
    run = drive(*train("steps:400:0.1"), stall=Stall(no_progress_s=1.0, startup_s=30.0))
    everything = [run.supervisor(), run.running().job.process]
    # By then the supervisor has its small image, and the clocks have seen a few steps.
    wait_until(lambda: os.path.exists(run.path(wire.HEARTBEAT)) and _step(run) > 15, what="it beats")
    for process in everything:
        processes.send_signal(process, signal.SIGSTOP)
    wait_until(_Later(1.6), what="the box slept")
    for process in reversed(everything):
        processes.send_signal(process, signal.SIGCONT)
    before = _step(run)
    wait_until(lambda: _step(run) > before + 3, what="it goes on")
    assert run.events("stalled") == []
    run.ask()
    run.ended()


class _Later:
    """True from so many seconds after the first time that it was asked."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._since = seconds, 0.0

    def __call__(self) -> bool:
        from holdfast.host.clock import monotonic_s

        self._since = self._since or monotonic_s()
        return monotonic_s() - self._since > self._seconds


def _step(run: Driven) -> int:
    return int(run.read(wire.HEARTBEAT)["step"])


@pytest.mark.slow
@pytest.mark.requirement("MON-07")
def test_MON_07_silence_is_a_stall_only_where_steps_cannot_be_seen(drive: Drive) -> None:
    go = f"{drive.workdir}/go"
    rules = Stall(no_output_s=0.8)
    silent = drive("sh", "-c", f"echo begun; while [ ! -e {go} ]; do sleep 0.05; done", stall=rules)
    moving = drive(*train("steps:20:0.1"), stall=rules)
    data = stalled(silent)
    assert data["clock"] == "no_output"
    Path(go).touch()
    assert moving.ended().outcome is Outcome.SUCCEEDED
    assert moving.events("stalled") == []
    silent.ended()


@pytest.mark.slow
def test_a_deadline_takes_the_stacks_before_the_stop_and_is_not_put_off(drive: Drive) -> None:
    run = drive(*train("--stacks", "steps:1:0.05", "hang"), timeouts=timeouts(run=1.0), grace_s=0.3)
    end = run.ended()
    assert end.request is not None
    assert end.request.cause is StopCause.DEADLINE
    assert "in hang_on_a_lock" in read_text(run.path("stacks.txt"))
    names = [event["event"] for event in run.events()]
    assert names.index("timer") < names.index("stacks") < names.index("stopping")


@pytest.mark.requirement("MON-07")
def test_a_record_that_does_not_belong_to_the_process_makes_nobody_send_a_signal(drive: Drive) -> None:
    """Forged, stale, or of a process that has exec'd: each would end it, so none is sent."""
    run = drive(*train("--stacks", "steps:1:0.05", "hang"), stall=Stall(no_progress_s=0.0))
    wait_until(lambda: os.path.exists(run.path("stacks.json")) and os.path.exists(run.path(wire.HEARTBEAT)))
    leader = run.running().job.process
    record = run.read("stacks.json")
    assert list(ask_for_stacks(run.directory, [leader])) == [run.path("stacks.txt")], "the true one is asked"
    handled = record["signal"]
    forged: list[dict[str, object]] = [
        {"signal": int(signal.SIGKILL)},
        {"signal": int(signal.SIGTERM)},
        {"signal": handled - 1},
        {"signal": True},
        {"signal": "9"},
        {"pid": record["pid"] + 1},
        {"start_ticks": record["start_ticks"] - 1},
        {"boot_id": "other"},
        {"boot_id": None},
        {"pid_namespace": 1},
        {"stacks": "../../../x.txt"},
        {"stacks": None},
    ]
    for change in forged:
        Path(run.path("stacks.json")).write_bytes(wire.to_bytes({**record, **change}))
        assert ask_for_stacks(run.directory, [leader]) == {}, change
    for content in (b"", b"[]", b"\xff", b"{" * 5000):
        Path(run.path("stacks.json")).write_bytes(content)
        assert ask_for_stacks(run.directory, [leader]) == {}
    Path(run.path("stacks.json")).unlink()
    Path(run.path("stacks.json")).symlink_to("/etc/passwd")
    assert ask_for_stacks(run.directory, [leader]) == {}
    assert processes.is_alive(leader)
    run.ask()
    run.ended()


def test_how_often_there_is_a_look_follows_from_the_shortest_limit() -> None:
    spec = JobSpec("t", ("x",), "/")
    assert build_rules(spec).period_s == 30.0
    assert build_rules(JobSpec("t", ("x",), "/", stall=Stall(no_progress_s=10.0))).period_s == 2.0
    assert build_rules(JobSpec("t", ("x",), "/", stall=Stall(no_progress_s=0.1))).period_s == 0.2
    assert build_rules(JobSpec("t", ("x",), "/", stall=Stall(no_progress_s=0.0))).no_progress_s == 0.0


def test_the_pace_is_read_from_the_samples_of_the_supervisor_before(tmp_path: Path) -> None:
    rows = [
        {"utc": "2026-11-20T10:00:00.000Z", "step": 1, "phase": "train"},
        {"utc": "2026-11-20T10:00:30.000Z", "step": 5, "phase": "train"},
        {"utc": "2026-11-20T10:01:00.000Z", "step": 5, "phase": "train"},
        {"utc": "2026-11-20T10:02:00.000Z", "step": 9, "phase": "train"},
        {"utc": "2026-11-20T10:03:00.000Z", "step": 9, "phase": "eval"},
        {"utc": "2026-11-20T09:00:00.000Z", "step": 12, "phase": "train"},
        {"utc": "2026-11-20T09:00:10.000Z", "step": 13, "phase": "train"},
        {"utc": "yesterday", "step": 14},
        {"step": 15},
        {"utc": "2026-11-20T09:00:40.000Z"},
    ]
    path = tmp_path / wire.HEALTH
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows) + '["torn')
    assert read_intervals(str(path)) == {"train": [30.0, 90.0, 10.0]}
    assert read_intervals(f"{tmp_path}/none") == {}


@pytest.mark.slow
@pytest.mark.requirement("MON-07")
def test_MON_07_who_takes_over_knows_the_pace_and_finds_the_stall(drive: Drive) -> None:
    run = drive(*train("steps:12:0.2", "hang"), stall=Stall(no_progress_s=1.5, startup_s=60.0), health_every_s=0.2)
    wait_until(lambda: os.path.exists(run.path(wire.HEARTBEAT)) and _step(run) == 12, what="it hangs")
    run.kill_supervisor()
    run.adopt()
    assert stalled(run)["step"] == 12
    run.ask()
    run.ended()


@pytest.mark.requirement("MON-07")
def test_only_a_heartbeat_that_counts_something_promises_steps() -> None:
    assert read_mark({}) == (False, None)
    assert read_mark({"loss": 0.3, "time": 1.0, "phase": "train"}) == (False, None)
    assert read_mark({"step": None, "epoch": None}) == (True, None)
    assert read_mark({"epoch": 3, "loss": 0.3}) != read_mark({"epoch": 4, "loss": 0.3})
    assert read_mark({"step": 7, "time": 1.0}) == read_mark({"step": 7, "time": 2.0})
