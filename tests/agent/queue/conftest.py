"""A queue of the test's own, whose workers and runs are ended with it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.agent.queue.working import Work

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def work(
    tmp_path: Path, no_leaks: None, isolated_environment: dict[str, str], containment_cache: str
) -> Iterator[Work]:
    """``work.submit({"a": payload(file, 0)})``, then look."""
    directory, workdir = tmp_path / "queue", tmp_path / "work"
    directory.mkdir(mode=0o700)
    workdir.mkdir()
    environ = {**os.environ, "XDG_RUNTIME_DIR": containment_cache, "HOLDFAST_QUEUE": str(directory)}
    made = Work(str(directory), isolated_environment["HOLDFAST_RUNS"], str(workdir), environ)
    yield made
    made.clear()
