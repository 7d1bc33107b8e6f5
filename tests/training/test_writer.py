"""One save against a file system that fails at any call: the old checkpoints stand, and nothing is left behind."""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.model.record import asdict
from holdfast.training.storage import checkpoints, layout
from holdfast.training.storage.write import files, writer
from tests.training.faults import support
from tests.training.faults.support import Faults
from tests.waiting import LIMIT_S

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.contract

ERRORS = {name: getattr(errno, name) for name in ("ENOSPC", "EIO", "EDQUOT", "EROFS", "ESTALE", "EACCES")}


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    """A place where fsync costs nothing, where there is one: several hundred saves follow."""
    if not os.path.isdir("/dev/shm"):
        yield tmp_path / "c"
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="holdfast-test-") as directory:
        yield Path(directory) / "c"


@pytest.mark.requirement("LIB-06", "CKPT-05", "CKPT-08")
@pytest.mark.parametrize("lasting", [False, True], ids=["once", "lasting"])
@pytest.mark.parametrize("name", ERRORS)
def test_a_save_that_fails_at_any_call_leaves_old_or_new_and_never_a_mix(
    name: str, lasting: bool, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = str(memory)
    assert support.save(directory, 1).ok
    faults = Faults(monkeypatch, directory)
    seen, failed, number = set(), 0, 0
    while True:
        with faults.failing(number, ERRORS[name], lasting=lasting):
            result = support.save(directory, 2)
        if not faults.hit:
            break
        number += 1
        seen.add(faults.hit)
        where = f"call {number} ({faults.hit}): {result}"
        assert support.leftovers(directory) == [], where
        assert checkpoints.verify(f"{directory}/step-1").ok, where
        there = support.steps(directory) == [1, 2]
        assert not there or checkpoints.verify(f"{directory}/step-2").ok, where
        assert support.newest(directory) == (2 if there else 1), where
        if result.ok:
            assert there, where
        else:
            failed += 1
            assert result.errno in (ERRORS[name], errno.EEXIST), where
            assert os.strerror(ERRORS[name]) in result.message, where
            assert directory in result.message, where
        for path in support.data_files(f"{directory}/step-2") if there else ():
            os.unlink(path)
        if there:
            os.rmdir(f"{directory}/step-2")
    assert {"open", "pwrite", "fsync", "rename", "mkdir", "statvfs"} <= seen
    # A second try helps against what may pass; nothing helps against a read-only disk, or against what lasts.
    assert (failed < number) if not lasting and ERRORS[name] in writer.ONCE_MORE else (failed > number // 2)


@pytest.mark.requirement("CKPT-08")
def test_on_a_full_disk_what_may_go_goes_in_the_stated_order_and_the_save_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "c"
    keep = checkpoints.Retention(last=4, best=1)
    for step in (1, 2, 3, 4):
        assert support.save(directory, step, keep=keep, metrics={"loss": float(step)}).ok
    (directory / layout.building_name(9, "abcd")).mkdir()
    real = os.statvfs
    full = os.statvfs_result((4096, 4096, 0, 1, 1, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda path: full if len(support.steps(directory)) > 2 else real(path))
    result = support.save(directory, 5, keep=keep)
    assert result.ok
    assert "are free" in result.notes[0]
    # The best one, the newest before, the new one.
    assert support.steps(directory) == [1, 4, 5]
    assert support.leftovers(directory) == []


@pytest.mark.requirement("CKPT-07", "CKPT-08")
def test_on_a_full_disk_a_newest_that_is_damaged_does_not_cost_the_valid_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "c"
    for step in (1, 2, 3):
        assert support.save(directory, step).ok
    for step in (2, 3):
        os.truncate(directory / f"step-{step}" / "model.safetensors", 10)
    full = os.statvfs_result((4096, 4096, 0, 1, 1, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: full)
    result = support.save(directory, 4, keep=checkpoints.Retention(last=1))
    assert not result.ok
    assert "are needed" in result.message
    assert support.newest(directory) == 1


@pytest.mark.requirement("CKPT-06", "CKPT-08")
@pytest.mark.parametrize("reason", ["full", "read-only", "is a file"])
def test_where_the_directory_cannot_be_written_the_mirror_is(
    reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, mirror = tmp_path / "c", tmp_path / "m"
    if reason == "is a file":
        directory.write_bytes(b"")
    real_statvfs, real_mkdir = os.statvfs, os.mkdir

    def statvfs(path: str) -> os.statvfs_result:
        if reason == "full" and path == str(directory):
            return os.statvfs_result((4096, 4096, 0, 1, 1, 0, 0, 0, 0, 255))
        return real_statvfs(path)

    def mkdir(path: str, *args: int) -> None:
        if reason == "read-only" and path.startswith(f"{directory}/"):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
        real_mkdir(path, *args)

    monkeypatch.setattr(os, "statvfs", statvfs)
    monkeypatch.setattr(os, "mkdir", mkdir)
    result = support.save(directory, 3, mirror=str(mirror))
    assert result.ok
    assert result.path == str(mirror / "step-3")
    assert str(directory) in result.notes[0]
    assert support.newest(mirror) == 3


def test_a_step_that_is_there_and_sound_is_replaced_in_one_exchange(tmp_path: Path) -> None:
    assert support.save(tmp_path, 3).ok
    before = os.stat(tmp_path / "step-3").st_ino
    result = support.save(tmp_path, 3)
    assert result.ok
    assert result.notes == ()
    assert os.stat(tmp_path / "step-3").st_ino != before
    assert support.newest(tmp_path) == 3
    assert sorted(path.name for path in tmp_path.glob("*step-*")) == ["step-3"]


def test_where_directories_cannot_be_exchanged_the_one_that_is_there_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert support.save(tmp_path, 3).ok
    before = os.stat(tmp_path / "step-3").st_ino
    monkeypatch.setattr(files, "RENAME_EXCHANGE", 1 << 20)  # the kernel refuses flags that it does not know
    result = support.save(tmp_path, 3)
    assert not result.ok
    assert "cannot be replaced" in result.message
    assert os.stat(tmp_path / "step-3").st_ino == before
    assert sorted(path.name for path in tmp_path.glob("*step-*")) == ["step-3"]


@pytest.mark.parametrize("name", ["state.json", "model.safetensors", "checkpoint.json"])
def test_a_step_that_is_there_and_wrong_is_set_aside_and_written_anew(name: str, tmp_path: Path) -> None:
    assert support.save(tmp_path, 3).ok
    os.truncate(tmp_path / "step-3" / name, 5)
    result = support.save(tmp_path, 3)
    assert result.ok
    assert support.newest(tmp_path) == 3
    assert (tmp_path / "step-3.bad-1").is_dir()


def test_ranks_meet_and_rank_0_commits_one_unit(tmp_path: Path) -> None:
    """Four ranks in threads; each writes its own files, one record names them all."""
    from concurrent.futures import ThreadPoolExecutor

    from holdfast.training.storage.write.save import Saver

    def one(rank: int) -> writer.SaveResult | None:
        saver = Saver(str(tmp_path), checkpoints.Retention(), token="abcd", rank=rank, world=4, asynchronous=False)
        return saver.save(7, {"model": {"rank": rank}}, {}).outcome

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(one, range(4)))
    assert all(result is not None and result.ok for result in results), results
    for rank in range(4):
        assert checkpoints.load_checkpoint(str(tmp_path / "step-7"), rank).states["model"] == {"rank": rank}
    assert support.leftovers(tmp_path) == []


def test_a_rank_that_cannot_save_its_part_fails_all_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.training.storage.write.save import Saver

    monkeypatch.setattr(writer, "ROSTER_WAIT_S", 0.2)
    saver = Saver(str(tmp_path), checkpoints.Retention(), token="abcd", rank=0, world=2, asynchronous=False)
    result = saver.save(7, {"model": {"rank": 0}}, {}).outcome
    assert result is not None
    assert not result.ok
    assert "not all 2 ranks saved their part" in result.message
    assert support.leftovers(tmp_path) == []


def test_a_writer_that_cannot_say_how_it_went_does_not_leave_its_trainer_waiting(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    theirs.shutdown(socket.SHUT_WR)
    snapshot = os.memfd_create("snapshot")
    os.write(snapshot, b"{}".ljust(layout.PAGE))
    job = writer.SaveJob(str(tmp_path / "c"), "abcd0000", 1, (("state.json", 0, 2),), {})
    with subprocess.Popen(
        writer.command(theirs.fileno(), snapshot), pass_fds=(theirs.fileno(), snapshot), stderr=subprocess.PIPE
    ) as process:
        theirs.close()
        ours.sendall(json.dumps(asdict(job)).encode() + b"\n")
        _, said = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 1
    assert b"its answer about step 1 could not be sent (Broken pipe)" in said
    assert checkpoints.verify(str(tmp_path / "c" / "step-1")).ok, "it is durable all the same"
    ours.close()
    os.close(snapshot)
