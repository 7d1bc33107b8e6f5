"""Code goes over the real transports, to an account without rights, as a submission sends it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from holdfast.desk.connect import open_box
from holdfast.host.files.code import store
from holdfast.model.place import LOCAL, Place
from holdfast.transfer.code.push import push_tree
from holdfast.transfer.code.tree import read_tree
from tests.waiting import LONG_S

from .repositories import make_repository, write

if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.process


def list_differences(root: str, tree: str) -> list[store.Difference]:
    """What is wrong with a tree that lies on this machine."""
    directory = store.tree_dir(root, tree)
    manifest = store.read_manifest(directory, tree)
    return list(store.compare_tree(f"{directory}/{store.FILES}", manifest, extras=False))


@pytest.mark.slow
@pytest.mark.requirement("PRE-13", "XPORT-14")
@pytest.mark.parametrize("kind", ["local", "ssh"])
def test_a_tree_goes_over_a_place_and_is_proven_there(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    place = Place(LOCAL, kind=LOCAL)
    if kind == "ssh":
        place = Place("gpu1", host=request.getfixturevalue("ssh_desk").alias("box"))
    box = open_box(place)
    top = make_repository(tmp_path / "r", {"train.py": "print(1)\n", "ä b\n.txt": os.urandom(300_000)})
    (top / "link").symlink_to("train.py")

    tree = read_tree(str(top), os.environ)
    push_tree(box, tree)

    root = box.ensure().root
    said = box.entry("code", ("has", root, tree.ref.tree), limit_s=LONG_S)
    assert said["present"] is True, list_differences(root, tree.ref.tree)
    write(top, {"train.py": "print(2)\n"})
    changed = read_tree(str(top), os.environ)
    assert box.entry("code", ("has", root, changed.ref.tree), limit_s=LONG_S)["present"] is False
    push_tree(box, changed)
    for ref in (tree.ref, changed.ref):
        assert box.entry("code", ("has", root, ref.tree), limit_s=LONG_S)["present"] is True
