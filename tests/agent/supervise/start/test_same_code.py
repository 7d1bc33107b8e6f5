"""A request to stop that goes to all processes while an automatic attempt is checked before its start."""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import TYPE_CHECKING

import pytest

from holdfast.agent.control.create import next_attempt
from holdfast.agent.supervise.start import same_code
from holdfast.agent.supervisor_process import fork_supervisor
from holdfast.faults.box import list_descendants
from holdfast.model import wire
from holdfast.model.run import Outcome
from tests.rundirs import write
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.agent.driving import Drive, Driven

pytestmark = pytest.mark.process


def make_pipe_of(script: Path) -> None:
    """Who opens the script waits for a writer from now on."""
    script.unlink()
    os.mkfifo(script)


def open_for_reader(pipe: Path) -> int:
    """A writer, once there is somebody who reads."""

    def look() -> int | None:
        try:
            return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            return None

    descriptor = wait_until(look, what="a check opens the script")
    assert descriptor is not None
    return descriptor


def ask_all_processes(run: Driven) -> None:
    """TERM, as a scheduler sends it: to the supervisor after all below it."""
    supervisor = run.state().supervisor
    assert supervisor is not None
    for pid in (*list_descendants(supervisor.pid), supervisor.pid):
        os.kill(pid, signal.SIGTERM)


def begin_again(run: Driven) -> None:
    """An attempt that nobody asked for."""
    write(run.path(wire.RETRY), json.dumps({"schema": 1, "retry": True, "wait_s": 0.0}))
    run.attempt = next_attempt(run.run_dir, "retry")


@pytest.mark.requirement("FAIL-16")
def test_it_is_stopped_and_not_refused_while_the_checks_run(drive: Drive, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print('first')\n")
    run = drive(sys.executable, str(script))
    assert run.ended().exit_code == 0
    begin_again(run)
    make_pipe_of(script)
    run.start("retry")
    writer = open_for_reader(script)
    ask_all_processes(run)
    end = run.ended()
    os.close(writer)
    assert (end.outcome, end.refusal) == (Outcome.STOPPED, None), end


@pytest.mark.requirement("FAIL-16")
def test_it_is_stopped_and_not_refused_at_the_last_look_before_its_job(
    drive: Drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    def be_cut_off(*_: object) -> str:
        os.kill(os.getpid(), signal.SIGTERM)
        return "whether it was changed cannot be told: cut off"

    run = drive("true")
    assert run.ended().exit_code == 0
    begin_again(run)
    monkeypatch.setattr(same_code, "find_change_within", be_cut_off)
    fork_supervisor(run.run_dir, run.attempt, environ=run.environ, reason="retry")
    end = run.ended()
    assert (end.outcome, end.refusal) == (Outcome.STOPPED, None), end
