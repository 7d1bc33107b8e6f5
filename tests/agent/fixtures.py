"""Fixtures for tests of supervisors on real processes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.agent.driving import Drive
from tests.agent.ordering import OrderBox
from tests.agent.standing import Stands

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="session")
def containment_cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Which rungs work here is found out once for all tests, as on a real box."""
    path = tmp_path_factory.mktemp("runtime")
    path.chmod(0o700)
    return str(path)


@pytest.fixture
def drive(
    tmp_path: Path,
    no_leaks: None,
    isolated_environment: dict[str, str],
    containment_cache: str,
) -> Iterator[Drive]:
    """Make supervised runs: ``drive(*job("exit_with", 3)).ended()``."""
    workdir = tmp_path / "work"
    workdir.mkdir()
    environ = {**os.environ, "XDG_RUNTIME_DIR": containment_cache}
    made = Drive(isolated_environment["HOLDFAST_RUNS"], str(workdir), environ)
    yield made
    made.clear()


@pytest.fixture
def order_box(tmp_path: Path, isolated_environment: dict[str, str], containment_cache: str) -> Iterator[OrderBox]:
    """This machine as a box that takes orders; all of its runs are over in the end."""
    assert isolated_environment
    made = OrderBox(tmp_path / "killed-front" / "runs", {**os.environ, "XDG_RUNTIME_DIR": containment_cache})
    yield made
    made.clear()


@pytest.fixture
def stands(drive: Drive, tmp_path: Path) -> Iterator[Stands]:
    """Stand in the foreground of runs: ``stands(stands.order("true")).end()``."""
    made = Stands(drive, tmp_path)
    yield made
    made.clear()
