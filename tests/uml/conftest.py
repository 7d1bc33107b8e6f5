"""The fixture of this folder: a machine of the test's own, off, that is surely off again afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.uml.machine import PACKAGE, Machine, find_kernel

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """A machine with a 32 MiB persistent disk; skipped only where the package is absent (`make test` installs it)."""
    if find_kernel() is None:
        pytest.skip(f"the package {PACKAGE} (program linux.uml) is not installed; `make test` installs it")
    directory = tmp_path / "machine"
    directory.mkdir()
    with Machine(directory, disk_mib=32) as made:
        yield made
