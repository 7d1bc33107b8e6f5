"""Disks that are really full or read-only: the kernel says no, and nothing that was saved is lost."""

from __future__ import annotations

import contextlib
import errno
import os
from typing import TYPE_CHECKING

import pytest

from holdfast.host.process import libc
from holdfast.training.storage import checkpoints, survey
from holdfast.training.storage.checkpoints import Retention
from holdfast.training.storage.write import files, prune
from holdfast.training.storage.write.save import Saver
from tests.host.small_disk import fill, mount_small_disk
from tests.training.directories import make_directory
from tests.training.faults import disks, support

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from holdfast.training.storage.write.writer import SaveResult

pytestmark = pytest.mark.process
NUMBERS = 100_000


def save(directory: Path, step: int, *, asynchronous: bool) -> SaveResult:
    """1.2 MB, by the writer process or by this one."""
    saver = Saver(str(directory), Retention(last=2), asynchronous=asynchronous)
    begun = saver.save(step, support.state_of(step, NUMBERS), {})
    saver.close()
    assert begun.outcome is not None
    return begun.outcome


@contextlib.contextmanager
def no_check(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Somebody else takes the room between the check and the writing."""
    with patch.context() as inner:
        inner.setattr(files, "check_room", lambda *_: None)
        yield


def judge_failure(result: SaveResult, code: int, directory: Path) -> None:
    assert not result.ok
    assert result.errno == code, result
    assert str(directory) in result.message
    assert support.steps(directory) == [1, 2]
    assert support.newest(directory) == 2
    assert support.leftovers(directory) == []


@pytest.mark.slow
@pytest.mark.requirement("CKPT-08")
@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_tmpfs_without_bytes(asynchronous: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with mount_small_disk(tmp_path / "disk", 16 << 20) as disk:
        directory = disk / "c"
        for step in (1, 2):
            assert save(directory, step, asynchronous=asynchronous).ok
        # Too little for another one even when the older of the two has gone.
        ballast = fill(disk, leave_bytes=100_000)
        os.truncate(directory / "step-1" / "checkpoint.json", 100)
        result = save(directory, 3, asynchronous=asynchronous)
        judge_failure(result, errno.ENOSPC, directory)
        assert "are needed" in result.message
        with no_check(monkeypatch):
            result = save(directory, 3, asynchronous=False)
        judge_failure(result, errno.ENOSPC, directory)
        ballast.unlink()
        assert save(directory, 3, asynchronous=asynchronous).ok


@pytest.mark.slow
@pytest.mark.requirement("CKPT-08")
def test_a_tmpfs_without_inodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with mount_small_disk(tmp_path / "disk", 64 << 20) as disk:
        directory = disk / "c"
        for step in (1, 2):
            assert save(directory, step, asynchronous=True).ok
        os.truncate(directory / "step-1" / "checkpoint.json", 100)
        taken: list[Path] = []
        with contextlib.suppress(OSError):
            while True:
                taken.append(disk / f"file-{len(taken)}")
                taken[-1].touch()
        result = save(directory, 3, asynchronous=True)
        judge_failure(result, errno.ENOSPC, directory)
        assert "free inodes are needed" in result.message
        with no_check(monkeypatch):
            judge_failure(save(directory, 3, asynchronous=False), errno.ENOSPC, directory)
        for path in taken[:-1]:
            path.unlink()
        assert save(directory, 3, asynchronous=True).ok


@pytest.fixture
def image(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """An ext4 of 32 MiB: its device and where it is mounted."""
    disks.need("mkfs.ext4", "losetup")
    path = tmp_path / "disk.img"
    disks.make_image(path, 32, "ext4")
    with disks.private_mounts(), disks.attached(path) as device, disks.mounted(device, tmp_path / "disk") as place:
        yield device, place


@pytest.mark.gotcha("U6")
@pytest.mark.requirement("CKPT-08", "LIB-06")
def test_an_ext4_that_fills_up_while_the_files_are_written(
    image: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = image[1] / "c"
    for step in (1, 2):
        assert save(directory, step, asynchronous=True).ok
    os.truncate(directory / "step-1" / "checkpoint.json", 100)
    ballast = fill(image[1], leave_bytes=600_000)
    judge_failure(save(directory, 3, asynchronous=True), errno.ENOSPC, directory)
    with no_check(monkeypatch):
        result = save(directory, 3, asynchronous=False)
    judge_failure(result, errno.ENOSPC, directory)
    assert "No space left on device" in result.message
    ballast.unlink()
    assert save(directory, 3, asynchronous=True).ok


@pytest.mark.requirement("CKPT-08", "LIB-06")
def test_a_disk_that_became_read_only(image: tuple[str, Path]) -> None:
    directory = image[1] / "c"
    for step in (1, 2):
        assert save(directory, step, asynchronous=True).ok
    disks.run("mount", "-o", "remount,ro", str(image[1]))
    result = save(directory, 3, asynchronous=True)
    judge_failure(result, errno.EROFS, directory)
    assert "Read-only file system" in result.message
    disks.run("mount", "-o", "remount,rw", str(image[1]))
    assert save(directory, 3, asynchronous=True).ok
    assert support.newest(directory) == 3


@pytest.mark.slow
@pytest.mark.requirement("CKPT-08")
def test_a_disk_with_room_for_one_more_only_gives_up_the_oldest(tmp_path: Path) -> None:
    with mount_small_disk(tmp_path / "disk", 8 << 20) as disk:
        directory = disk / "c"
        for step in (1, 2):
            assert save(directory, step, asynchronous=True).ok
        fill(disk, leave_bytes=(4 << 20) + 400_000)
        result = save(directory, 3, asynchronous=True)
        assert result.ok
        assert support.steps(directory) == [2, 3]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs mounts")
@pytest.mark.parametrize("by", ["run", "hand"])
def test_what_is_mounted_in_a_checkpoint_outlives_it(by: str, tmp_path: Path) -> None:
    """A bind mount of the same disk has the device of what is around it."""
    directory = make_directory(tmp_path / "c", steps=3)
    precious, place = tmp_path / "precious", directory / "step-1" / "mounted"
    for path in (precious, place):
        path.mkdir()
    (precious / "data").write_text("years of work")
    libc.mount(str(precious), str(place), flags=libc.MS_BIND)
    try:
        if by == "run":
            checkpoints.prune(str(directory), Retention(last=1), 3)
        else:
            first = next(item for item in survey.survey_directory(str(directory)).visible if item.step == 1)
            with pytest.raises(OSError, match="something else is mounted here"):
                prune.remove_entry(first)
        assert (precious / "data").read_text() == "years of work"
        (left,) = support.leftovers(directory)
        assert os.listdir(directory / left) == ["mounted"], "all else is gone"
    finally:
        for name in os.listdir(directory):
            with contextlib.suppress(OSError):
                libc.umount(f"{directory}/{name}/mounted", flags=libc.MNT_DETACH)
