"""The conformance suite of platforms once more, with a real Slurm; nobody proves a start there: that is Slurm's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from holdfast.model.place import Place
from holdfast.platforms.slurm.platform import SlurmPlatform
from holdfast.transfer.box import Box
from holdfast.transport.local import LocalTransport
from tests.platforms.test_contract import (
    Conforming,
    run_id,
    test_an_order_is_taken_and_runs_detached_to_its_end,
    test_an_order_that_cannot_be_taken_leaves_nothing,
    test_the_same_order_is_the_same_run,
)

if TYPE_CHECKING:
    from pathlib import Path

    from tests.slurm.cluster import Slurm

pytestmark = pytest.mark.cluster

__all__ = [
    "run_id",
    "test_an_order_is_taken_and_runs_detached_to_its_end",
    "test_an_order_that_cannot_be_taken_leaves_nothing",
    "test_the_same_order_is_the_same_run",
]


@pytest.fixture
def conforming(slurm: Slurm, tmp_path: Path) -> Conforming:
    """A Slurm whose commands are on this machine."""
    assert slurm.conf.is_file()
    root = f"{tmp_path}/runs"
    box = Box(Place("lab", kind="slurm", root=root), LocalTransport(), facts=None, remember=lambda _facts: None)
    return Conforming(SlurmPlatform(box), root)
