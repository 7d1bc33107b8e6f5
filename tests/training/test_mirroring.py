"""A copy on the mirror counts only when it was read back from there; what goes wrong with it is said."""

from __future__ import annotations

import errno
import os
import random
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.training import restore
from holdfast.training.errors import CannotResume, NoValidCheckpoint
from holdfast.training.storage import checkpoints
from holdfast.training.storage.checkpoints import Retention
from holdfast.training.storage.write import mirror as mirroring
from holdfast.training.storage.write.save import Save, Saver
from tests.training.faults import support

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.training.storage.write.writer import SaveResult

pytestmark = pytest.mark.contract


@pytest.fixture
def source(tmp_path: Path) -> str:
    result = support.save(tmp_path / "c", 3)
    assert result.ok
    return result.path


@pytest.mark.requirement("CKPT-06")
def test_a_copy_is_equal_and_old_copies_go_by_the_same_rule(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        path = support.save(tmp_path / "c", step).path
        copy = mirroring.copy(path, str(tmp_path / "m"), Retention(2))
        assert checkpoints.verify(copy).ok
    assert support.steps(tmp_path / "m") == [2, 3]
    assert support.leftovers(tmp_path / "m") == []
    again = mirroring.copy(path, str(tmp_path / "m"), Retention(2))
    assert again == copy


def test_a_source_that_changed_is_not_copied(source: str, tmp_path: Path) -> None:
    support.flip_bit(f"{source}/model.safetensors", random.Random(0))
    with pytest.raises(ValueError, match=r"model\.safetensors"):
        mirroring.copy(source, str(tmp_path / "m"), Retention())
    assert os.listdir(tmp_path / "m") == []


@pytest.mark.requirement("CKPT-06")
def test_a_mirror_whose_place_is_missing_is_not_made_on_this_disk(source: str, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        mirroring.copy(source, str(tmp_path / "mount" / "run"), Retention())
    assert not (tmp_path / "mount").exists()


@pytest.mark.gotcha("U33")
@pytest.mark.requirement("CKPT-10", "VRFY-08", "B-26", "B-31")
def test_a_copy_that_the_far_side_keeps_wrong_never_counts(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirroring, "LANDING_S", 0.0)
    monkeypatch.setattr(mirroring.prove, "__defaults__", (0.0,))
    real = os.rename

    def rename(old: str, new: str) -> None:
        real(old, new)
        if new.endswith("step-3"):
            support.flip_bit(f"{new}/optimizer.safetensors", random.Random(1))

    monkeypatch.setattr(os, "rename", rename)
    with pytest.raises(OSError, match=r"does not prove right: optimizer\.safetensors") as caught:
        mirroring.copy(source, str(tmp_path / "m"), Retention())
    assert caught.value.errno == errno.EIO


@pytest.mark.gotcha("NB1")
@pytest.mark.requirement("CKPT-10")
def test_a_mount_that_lands_late_is_waited_for_and_not_believed_before(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cloud drive: everything is answered, and the content is there only at the fifth look."""
    monkeypatch.setattr(mirroring, "LANDING_LOOK_S", 0.0)
    looks: list[bool] = []
    real = os.open

    def late(path: Any, flags: int, *args: Any, **options: Any) -> int:
        far = str(path).startswith(str(tmp_path / "m" / "step-3")) and not flags & (os.O_WRONLY | os.O_DIRECTORY)
        if far and str(path).endswith("checkpoint.json"):
            looks.append(True)
        if far and len(looks) < 5:
            return real(os.devnull, flags & ~os.O_NOFOLLOW, *args, **options)
        return real(path, flags, *args, **options)

    monkeypatch.setattr(os, "open", late)
    copy = mirroring.copy(source, str(tmp_path / "m"), Retention())
    assert len(looks) >= 5, "it was believed too early"
    monkeypatch.undo()
    assert checkpoints.verify(copy).ok


@pytest.fixture
def heard() -> list[SaveResult]:
    return []


def save_mirrored(directory: Path, mirror: str, heard: list[SaveResult], step: int = 1) -> Save:
    saver = Saver(
        str(directory),
        Retention(),
        mirror=mirror,
        asynchronous=False,
        report=lambda _save, result: heard.append(result),
    )
    save = saver.save(step, support.state_of(step), {})
    saver.close()
    return save


@pytest.mark.requirement("CKPT-06")
@pytest.mark.parametrize("trouble", ["missing", "full", "read-only", "file"])
def test_trouble_with_the_mirror_is_said_and_the_checkpoint_itself_stands(
    trouble: str, tmp_path: Path, heard: list[SaveResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror = tmp_path / "m"
    words = {"missing": "No such file", "full": "are free", "read-only": "Read-only", "file": "File exists"}[trouble]
    if trouble == "missing":
        mirror = tmp_path / "mount" / "m"
    elif trouble == "file":
        mirror.write_bytes(b"")
    real_statvfs, real_makedirs = os.statvfs, os.makedirs
    full = os.statvfs_result((4096, 4096, 0, 1, 1, 0, 0, 0, 0, 255))

    def makedirs(path: str, *args: Any, **options: Any) -> None:
        if trouble == "read-only" and path.startswith(str(mirror)):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
        real_makedirs(path, *args, **options)

    monkeypatch.setattr(os, "makedirs", makedirs)
    monkeypatch.setattr(
        os, "statvfs", lambda path: full if trouble == "full" and path == str(mirror) else real_statvfs(path)
    )
    save = save_mirrored(tmp_path / "c", str(mirror), heard)
    assert save.result() == str(tmp_path / "c" / "step-1")
    assert [(result.mirror, result.ok) for result in heard] == [(False, True), (True, False)]
    assert words in heard[1].message
    assert str(mirror) in heard[1].message


# ----------------------------------------------------------------------------------------------------------- resuming


def choose(directory: Path, mirror: Path | None) -> tuple[str | None, list[str]]:
    said: list[str] = []
    directory.mkdir(exist_ok=True)
    found = restore._choose(str(directory), None if mirror is None else str(mirror), said.append)
    return (None if found is None else os.path.relpath(found.path, directory.parent)), said


def spoil(path: Path) -> None:
    os.truncate(path / "model.safetensors", 9)


@pytest.mark.requirement("CKPT-06", "CKPT-04")
@pytest.mark.parametrize(
    ("here", "there", "spoiled", "chosen"),
    [
        ([], [], [], None),
        ([1], [], [], "c/step-1"),
        ([1, 2], [1], [], "c/step-2"),
        ([1, 2], [1, 2], [], "c/step-2"),
        ([], [1], [], "m/step-1"),
        ([1], [1, 2], [], "m/step-2"),
        ([1, 2], [1, 2], ["c/step-2"], "m/step-2"),
        ([1, 2], [1], ["c/step-1", "c/step-2"], "m/step-1"),
        ([2], [1, 3], ["m/step-3"], "c/step-2"),
        ([2], [1, 3], ["m/step-3", "c/step-2"], "m/step-1"),
    ],
)
def test_the_newest_valid_one_of_both_places_is_continued(
    here: list[int], there: list[int], spoiled: list[str], chosen: str | None, tmp_path: Path
) -> None:
    for place, steps in (("c", here), ("m", there)):
        for step in steps:
            assert support.save(tmp_path / place, step).ok
    for name in spoiled:
        spoil(tmp_path / name)
    found, said = choose(tmp_path / "c", tmp_path / "m")
    assert found == chosen
    for name in spoiled:
        assert any(name in line or f"{name[2:]}: " in line for line in said), (name, said)


@pytest.mark.gotcha("NB4")
def test_a_scratch_directory_that_was_wiped_is_gone_on_with_from_the_mirror(tmp_path: Path) -> None:
    assert support.save(tmp_path / "c", 3).ok
    mirroring.copy(str(tmp_path / "c" / "step-3"), str(tmp_path / "m"), Retention())
    shutil.rmtree(tmp_path / "c")
    assert choose(tmp_path / "c", tmp_path / "m")[0] == "m/step-3"


def test_when_no_place_has_a_valid_one_the_run_does_not_begin_from_scratch(tmp_path: Path) -> None:
    for place in ("c", "m"):
        assert support.save(tmp_path / place, 1).ok
        spoil(tmp_path / place / "step-1")
    for _ in range(2):
        with pytest.raises(NoValidCheckpoint):
            choose(tmp_path / "c", tmp_path / "m")


def test_a_mirror_that_cannot_be_read_is_no_reason_to_begin_from_scratch(tmp_path: Path) -> None:
    (tmp_path / "m").write_bytes(b"what a stale mount looks like: no directory")
    with pytest.raises(CannotResume, match="cannot be read"):
        choose(tmp_path / "c", tmp_path / "m")
    assert support.save(tmp_path / "c", 1).ok
    assert choose(tmp_path / "c", tmp_path / "m")[0] == "c/step-1"


def test_what_killed_saves_left_goes_in_both_places(tmp_path: Path) -> None:
    for place in ("c", "m"):
        assert support.save(tmp_path / place, 1).ok
        (tmp_path / place / ".step-2.abcdef").mkdir()
    choose(tmp_path / "c", tmp_path / "m")
    assert support.leftovers(tmp_path / "c") == support.leftovers(tmp_path / "m") == []
