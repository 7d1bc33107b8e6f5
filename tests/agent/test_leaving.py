"""Real runs whose training writes down why it left: the outcome follows the record, and nothing else is believed."""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import TYPE_CHECKING

import pytest

from holdfast.agent.control.create import next_attempt
from holdfast.host.process import pidfd
from holdfast.model import wire
from holdfast.model.run import Outcome
from tests.agent.driving import JOB, Drive, Driven, read_text
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process

LIBRARY = os.path.join(os.path.dirname(JOB), "library.py")
SAVED = {"schema": 1, "detail": "SIGTERM", "step": 120, "checkpoint_step": 120, "saved": True, "seconds": 0.5}


def library(*words: object) -> tuple[str, ...]:
    """The command of the stand-in for a script with the training library."""
    return (sys.executable, "-I", "-S", LIBRARY, *(str(word) for word in words))


def leaving(code: int, why: str = "signal", *extra: str, **facts: object) -> tuple[str, ...]:
    """A job that writes this stop record when it is signalled, or at once with ``now``."""
    return library("leave", code, json.dumps({**SAVED, "why": why, **facts}), *extra)


def signal_job(run: Driven) -> None:
    """TERM from somebody who is not holdfast."""
    assert pidfd.send_signal(run.ready().job.process, signal.SIGTERM)


@pytest.mark.requirement("SPOT-02", "LIB-18")
def test_SPOT_02_a_training_that_somebody_else_signalled_was_preempted(drive: Drive) -> None:
    run = drive(*leaving(143))
    signal_job(run)
    end = run.ended()
    assert (end.outcome, end.exit_code) == (Outcome.PREEMPTED, 143)
    assert end.evidence == "saved step 120, stopped by SIGTERM from outside; the job ended with exit code 143"
    assert end.request is None
    assert end.stop is not None
    assert (end.stop.why, end.stop.checkpoint_step) == ("signal", 120)
    assert run.read(wire.EXIT)["stop"]["why"] == "signal"
    note = read_text(run.path(wire.FAILURE))
    assert "class: `preempted`" in note
    assert "holdfast restart" in note


@pytest.mark.requirement("POST-09", "B-50")
def test_POST_09_a_script_that_turns_143_into_0_has_not_succeeded(drive: Drive) -> None:
    run = drive(*leaving(0))
    signal_job(run)
    end = run.ended()
    assert (end.outcome, end.exit_code) == (Outcome.PREEMPTED, 143)


@pytest.mark.requirement("POST-09", "B-50")
def test_POST_09_a_run_that_saved_and_left_with_0_on_our_request_is_stopped(drive: Drive) -> None:
    run = drive(*leaving(0))
    run.ready()
    run.ask()
    end = run.ended()
    assert (end.outcome, end.exit_code) == (Outcome.STOPPED, 130)
    assert end.evidence.endswith("the job ended with exit code 0, saved step 120")


@pytest.mark.slow
def test_143_without_a_record_is_as_it_was(drive: Drive) -> None:
    end = drive("sh", "-c", "exit 143").ended()
    assert (end.outcome, end.exit_code, end.stop) == (Outcome.FAILED, 143, None)


@pytest.mark.requirement("LIB-18", "LIB-03")
def test_LIB_18_a_training_that_stopped_before_its_own_deadline_timed_out(drive: Drive) -> None:
    end = drive(*leaving(143, "deadline", "now", detail="walltime of the run")).ended()
    assert (end.outcome, end.exit_code) == (Outcome.TIMED_OUT, 124)
    assert end.evidence.startswith("saved step 120 before the deadline (walltime of the run)")


@pytest.mark.slow
@pytest.mark.requirement("LIB-12")
def test_LIB_12_the_traceback_of_an_exception_is_in_the_failure_note(drive: Drive, tmp_path: Path) -> None:
    text = "Traceback (most recent call last):\n```\nOddError: token hf_" + "abcdefghijklmnopqrstuvwxyz012345\n"
    path = tmp_path / "stop.json"
    path.write_text(json.dumps({**SAVED, "why": "exception", "detail": "OddError", "traceback": text}))
    run = drive("sh", "-c", f'cp {path} "${{HOLDFAST_HEARTBEAT%/*}}/"; exit 1')
    end = run.ended()
    assert (end.outcome, end.exit_code) == (Outcome.FAILED, 1)
    note = read_text(run.path(wire.FAILURE))
    assert "## Its exception, as the training library saw it" in note
    assert "\n````\nTraceback (most recent call last):\n```\nOddError" in note, "no fence in it ends the block"
    assert "hf_abc" not in note


