"""A queue for tests of its verbs: the command line in this process without a worker, or for real with one."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.agent.queue.presence import read_worker
from holdfast.cli.main import main
from holdfast.host.process.pidfd import send_signal
from holdfast.store.queue.queue import Queue, queue_directory
from tests.json_forms import find_output_faults
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from holdfast.model.queue import JobState, QueuedJob


@dataclass(frozen=True, slots=True)
class Said:
    """What a command line answered."""

    code: int
    out: str
    err: str
    arguments: tuple[str, ...]

    def json(self) -> dict[str, Any]:
        """Standard output as one JSON object; it must be a record of its verb in the schema."""
        value = json.loads(self.out)
        assert isinstance(value, dict), self
        faults = find_output_faults(self.arguments, value)
        assert not faults, faults[:5]
        return value


def say(*arguments: str) -> Said:
    """Run a command line in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(list(arguments))
    assert "this is a bug" not in err.getvalue(), err.getvalue()
    return Said(code, out.getvalue(), err.getvalue(), arguments)


@pytest.fixture
def no_worker(isolated_environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The queue's directory; nobody starts a worker, so what is handed in stays as it is. The test is in `tmp_path`."""
    monkeypatch.setattr("holdfast.agent.queue.change.start_worker._spawn", lambda *_: None)
    monkeypatch.chdir(tmp_path)
    return queue_directory()


@pytest.fixture
def worked(isolated_environment: dict[str, str]) -> Iterator[str]:
    """The queue's directory; a worker that the test has started is ended with it."""
    directory = queue_directory()
    yield directory
    end_worker(directory)


def end_worker(directory: str) -> None:
    """KILL the worker, if there is one, and wait until it is gone."""
    if not os.path.isdir(directory):
        return

    def is_gone() -> bool:
        facts = read_worker(directory)
        if facts is not None and facts.process is not None:
            send_signal(facts.process, signal.SIGKILL)
        return facts is None

    wait_until(is_gone, what="the worker's end")


def states() -> dict[str, str]:
    """Every job's state by its label."""
    with Queue() as queue:
        return {job.label: job.state.value for job in queue.jobs()}


def find(label: str) -> QueuedJob:
    """One job."""
    with Queue() as queue:
        (job,) = queue.find([label])
        return job


def put(label: str, state: JobState, **facts: object) -> None:
    """Move a job on as the worker would."""
    with Queue() as queue:
        (job,) = queue.find([label])
        queue.move_on(job.id, state, **facts)
