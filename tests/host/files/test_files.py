"""Durable files: whole or not at all, whatever kills the writer; never through a planted link."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import random
import re
import select
import shutil
import signal
import stat
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from holdfast.host.files import files
from tests.host.small_disk import fill, mount_small_disk
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process


def commit_until_killed(path: str) -> None:
    """Replace the record for ever; sizes differ, so that a torn one would not parse."""
    for number in range(10_000_000):
        body = {"number": number, "padding": "x" * (number * 7919 % 50_000), "end": True}
        files.commit(path, json.dumps(body).encode())


def start_writer(path: str) -> int:
    child = os.fork()
    if child == 0:
        try:
            commit_until_killed(path)
        finally:
            os._exit(1)
    return child


@pytest.mark.requirement("OBS-03", "PROC-14")
def test_OBS_03_a_writer_killed_100_times_never_leaves_half_a_file(tmp_path: Path) -> None:
    path = str(tmp_path / "state.json")
    moments = random.Random(20261120)
    seen = set()
    for _ in range(100):
        before = None if not os.path.lexists(path) else os.stat(path).st_ino
        child = start_writer(path)
        try:
            wait_until(lambda old=before: os.path.lexists(path) and os.stat(path).st_ino != old, what="a first commit")  # type: ignore[misc]
            select.select([], [], [], moments.random() * 0.004)
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        record = json.loads(files.read_bytes(path))
        assert record["end"] is True
        seen.add(record["number"])
    assert len(seen) > 3, "every kill came at the same commit: nothing was tried"


@pytest.mark.requirement("OBS-03")
def test_OBS_03_what_was_committed_survives_a_power_cut(tmp_path: Path) -> None:
    """The bytes are forced out before the new name appears, and the directory after it: asked of the kernel."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed; `make test` installs what scripts/system-packages.txt names")
    log, path = tmp_path / "strace", tmp_path / "state.json"
    program = "import sys; from holdfast.host.files.files import commit; commit(sys.argv[1], b'new')"
    done = subprocess.run(
        [
            *(
                "strace",
                "-f",
                "-y",
                "-qq",
                "-e",
                "trace=write,fsync,fdatasync,rename,renameat,renameat2",
                "-o",
                str(log),
            ),
            *(sys.executable, "-c", program, str(path)),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if "ptrace" in done.stderr.lower():
        pytest.skip(f"no process may be traced here: {done.stderr.strip()[:200]}")
    assert path.read_bytes() == b"new", done.stderr
    temporary = rf"\d+<{re.escape(str(tmp_path))}/\.state\.json\.[^>]*>"
    asked = [line.split(None, 1)[1] for line in log.read_text().splitlines() if str(tmp_path) in line]
    steps = [
        rf"write\({temporary}, \"new\", 3\) += 3",
        rf"f(data)?sync\({temporary}\) += 0",
        r"rename(at2?)?\(.*/\.state\.json\.[^\"]*\".*/state\.json\".*\) += 0",
        rf"fsync\(\d+<{re.escape(str(tmp_path))}>\) += 0",
    ]
    assert len(asked) == len(steps), asked
    for line, step in zip(asked, steps, strict=True):
        assert re.match(step, line), (line, step)


def test_a_commit_replaces_the_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_bytes(b"old and longer")
    files.commit(str(path), b"new")
    assert path.read_bytes() == b"new"
    assert sorted(os.listdir(tmp_path)) == ["isolated", "run.json"]


@pytest.mark.parametrize(("mode", "umask"), [(0o600, 0o000), (0o644, 0o077), (0o600, 0o777)])
def test_the_mode_is_exact_whatever_the_umask(tmp_path: Path, mode: int, umask: int) -> None:
    path = str(tmp_path / "record")
    old = os.umask(umask)
    try:
        files.commit(path, b"x", mode=mode)
    finally:
        os.umask(old)
    assert stat.S_IMODE(os.stat(path).st_mode) == mode


@pytest.mark.requirement("OBS-03")
def test_OBS_03_content_is_on_the_disk_before_its_name_and_the_name_before_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As above where nothing can be traced: the real calls, written down on their way."""
    asked: list[tuple[str, str]] = []
    fsync, rename = os.fsync, os.rename

    def note_fsync(descriptor: int) -> None:
        asked.append(("fsync", os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    def note_rename(old: str, new: str) -> None:
        asked.append(("rename", old))
        rename(old, new)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "rename", note_rename)
    files.commit(str(tmp_path / "record"), b"x")
    temporary = asked[0][1]
    assert temporary.startswith(f"{tmp_path}/.record.")
    assert asked == [("fsync", temporary), ("rename", temporary), ("fsync", str(tmp_path))]


@pytest.mark.requirement("OBS-03")
def test_OBS_03_a_directory_that_has_no_fsync_is_fine_and_one_whose_disk_fails_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(number: int) -> None:
        def fsync(_: int) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, "fsync", fsync)

    refuse(errno.EINVAL)
    files.sync_directory(str(tmp_path))
    refuse(errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        files.sync_directory(str(tmp_path))


def test_a_commit_into_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    files.commit("record", b"x")
    assert (tmp_path / "record").read_bytes() == b"x"


@pytest.mark.requirement("LEASE-13")
def test_a_planted_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    victim, path = tmp_path / "victim", tmp_path / "record"
    victim.write_bytes(b"precious")
    path.symlink_to(victim)
    files.commit(str(path), b"x")
    assert victim.read_bytes() == b"precious"
    assert not path.is_symlink()


def test_a_pipe_is_not_appended_to(tmp_path: Path) -> None:
    """Once it is full, each writer waits for a reader."""
    os.mkfifo(tmp_path / "log")
    with pytest.raises(OSError, match="no regular file"):
        files.append(str(tmp_path / "log"), b"x\n")


@pytest.mark.parametrize("use", [files.read_bytes, lambda path: files.append(path, b"x\n")])
def test_a_planted_link_is_neither_read_nor_appended_to(tmp_path: Path, use: object) -> None:
    victim, path = tmp_path / "victim", tmp_path / "record"
    victim.write_bytes(b"precious")
    path.symlink_to(victim)
    with pytest.raises(OSError) as caught:  # noqa: PT011 - the number is checked
        use(str(path))  # type: ignore[operator]
    assert caught.value.errno == errno.ELOOP
    assert victim.read_bytes() == b"precious"


@pytest.mark.requirement("OBS-11")
def test_a_full_disk_keeps_the_old_record_and_no_litter(tmp_path: Path) -> None:
    with mount_small_disk(tmp_path / "disk", 1 << 20) as disk:
        path = disk / "state.json"
        files.commit(str(path), b"old")
        fill(disk)
        with pytest.raises(OSError) as caught:  # noqa: PT011 - the number is checked
            files.commit(str(path), bytes(100_000))
        assert caught.value.errno == errno.ENOSPC
        assert path.read_bytes() == b"old"
        assert sorted(os.listdir(disk)) == ["ballast", "state.json"]


def test_a_directory_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        files.commit(str(tmp_path / "gone" / "record"), b"x")


def test_what_stands_in_the_way_stays(tmp_path: Path) -> None:
    (tmp_path / "record").mkdir()
    with pytest.raises(IsADirectoryError):
        files.commit(str(tmp_path / "record"), b"x")
    assert sorted(os.listdir(tmp_path)) == ["isolated", "record"]


def test_a_record_that_is_too_large_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "record"
    path.write_bytes(bytes(101))
    with pytest.raises(OSError, match="larger than 100 bytes"):
        files.read_bytes(str(path), limit=100)
    assert len(files.read_bytes(str(path), limit=101)) == 101


def test_a_planted_fifo_does_not_block_the_reader(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "record")
    assert files.read_bytes(str(tmp_path / "record")) == b""


def test_text_or_none(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"word\xff\n")
    assert files.read_text_or_none(str(tmp_path / "x")) == "word\ufffd"
    assert files.read_text_or_none(str(tmp_path / "gone")) is None


@pytest.mark.requirement("OBS-07")
def test_lines_are_appended_and_a_torn_last_one_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    files.append(str(path), b"one\n")
    files.append(str(path), b"two\n")
    assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0
    with path.open("ab") as file:
        file.write(b"tor")
    assert files.read_last_lines(str(path)) == [b"one", b"two"]
    files.append(str(path), b"three\n")
    assert files.read_last_lines(str(path)) == [b"one", b"two", b"tor", b"three"]


def test_a_missing_file_has_no_lines(tmp_path: Path) -> None:
    assert files.read_last_lines(str(tmp_path / "gone")) == []


@pytest.mark.requirement("OBS-11")
def test_a_line_that_does_not_fit_is_not_half_there(tmp_path: Path) -> None:
    with mount_small_disk(tmp_path / "disk", 1 << 20) as disk:
        path = disk / "events.jsonl"
        files.append(str(path), b"one\n")
        fill(disk, leave_bytes=8192)
        with pytest.raises(OSError) as caught:  # noqa: PT011 - the number is checked
            files.append(str(path), b"x" * 100_000 + b"\n")
        assert caught.value.errno == errno.ENOSPC
        assert path.read_bytes() == b"one\n"


def test_removing_what_is_not_there_is_fine(tmp_path: Path) -> None:
    (tmp_path / "x").touch()
    files.remove_quietly(str(tmp_path / "x"))
    files.remove_quietly(str(tmp_path / "x"))
    assert not (tmp_path / "x").exists()


def test_a_lock_is_held_free_or_cannot_be_told(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    assert files.is_locked(path) is False
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    assert files.is_locked(path) is False
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    assert files.is_locked(path) is True
    os.close(descriptor)
    assert files.is_locked(path) is False, "nor does the look keep it"
    os.symlink(path, tmp_path / "link")
    assert files.is_locked(str(tmp_path / "link")) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount")
def test_what_cannot_be_looked_at_keeps_nothing_else_from_being_removed(tmp_path: Path) -> None:
    """As where the server of a mount (sshfs) has died: stat(2) of it says ENOTCONN."""
    top, dead = tmp_path / "top", tmp_path / "top" / "dead"
    dead.mkdir(parents=True)
    for number in range(20):
        (top / f"file-{number}").touch()
    with open("/dev/fuse", "rb") if os.path.exists("/dev/fuse") else pytest.skip("no FUSE here") as device:
        options = f"fd={device.fileno()},rootmode=40000,user_id=0,group_id=0"
        command = ["mount", "-i", "-t", "fuse", "-o", options, "holdfast-test", str(dead)]
        done = subprocess.run(command, pass_fds=(device.fileno(),), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"nothing can be mounted here: {done.stderr.strip()}")
    try:
        with pytest.raises(OSError, match=re.escape(str(top))) as refused:
            files.remove_all(str(top))
        assert refused.value.errno == errno.ENOTCONN
        assert os.listdir(top) == ["dead"]
    finally:
        subprocess.run(["umount", "-l", str(dead)], check=True)
