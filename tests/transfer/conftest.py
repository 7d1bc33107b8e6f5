"""Boxes of one test: this machine, with a runs root of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.transfer.boxes import MetBox, make_box, make_root, remove_tree

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from holdfast.transfer.box import Box


@pytest.fixture
def box_root(isolated_environment: dict[str, str]) -> Iterator[Path]:
    root = make_root()
    yield root
    remove_tree(root)


@pytest.fixture(scope="session")
def met_box() -> Iterator[MetBox]:
    made = MetBox()
    yield made
    remove_tree(made.root)


@pytest.fixture
def new_box(box_root: Path) -> Box:
    """A box that never saw us."""
    return make_box(box_root)


@pytest.fixture
def box(met_box: MetBox, box_root: Path) -> Box:
    """A box that this desk knows."""
    return met_box.copy(box_root)
