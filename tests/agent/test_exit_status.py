"""The real exit status of the real child, whoever had to witness it, and the outcome that follows from it."""

from __future__ import annotations

import os
import signal

import pytest

from holdfast.host.process import processes
from holdfast.model import wire
from holdfast.model.job import IsolationLevel
from holdfast.model.run import Outcome
from tests.agent.driving import Drive, job, timeouts
from tests.agent.test_start import LEVELS, TWO_LEVELS
from tests.waiting import wait_until

pytestmark = pytest.mark.process


@pytest.mark.requirement("PROC-05", "B-01", "B-70")
@pytest.mark.parametrize("code", [0, 3, 125, 127, 137, 255])
def test_PROC_05_the_exit_code_is_the_jobs_own(drive: Drive, code: int) -> None:
    run = drive(*job("exit_with", code))
    end = run.ended()
    assert end.status is not None
    assert (end.status.code, end.status.signal, end.exit_code) == (code, None, code)
    assert end.outcome is (Outcome.SUCCEEDED if code == 0 else Outcome.FAILED)
    assert run.read(wire.EXIT)["exit_code"] == run.read(wire.STATUS)["code"] == code


@pytest.mark.requirement("PROC-05")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
@pytest.mark.parametrize("level", TWO_LEVELS)
def test_PROC_05_the_signal_is_the_jobs_own(drive: Drive, number: int, level: IsolationLevel) -> None:
    run = drive(*job("die_by", int(number)), containment=level)
    end = run.ended()
    assert end.status is not None
    assert (end.status.code, end.status.signal, end.exit_code) == (None, number, 128 + number)
    assert end.outcome is Outcome.FAILED


@pytest.mark.requirement("PROC-05", "B-01")
def test_PROC_05_a_job_is_not_over_before_it_is(drive: Drive) -> None:
    run = drive(*job("leave_after", 1.6, 3))
    assert run.ended().exit_code == 3
    record = run.read(wire.EXIT)
    assert record["duration_s"] >= 1.6


@pytest.mark.requirement("PROC-05")
@pytest.mark.parametrize("level", TWO_LEVELS)
def test_PROC_05_kill_from_outside_is_signal_9(drive: Drive, level: IsolationLevel) -> None:
    run = drive(*job("stay"), containment=level)
    run.kill(run.ready().job.process)
    end = run.ended()
    assert end.status is not None
    assert (end.status.signal, end.exit_code) == (9, 137)


@pytest.mark.requirement("PROC-05")
@pytest.mark.parametrize("level", LEVELS)
def test_PROC_05_the_status_survives_the_keeper(drive: Drive, level: IsolationLevel) -> None:
    """In a PID namespace the job ends with its keeper, by KILL; elsewhere it goes on and its own code is witnessed."""
    run = drive(*job("leave_when_told", f"{drive.workdir}/go", 44), containment=level)
    run.kill(run.ready().keeper)
    with open(f"{drive.workdir}/go", "w"):
        pass
    end = run.ended()
    assert end.status is not None
    assert end.outcome is Outcome.FAILED
    assert end.exit_code == (137 if level is IsolationLevel.PID_NAMESPACE else 44)
    run.assert_gone()


@pytest.mark.slow
@pytest.mark.requirement("OBS-02", "POST-02")
def test_OBS_02_POST_02_the_exit_record_says_how_long_how_much_and_why(drive: Drive) -> None:
    run = drive(*job("write_artifact", "result.txt", "done", 3))
    run.ended()
    record, manifest = run.read(wire.EXIT), run.read(wire.MANIFEST)
    for found in (record, manifest):
        assert found["outcome"] == "failed"
        assert found["exit_code"] == 3
        assert found["ending"] == "the job ended with exit code 3"
        assert found["duration_s"] >= 0
        assert found["status"]["max_rss_bytes"] > 0
        assert [item["name"] for item in found["artifacts"]] == ["result.txt"]
        assert found["checkpoints"] == []
    assert manifest["ended_at"] == record["ended_at"]


@pytest.mark.slow
@pytest.mark.requirement("OBS-02")
def test_OBS_02_the_record_is_complete_after_a_kill_a_stop_and_a_timeout(drive: Drive) -> None:
    killed, stopped = drive(*job("stay")), drive(*job("stay"))
    late = drive(*job("stay"), timeouts=timeouts(run=0.1))
    killed.kill(killed.ready().job.process)
    stopped.ready()
    stopped.ask()
    for run, outcome in ((killed, "failed"), (stopped, "stopped"), (late, "timed_out")):
        run.ended()
        manifest = run.read(wire.MANIFEST)
        assert manifest["outcome"] == outcome
        assert {"ended_at", "exit_code", "ending", "duration_s", "status", "usage", "checkpoints"} <= manifest.keys()


@pytest.mark.requirement("POST-05")
def test_POST_05_exit_code_0_without_the_artifact_is_a_failure(drive: Drive) -> None:
    run = drive(*job("exit_with", 0), artifacts=("artifacts/result.json",))
    end = run.ended()
    assert (end.outcome, end.exit_code) == (Outcome.FAILED, 73)
    assert "result.json" in end.evidence


@pytest.mark.requirement("POST-05")
def test_POST_05_with_the_artifact_it_is_success(drive: Drive) -> None:
    run = drive(*job("write_artifact", "result.json", '{"accuracy": 0.97}'), artifacts=("artifacts/result.json",))
    end = run.ended()
    assert (end.outcome, end.exit_code) == (Outcome.SUCCEEDED, 0)


@pytest.mark.slow
@pytest.mark.requirement("POST-01")
def test_POST_01_a_control_group_is_removed_in_the_end(drive: Drive) -> None:
    run = drive(*job("stay"))
    run.ready()
    named = run.read(wire.MANIFEST)["cgroup"]
    run.ask()
    run.ended()
    if named:
        places = [named["unified"], *named["v1"].values()]
        assert not [path for path in places if path and os.path.exists(path)]


@pytest.mark.slow
def test_a_leader_that_loses_its_main_thread_is_not_over(drive: Drive) -> None:
    program = (
        "import ctypes, threading, time\n"
        "def go():\n  time.sleep(0.3)\n  import os; os._exit(21)\n"
        "threading.Thread(target=go).start()\nprint('ready', flush=True)\n"
        "ctypes.CDLL(None).syscall(60 if __import__('os').uname().machine == 'x86_64' else 93, 0)\n"
    )
    run = drive(job()[0], "-c", program)
    assert run.ended().exit_code == 21
    wait_until(lambda: not processes.find_marked(run.run_id))


@pytest.mark.slow
@pytest.mark.requirement("POST-02")
def test_POST_02_a_job_of_no_length_has_started_too(drive: Drive) -> None:
    """Its exec and its status arrive together; the record must not say that it never ran."""
    for _ in range(10):
        run = drive("/bin/true")
        assert run.ended().started_at is not None
        assert "running" in [event["event"] for event in run.events()]
