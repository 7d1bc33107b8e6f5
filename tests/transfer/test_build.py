"""The bundle is the same for the same files, wherever they come from, and holds what a box needs and no more."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import holdfast
from holdfast.model.errors import StorageError
from holdfast.transfer.bundle import build
from tests.transfer.boxes import bundle_of

if TYPE_CHECKING:
    from holdfast.transfer.box import Box

pytestmark = pytest.mark.process

PACKAGE = Path(holdfast.__file__).parent
ASK = "from holdfast.transfer.bundle.build import build_bundle; b = build_bundle(); print(b.hash, len(b.data))"


def read_members(data: bytes) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return {member.name: member for member in archive.getmembers()}


@pytest.mark.slow
def test_the_same_files_make_the_same_bytes(tmp_path: Path) -> None:
    first = build.build_bundle({})
    second = build.build_bundle({"XDG_CACHE_HOME": str(tmp_path)})
    remembered = build.build_bundle({"XDG_CACHE_HOME": str(tmp_path)})
    assert first.hash == second.hash == remembered.hash
    assert first.data == second.data == remembered.data


@pytest.mark.slow
def test_what_is_in_it() -> None:
    members = read_members(build.build_bundle().data)
    names = list(members)
    assert names == sorted(names)
    assert {(m.mode, m.mtime, m.uid, m.gid, m.uname, m.gname) for m in members.values()} == {(0o444, 0, 0, 0, "", "")}
    assert {"hf.py", "bundle.json", "LICENSES/click", "LICENSES/holdfast", "lib/holdfast/py.typed"} <= set(names)
    assert {name.split("/")[0] for name in names} == {"hf.py", "bundle.json", "LICENSES", "lib", "vendor"}
    assert {name.split("/")[1] for name in names if name.startswith(("lib/", "vendor/"))} == {"holdfast", "click"}
    assert not [name for name in names if "__pycache__" in name or name.endswith(".pyc")]
    kept = {f"lib/holdfast/{path.relative_to(PACKAGE)}" for path in PACKAGE.rglob("*") if path.is_file()}
    assert {name for name in kept if "__pycache__" not in name} <= set(names)


def copy_package(target: Path) -> Path:
    shutil.copytree(PACKAGE, target / "holdfast", ignore=shutil.ignore_patterns("__pycache__"))
    return target


def ask(library: Path, *more: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path[:0] = {[str(library), *map(str, more)]!r}; {ASK}"],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()[0]


@pytest.mark.slow
def test_a_wheel_and_an_editable_install_and_a_bundle_make_the_same(tmp_path: Path, box: Box) -> None:
    import click

    here = build.build_bundle().hash
    wheel = copy_package(tmp_path / "site-packages")
    shutil.copytree(Path(click.__file__).parent, wheel / "click")
    licences = wheel / f"holdfast-{holdfast.__version__}.dist-info/licenses"
    licences.mkdir(parents=True)
    shutil.copy(PACKAGE.parents[1] / "LICENSE", licences)
    assert ask(wheel) == here
    box.ensure()
    bundle = bundle_of(box)
    assert ask(bundle / "lib", bundle / "vendor") == here


@pytest.mark.slow
def test_one_changed_byte_makes_another(tmp_path: Path) -> None:
    import click

    above = Path(click.__file__).parents[1]
    library = copy_package(tmp_path / "src")
    shutil.copy(PACKAGE.parents[1] / "LICENSE", tmp_path)
    before = ask(library, above)
    assert before == build.build_bundle().hash
    with (library / "holdfast/model/units.py").open("a") as file:
        file.write("#\n")
    assert ask(library, above) != before


def test_files_that_change_while_it_is_made_are_no_bundle(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    library = copy_package(tmp_path / "src") / "holdfast"
    monkeypatch.setattr(build, "PACKAGE", str(library))
    build.build_bundle()
    made = build.build_bundle()  # remembered: nothing was read
    (library / "model/units.py").write_text("")
    with pytest.raises(StorageError, match="changed while"):
        _ = made.data


def test_a_cache_that_cannot_be_used_costs_only_time(tmp_path: Path) -> None:
    taken = tmp_path / "file"
    taken.write_text("")
    environ = {"XDG_CACHE_HOME": str(taken)}
    assert build.build_bundle(environ).hash == build.build_bundle({}).hash
    (tmp_path / "holdfast").mkdir()
    good = {"XDG_CACHE_HOME": str(tmp_path)}
    made = build.build_bundle(good).hash
    for note in (tmp_path / "holdfast").iterdir():
        note.write_text("../../../etc/p\n")
    assert build.build_bundle(good).hash == made


@pytest.mark.slow
def test_its_list_has_every_file(box: Box) -> None:
    data = build.build_bundle().data
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        file = archive.extractfile("bundle.json")
        assert file is not None
        listed = json.loads(file.read())
    assert set(listed["files"]) == set(read_members(data)) - {"bundle.json"}
    assert listed["version"] == holdfast.__version__
    assert os.path.basename(build.build_bundle().hash) == build.compute_hash(listed["files"])