def test_a_kill_while_leaving_is_not_called_a_preemption(drive: Drive) -> None:
    run = drive(*leaving(-9))
    signal_job(run)
    end = run.ended()
    assert (end.outcome, end.exit_code) == (Outcome.FAILED, 137)
    assert "it wrote before: saved step 120" in end.evidence


@pytest.mark.slow
@pytest.mark.parametrize(
    "record", ["", "not JSON", "[]", "{}", '{"why": 7}', "[" * 100_000, '{"why": "signal", "pad": "' + "x" * 100_000]
)
def test_a_record_that_cannot_be_read_decides_nothing_and_is_told(drive: Drive, record: str) -> None:
    run = drive(*library("leave", 143, record, "now"))
    end = run.ended()
    assert (end.outcome, end.exit_code, end.stop) == (Outcome.FAILED, 143, None)
    assert run.events("stop_record_unreadable")


@pytest.mark.slow
@pytest.mark.parametrize("plant", ["ln -s /etc/passwd", "mkfifo", "mkdir"])
def test_what_stands_in_its_place_is_neither_followed_nor_waited_for(drive: Drive, plant: str) -> None:
    run = drive("sh", "-c", f'{plant} "${{HOLDFAST_HEARTBEAT%/*}}/stop.json"; exit 143')
    end = run.ended()
    assert (end.outcome, end.stop) == (Outcome.FAILED, None)
    assert run.events("stop_record_unreadable")


@pytest.mark.slow
def test_a_record_larger_than_any_is_not_read(drive: Drive) -> None:
    program = 'head -c 2000000 /dev/zero | tr "\\0" " " > "${HOLDFAST_HEARTBEAT%/*}/stop.json"; exit 143'
    run = drive("sh", "-c", program)
    assert run.ended().stop is None
    assert "larger than" in run.events("stop_record_unreadable")[0]["data"]["error"]


@pytest.mark.slow
def test_an_earlier_attempts_record_is_not_this_ones(drive: Drive) -> None:
    run = drive("sh", "-c", f"[ $HOLDFAST_ATTEMPT = 2 ] && exit 143; exec {' '.join(map(repr, leaving(143)))}")
    signal_job(run)
    assert run.ended().outcome is Outcome.PREEMPTED
    run.attempt = next_attempt(run.run_dir, "restart")
    run.start("restart")
    end = run.ended()
    assert (end.outcome, end.exit_code, end.stop) == (Outcome.FAILED, 143, None)


@pytest.mark.slow
def test_a_supervisor_that_takes_over_reads_the_record_too(drive: Drive) -> None:
    run = drive(*leaving(143))
    run.ready()
    run.kill_supervisor()
    signal_job(run)
    wait_until(lambda: os.path.exists(run.path(wire.STATUS)), what="the keeper has written the job's status")
    run.adopt()
    end = run.ended()
    assert (end.outcome, end.exit_code) == (Outcome.PREEMPTED, 143)


@pytest.mark.slow
@pytest.mark.requirement("SPOT-03")
def test_SPOT_03_an_attempt_after_interruptions_is_told_their_mean(drive: Drive) -> None:
    told = '"${HOLDFAST_MEAN_TIME_BETWEEN_INTERRUPTIONS-none}"'
    script = f"echo mean {told}; [ $HOLDFAST_ATTEMPT = 2 ] && exit 0; exec {' '.join(map(repr, leaving(143)))}"
    run = drive("sh", "-c", script)
    signal_job(run)
    run.ended()
    assert b"mean none\n" in run.output()
    run.attempt = next_attempt(run.run_dir, "restart")
    run.start("restart")
    run.ended()
    mean = float(run.output().split()[1])
    assert 10800 / 2 <= mean < 10800 / 2 + 10
