"""Taking a job out of the queue: its run is asked to stop, also between two of its attempts."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from holdfast.agent.queue.change.cancel import _stop_runs
from holdfast.agent.requests import read_request
from holdfast.model import wire
from holdfast.model.queue import JobState, QueuedJob
from holdfast.model.run import Outcome
from tests.rundirs import dead_process, ended, living_process, make_run, write

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.model.identity import ProcessId

pytestmark = pytest.mark.process


def make_failed(root: Path, supervisor: ProcessId) -> tuple[str, QueuedJob]:
    """A run that failed in passing."""
    run_dir = make_run(root, state=ended(Outcome.FAILED, 3), supervisor=supervisor)
    path = f"{wire.attempt_dir(run_dir, 1)}/{wire.EXIT}"
    write(path, wire.to_bytes({"outcome": "failed", "exit_code": 3, "failure_class": "transient"}))
    run_id = os.path.basename(run_dir)
    return run_dir, QueuedJob(1, "1.0", "g", "a", JobState.RUNNING, run_id=run_id, runs_root=str(root))


def test_a_run_that_has_failed_and_may_go_on_by_itself_is_asked_to_stop(tmp_path: Path) -> None:
    """Its supervisor has still to decide whether another attempt follows; the exit record is written after that."""
    run_dir, job = make_failed(tmp_path, living_process(os.getpid()))
    os.unlink(f"{wire.attempt_dir(run_dir, 1)}/{wire.EXIT}")
    assert _stop_runs([job], now=False) == []
    asked = read_request(run_dir, 1)
    assert asked is not None
    assert asked.reason == "job cancelled"


def test_a_run_that_is_over_is_left_alone(tmp_path: Path) -> None:
    run_dir, job = make_failed(tmp_path, dead_process())
    assert _stop_runs([job], now=False) == []
    assert read_request(run_dir, 1) is None
