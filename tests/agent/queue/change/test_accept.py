"""Taking a success in doubt as done: only what was looked at, never what somebody began meanwhile."""

from __future__ import annotations

import os
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from holdfast.agent.control.create import next_attempt
from holdfast.agent.control.run_lock import hold_run_lock
from holdfast.agent.queue.change import accept
from holdfast.agent.view.observe import observe_run
from holdfast.model import wire
from holdfast.model.errors import UsageError
from holdfast.model.queue import JobState, QueuedJob
from tests.rundirs import ended, make_run, write

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.files


def test_an_attempt_that_somebody_began_meanwhile_is_not_accepted_in_advance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = make_run(tmp_path, state=ended())
    path = f"{wire.attempt_dir(run_dir, 1)}/{wire.EXIT}"
    write(path, wire.to_bytes({"outcome": "succeeded", "exit_code": 0, "failure_class": "suspicious_finish"}))
    assert observe_run(run_dir).doubt == "suspicious_finish"
    job = QueuedJob(1, "key", "g", "a", JobState.FAILED, runs_root=str(tmp_path), run_id=os.path.basename(run_dir))

    @contextmanager
    def open_queue() -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(find=lambda _words: [job])

    @contextmanager
    def hold_after_somebody_else(path: str, *, what: str) -> Iterator[None]:
        with hold_run_lock(path, what=what):
            next_attempt(path, "restart")
            yield

    monkeypatch.setattr(accept, "open_queue", open_queue)
    monkeypatch.setattr(accept, "hold_run_lock", hold_after_somebody_else)
    with pytest.raises(UsageError, match="only a job that ended with 0 in doubt"):
        accept.accept(["g/a"], reason="looked at")
    assert not [number for number in (1, 2) if os.path.exists(f"{wire.attempt_dir(run_dir, number)}/{wire.ACCEPTED}")]
