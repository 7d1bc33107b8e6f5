"""What is known of a run's job and of its checkpoints from its files."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from holdfast.host.files.job_change import has_checkpoint
from holdfast.model import wire

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.files


def test_a_checkpoint_in_a_directory_of_the_scripts_own_counts_where_the_library_said_it_is(tmp_path: Path) -> None:
    run_dir, workdir = tmp_path / "20261129-100000-x-0a1b", tmp_path / "work"
    (workdir / "out" / "step-267").mkdir(parents=True)
    for attempt in (1, 2):
        (run_dir / "attempts" / str(attempt)).mkdir(parents=True)
    job = {"workdir": str(workdir)}
    stop = run_dir / "attempts" / "1" / wire.STOP
    assert not has_checkpoint(str(run_dir), job)
    for path, there in (
        ("out/step-267", True),
        (str(workdir / "out" / "step-267"), True),
        ("out/step-268", False),
        ("", False),
        (None, False),
        ("x" * 5000, False),
        ("a\0b", False),
    ):
        stop.write_text(json.dumps({"why": "operator", "checkpoint": path}))
        assert has_checkpoint(str(run_dir), job) is there, path
    stop.write_text("{")
    assert not has_checkpoint(str(run_dir), job)
