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

from holdfast.agent.queueing.presence import read_worker
from holdfast.cli.main import main
from holdfast.host.processes import send_signal
from holdfast.store.queue import Queue, queue_directory
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from holdfast.model.queue import Cell, CellState


@dataclass(frozen=True, slots=True)
class Said:
    """What a command line answered."""

    code: int
    out: str
    err: str

    def json(self) -> dict[str, Any]:
        """Standard output as one JSON object."""
        value = json.loads(self.out)
        assert isinstance(value, dict), self
        return value


def say(*arguments: str) -> Said:
    """Run a command line in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(list(arguments))
    assert "this is a bug" not in err.getvalue(), err.getvalue()
    return Said(code, out.getvalue(), err.getvalue())


@pytest.fixture
def no_worker(isolated_environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The queue's directory; nobody starts a worker, so what is handed in stays as it is. The test is in `tmp_path`."""
    monkeypatch.setattr("holdfast.agent.queueing.presence.ensure_worker", lambda *_: False)
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
    """Every cell's state by its label."""
    with Queue() as queue:
        return {cell.label: cell.state.value for cell in queue.cells()}


def find(label: str) -> Cell:
    """One cell."""
    with Queue() as queue:
        (cell,) = queue.find([label])
        return cell


def put(label: str, state: CellState, **facts: object) -> None:
    """Move a cell on as the worker would."""
    with Queue() as queue:
        (cell,) = queue.find([label])
        queue.move_on(cell.id, state, **facts)
