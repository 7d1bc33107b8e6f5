"""The directory that a job imports `holdfast.training` from: nothing else in it, made once, nobody else's."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.host.files import files
from holdfast.host.formats import bundle
from tests.leaks import find_leaks, read_held

pytestmark = pytest.mark.process

SOURCE = Path(bundle.PACKAGE)


@pytest.fixture
def installed(tmp_path: Path) -> str:
    """A package as pip leaves it: among others."""
    place = tmp_path / "site-packages"
    shutil.copytree(SOURCE, place / "holdfast", ignore=shutil.ignore_patterns("__pycache__"))
    (place / "numpy").mkdir()
    return str(place / "holdfast")


@pytest.fixture
def cache(isolated_environment: dict[str, str]) -> Path:
    return Path(isolated_environment["XDG_CACHE_HOME"])


def find(package: str) -> str:
    return bundle.find_library(os.environ, package)


def list_tree(root: str) -> set[str]:
    return {str(path.relative_to(root)) for path in Path(root).rglob("*") if path.is_file()}


def test_a_source_directory_with_nothing_else_in_it_is_used_as_it_is(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "src" / "holdfast").mkdir(parents=True)
    (tmp_path / "src" / ".hidden").mkdir()
    assert find(str(tmp_path / "src" / "holdfast")) == str(tmp_path / "src")
    assert os.listdir(cache) == []


def test_this_checkout_is_such_a_directory_or_was_copied() -> None:
    found = bundle.find_library(os.environ)
    assert {name for name in os.listdir(found) if not name.startswith((".", "__"))} == {"holdfast"}


@pytest.mark.slow
def test_an_installed_package_is_copied_whole_and_alone(installed: str, cache: Path) -> None:
    found = find(installed)
    assert os.path.dirname(found) == str(cache / "holdfast")
    assert os.listdir(found) == ["holdfast"]
    assert list_tree(f"{found}/holdfast") == list_tree(installed)
    for path in Path(found).rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    assert os.listdir(cache / "holdfast") == [os.path.basename(found)], "nothing is left beside it"


@pytest.mark.slow
def test_any_interpreter_imports_the_library_from_it(installed: str, tmp_path: Path) -> None:
    code = "import holdfast.training as t; from holdfast.training import checkpoint_requested; print(t.__file__)"
    found = find(installed)
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], env={"PYTHONPATH": found}, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == f"{found}/holdfast/training/__init__.py"


@pytest.mark.slow
def test_it_is_made_once_for_each_version(installed: str, cache: Path) -> None:
    first = find(installed)
    marker = os.stat(f"{first}/holdfast/__init__.py").st_ino
    assert find(installed) == first
    assert os.stat(f"{first}/holdfast/__init__.py").st_ino == marker
    with open(f"{installed}/__init__.py", "a") as file:
        file.write("# changed\n")
    second = find(installed)
    assert second != first
    assert os.path.isdir(first), "a live job may still import from the older one"
    with open(f"{second}/holdfast/__init__.py") as file:
        assert file.read().endswith("# changed\n")


def test_compiled_files_do_not_make_a_version(installed: str) -> None:
    first = find(installed)
    os.mkdir(f"{installed}/__pycache__")
    Path(f"{installed}/__pycache__/x.cpython-311.pyc").write_bytes(b"x")
    assert find(installed) == first


@pytest.mark.slow
def test_many_who_start_at_once_get_one_whole_copy(installed: str, cache: Path) -> None:
    code = (
        "import os, sys; from holdfast.host.formats import bundle; print(bundle.find_library(os.environ, sys.argv[1]))"
    )
    environ = {**os.environ, "PYTHONPATH": str(SOURCE.parent)}
    command = [sys.executable, "-S", "-c", code, installed]
    racers = [subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) for _ in range(6)]
    found = {racer.communicate()[0].strip() for racer in racers}
    assert [racer.returncode for racer in racers] == [0] * 6
    (one,) = found
    assert os.listdir(cache / "holdfast") == [os.path.basename(one)]
    assert list_tree(f"{one}/holdfast") == list_tree(installed)


@pytest.mark.slow
@pytest.mark.parametrize("planted", ["link", "open", "file"])
def test_a_planted_copy_is_refused(installed: str, cache: Path, tmp_path: Path, planted: str) -> None:
    found = find(installed)
    shutil.rmtree(found)
    if planted == "link":
        (tmp_path / "theirs" / "holdfast").mkdir(parents=True, mode=0o700)
        os.symlink(tmp_path / "theirs", found)
    elif planted == "open":
        os.mkdir(found)
        os.chmod(found, 0o777)
    else:
        Path(found).touch(0o700)
    with pytest.raises(PermissionError, match="mode 0700"):
        find(installed)


def test_an_open_or_linked_cache_is_refused(installed: str, cache: Path, tmp_path: Path) -> None:
    (cache / "holdfast").mkdir()
    (cache / "holdfast").chmod(0o775)
    with pytest.raises(PermissionError, match="mode 0700"):
        find(installed)
    (cache / "holdfast").rmdir()
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (cache / "holdfast").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PermissionError, match="mode 0700"):
        find(installed)
    cache.chmod(0o777)
    with pytest.raises(PermissionError, match="another account could"):
        find(installed)


def test_another_accounts_cache_is_refused(installed: str, cache: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("giving a directory away needs root")
    os.chown(cache, 65534, 65534)
    with pytest.raises(PermissionError, match="another account could"):
        find(installed)


@pytest.mark.slow
def test_the_home_is_the_place_without_a_cache_variable(installed: str, isolated_environment: dict[str, str]) -> None:
    home = isolated_environment["HOME"]
    for value in ("", "relative/place"):
        found = bundle.find_library({"HOME": home, "XDG_CACHE_HOME": value}, installed)
        assert found.startswith(f"{home}/.cache/holdfast/bundle-")
    with pytest.raises(FileNotFoundError, match="neither XDG_CACHE_HOME nor HOME"):
        bundle.find_library({"HOME": ""}, installed)


@pytest.mark.slow
def test_a_package_that_changes_while_it_is_copied_leaves_nothing(
    installed: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = files.read_bytes

    def read(path: str, *, limit: int = 0) -> bytes:
        with open(f"{installed}/new.py", "a") as file:
            file.write("x = 1\n")
        return real(path, limit=limit)

    monkeypatch.setattr(files, "read_bytes", read)
    with pytest.raises(OSError, match="changed while it was copied"):
        find(installed)
    assert os.listdir(cache / "holdfast") == []


@pytest.mark.slow
def test_nothing_is_held_open(installed: str, tmp_path: Path) -> None:
    before = read_held()
    find(installed)
    assert find_leaks(before, str(tmp_path)) == []


def test_a_package_that_is_no_directory_has_no_library(tmp_path: Path) -> None:
    archive = tmp_path / "agent.pyz" / "holdfast"
    archive.parent.touch()
    with pytest.raises(NotADirectoryError):
        find(str(archive))
    (tmp_path / "empty" / "other").mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match="not a directory of files"):
        find(str(tmp_path / "empty" / "other"))
