"""A job that is over before its supervisor knows that it has begun: a slow disk, a busy box, a kill."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

import pytest

from holdfast.agent.control.create import next_attempt
from holdfast.agent.supervise.start import manifest
from holdfast.agent.supervisor_process import fork_supervisor
from holdfast.host.clock import parse_utc
from holdfast.model import wire
from holdfast.model.errors import ResultMissing
from holdfast.model.run import Outcome, Starting
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.agent.driving import Drive

pytestmark = pytest.mark.process

SLOW_S = 0.5


@pytest.mark.requirement("POST-05")
def test_its_result_is_this_attempts(drive: Drive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen: its result was called older than the start of the job, and the run failed with 73."""
    result = tmp_path / "result.txt"
    run = drive("sh", "-c", f"echo 1 > {result}", artifacts=(str(result),))
    assert run.ended().outcome is Outcome.SUCCEEDED
    result.unlink()
    run.attempt = next_attempt(run.run_dir, "restart")
    monkeypatch.setattr(manifest, "note_started", lambda *_: time.sleep(SLOW_S))
    fork_supervisor(run.run_dir, run.attempt, environ=run.environ, reason="restart")
    end = run.ended()
    assert (end.outcome, end.evidence) == (Outcome.SUCCEEDED, "exit code 0 and every declared result is in place"), end
    assert end.status is not None
    assert end.started_at is not None
    assert parse_utc(end.started_at) <= parse_utc(end.status.ended_at or "")


@pytest.mark.requirement("POST-05", "PROC-15")
@pytest.mark.parametrize("made", [False, True])
def test_its_results_are_checked_by_who_takes_it_over(
    drive: Drive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, made: bool
) -> None:
    """The first supervisor is killed right after the word to go; the job ends before the next one looks."""
    result = tmp_path / "result.txt"
    run = drive.create("sh", "-c", f"echo 1 > {result}" if made else "exit 0", artifacts=(str(result),))
    monkeypatch.setattr(manifest, "note_started", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    fork_supervisor(run.run_dir, run.attempt, environ=run.environ, reason="start")
    wait_until(lambda: os.path.exists(run.path(wire.STATUS)) and not run.supervised(), what="job, then supervisor end")
    assert isinstance(run.state().state, Starting), "killed before it noted the start"
    monkeypatch.undo()
    run.adopt()
    end = run.ended()
    wanted = (Outcome.SUCCEEDED, 0) if made else (Outcome.FAILED, ResultMissing.exit_code)
    assert (end.outcome, end.exit_code) == wanted, end
    assert end.status is not None
    assert end.started_at is not None
    assert parse_utc(end.started_at) <= parse_utc(end.status.ended_at or "")
    assert len(run.events("exec")) == 0, "nobody saw it begin"
