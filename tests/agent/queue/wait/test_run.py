"""Waiting for one run rests on its own directory alone."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from holdfast.agent.queue.wait.names import wait_for_names
from holdfast.agent.queue.wait.run import code_of_gone
from holdfast.agent.view.observe import observe_run
from holdfast.core.run.outcome import EXIT_LOST
from holdfast.model import wire
from holdfast.model.errors import HoldfastError
from holdfast.model.identity import WaitStatus
from holdfast.model.run import Outcome
from tests.rundirs import dead_process, ended, make_run, running, write

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.files


def test_a_run_is_waited_for_without_a_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen: 74 for a plain run on a full disk and in a read-only home."""
    write(f"{tmp_path}/file", "")
    monkeypatch.setenv("HOLDFAST_QUEUE", f"{tmp_path}/file/queue")
    run_dir = make_run(tmp_path / "runs", state=ended(Outcome.FAILED, 3))

    def wait(name: str) -> int:
        return wait_for_names([name], deadline=None, find_run=lambda _: run_dir, tell=lambda *_: None).exit_code

    assert wait(os.path.basename(run_dir)) == wait(run_dir) == 3
    with pytest.raises(HoldfastError):
        wait("a-job")


@pytest.mark.parametrize(
    ("status", "stop", "code"),
    [
        pytest.param(WaitStatus(0, None), False, 0, id="it ended with 0 and promised nothing"),
        pytest.param(WaitStatus(0, None), True, 71, id="it said that it stopped early"),
        pytest.param(WaitStatus(3, None), False, 3, id="it failed"),
        pytest.param(WaitStatus(None, 9), False, 137, id="it was killed"),
    ],
)
def test_the_code_of_a_run_that_only_its_job_has_ended(
    tmp_path: Path, status: WaitStatus, code: int, *, stop: bool
) -> None:
    run_dir = make_run(tmp_path, state=running(), supervisor=dead_process())
    where = wire.attempt_dir(run_dir, 1)
    write(f"{where}/{wire.STATUS}", wire.to_bytes(status))
    if stop:
        write(f"{where}/{wire.STOP}", "{}")
    assert code_of_gone(observe_run(run_dir)) == code


def test_a_result_that_a_changed_job_promises_is_looked_at_before_a_gone_run_counts_as_done(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path, state=running(), supervisor=dead_process())
    where = wire.attempt_dir(run_dir, 1)
    write(f"{where}/{wire.STATUS}", wire.to_bytes(WaitStatus(0, None)))
    spec = observe_run(run_dir).spec
    write(f"{where}/{wire.JOB}", wire.to_bytes({"job": {**spec, "artifacts": ["model.pt"]}, "changed": []}))
    assert code_of_gone(observe_run(run_dir)) == EXIT_LOST
