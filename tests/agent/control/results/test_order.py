"""A copy that stands still is given up, wherever it hangs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from holdfast.agent.control.results import copy, order
from holdfast.host.files.copies.progress import Progress
from holdfast.model.job import JobSpec
from holdfast.model.run import CopyState

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process


def test_a_copy_that_moves_is_not_stalled(monkeypatch: pytest.MonkeyPatch) -> None:
    progress = Progress()
    watch = order.Watch(progress)
    assert not watch.is_stalled()
    monkeypatch.setattr(order, "STALLED_S", -1.0)
    assert watch.is_stalled()
    progress.move()
    monkeypatch.setattr(order, "STALLED_S", 60.0)
    assert not watch.is_stalled()


@pytest.mark.requirement("POST-07")
def test_a_far_side_that_hangs_costs_a_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order, "STALLED_S", 0.1)
    monkeypatch.setattr(copy, "LOOK_EVERY_S", 0.02)
    monkeypatch.setattr(copy, "copy_results", lambda *_: time.sleep(600))
    wanted = order.build_order(
        str(tmp_path), 1, JobSpec("t", ("x",), "/"), to="/lasting", by="anna", training="exit code 0", umask=0o077
    )
    done = copy.copy_watched(wanted, lambda _: None)
    assert (done.state, "hangs" in done.problem) == (CopyState.FAILED, True)
    assert done.to == f"/lasting/{tmp_path.name}"
