"""Records survive a run directory that cannot take them, in a private place that nobody else can plant."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest

from holdfast.host.files import fallback
from tests.host.small_disk import fill, mount_small_disk

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.process

RUN = "20261120-104501-digits-3fa2"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "memory"
    path.mkdir(mode=0o1777)
    monkeypatch.setattr(fallback, "ROOTS", (str(tmp_path / "absent"), str(path)))
    return path


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with mount_small_disk(tmp_path / "disk", 1 << 20) as path:
        yield path


def test_a_healthy_directory_takes_the_record_itself(root: Path, tmp_path: Path) -> None:
    path = str(tmp_path / "state.json")
    assert fallback.commit(RUN, 1, path, b"one")
    assert fallback.read(RUN, 1, path) == b"one"
    aside = fallback.directory(RUN, 1)
    assert aside is not None
    assert not os.path.exists(aside)


@pytest.mark.requirement("OBS-11")
def test_OBS_11_on_a_full_disk_the_newest_record_is_read_from_memory(root: Path, disk: Path) -> None:
    path = str(disk / "state.json")
    assert fallback.commit(RUN, 1, path, b"old")
    ballast = fill(disk)
    new = b"new" + bytes(10_000)
    assert not fallback.commit(RUN, 1, path, new)
    assert fallback.read(RUN, 1, path) == new
    assert (disk / "state.json").read_bytes() == b"old"
    assert not fallback.commit(RUN, 2, path, bytes(10_000)), "another attempt has a place of its own"
    assert fallback.read(RUN, 1, path) == new
    ballast.unlink()
    assert fallback.commit(RUN, 1, path, b"newest")
    assert fallback.read(RUN, 1, path) == b"newest"


def test_a_copy_aside_is_gone_once_the_place_takes_a_newer_one(root: Path, disk: Path) -> None:
    """By its own time it would still look newer where the run directory is on a server whose clock is behind."""
    path = str(disk / "state.json")
    ballast = fill(disk)
    assert not fallback.commit(RUN, 1, path, bytes(10_000))
    ballast.unlink()
    assert fallback.commit(RUN, 1, path, b"newest")
    os.utime(path, ns=(0, 0))
    assert fallback.read(RUN, 1, path) == b"newest"


def test_of_two_equally_old_copies_the_one_aside_is_newer(root: Path, disk: Path) -> None:
    path = str(disk / "state.json")
    assert fallback.commit(RUN, 1, path, b"old")
    fill(disk)
    new = bytes(10_000)
    assert not fallback.commit(RUN, 1, path, new)
    aside = fallback.directory(RUN, 1)
    for copy in (path, f"{aside}/state.json"):
        os.utime(copy, ns=(10**9, 10**9))
    assert fallback.read(RUN, 1, path) == new


def test_a_run_directory_that_is_gone_does_not_lose_the_record(root: Path, tmp_path: Path) -> None:
    path = str(tmp_path / "gone" / "exit.json")
    assert not fallback.commit(RUN, 1, path, b"record")
    assert fallback.read(RUN, 1, path) == b"record"


def test_nothing_anywhere(root: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        fallback.read(RUN, 1, str(tmp_path / "state.json"))


def test_the_place_is_ours_alone(root: Path, tmp_path: Path) -> None:
    assert not fallback.commit(RUN, 1, str(tmp_path / "gone" / "x"), b"record")
    place = root / f"holdfast-{os.getuid()}"
    for path in (place, place / f"{RUN}.1"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert stat.S_IMODE((place / f"{RUN}.1" / "x").stat().st_mode) == 0o600


@pytest.mark.parametrize("trap", ["link", "open to others", "file"])
def test_a_planted_place_is_refused(root: Path, tmp_path: Path, trap: str) -> None:
    place, elsewhere = root / f"holdfast-{os.getuid()}", tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    if trap == "link":
        place.symlink_to(elsewhere)
    elif trap == "file":
        place.touch()
    else:
        place.mkdir()
        place.chmod(0o777)
    path = str(tmp_path / "gone" / "x")
    assert not fallback.commit(RUN, 1, path, b"record")
    assert fallback.directory(RUN, 1) is None
    assert os.listdir(elsewhere) == []
    with pytest.raises(FileNotFoundError):
        fallback.read(RUN, 1, path)
    fallback.clear(RUN, 1)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_strangers_place_is_refused(root: Path) -> None:
    place = root / f"holdfast-{os.getuid()}"
    place.mkdir(mode=0o700)
    os.chown(place, 65534, 65534)
    beside = fallback.directory(RUN, 1)
    assert beside is not None
    assert os.path.dirname(os.path.dirname(beside)) == str(root)
    assert not beside.startswith(f"{place}/")
    assert os.lstat(os.path.dirname(beside)).st_uid == os.getuid()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_beside_a_strangers_place_nothing_is_searched(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each record is committed and read with it: 200,000 names beside kept every run waiting for each of them."""
    place = root / f"holdfast-{os.getuid()}"
    for path in (place, *(root / f"{place.name}.{number:016x}" for number in range(20))):
        path.mkdir(mode=0o700)
        os.chown(path, 65534, 65534)

    def search(path: object) -> None:
        pytest.fail(f"{path} is listed")

    with monkeypatch.context() as patch:
        for name in ("listdir", "scandir"):
            patch.setattr(os, name, search)
        first = fallback.private_directory()
        assert first is not None
        assert first.startswith(f"{place}.")
        assert fallback.private_directory() == first
        fallback._read_or_make_ending.cache_clear()
        assert fallback.private_directory() == first, "another process finds it too"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_beside_a_strangers_place_a_name_of_the_last_boot_is_not_taken_again(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everybody has seen it there."""
    place = root / f"holdfast-{os.getuid()}"
    place.mkdir(mode=0o700)
    os.chown(place, 65534, 65534)
    found = []
    for boot in ("one", "two", "one"):
        monkeypatch.setenv("HOLDFAST_BOOT_ID", boot)
        found.append(fallback.private_directory())
    assert None not in found
    assert found[0] == found[2] != found[1]
    assert found[0] is not None
    os.chown(found[0], 65534, 65534)
    assert fallback.private_directory() is None


def test_the_next_root_is_tried(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    second = tmp_path / "second"
    second.mkdir()
    monkeypatch.setattr(fallback, "ROOTS", (str(root), str(second)))
    (root / f"holdfast-{os.getuid()}").touch()
    assert fallback.directory(RUN, 1) == f"{second}/holdfast-{os.getuid()}/{RUN}.1"


def test_clearing_removes_the_records_of_one_attempt(root: Path, tmp_path: Path) -> None:
    path = str(tmp_path / "gone" / "x")
    for attempt in (1, 2):
        fallback.commit(RUN, attempt, path, b"record")
    fallback.clear(RUN, 1)
    fallback.clear(RUN, 1)
    assert os.listdir(root / f"holdfast-{os.getuid()}") == [f"{RUN}.2"]
    (root / f"holdfast-{os.getuid()}" / f"{RUN}.2" / "kept").mkdir()
    fallback.clear(RUN, 2)
    assert os.listdir(root / f"holdfast-{os.getuid()}" / f"{RUN}.2") == ["kept"]


def test_what_is_cleared_is_a_directory_of_ours_and_no_link(root: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    (elsewhere / "mine").touch()
    aside = fallback.directory(RUN, 1)
    assert aside is not None
    os.symlink(elsewhere, aside)
    fallback.clear(RUN, 1)
    assert (elsewhere / "mine").exists()
