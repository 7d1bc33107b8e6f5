"""Lock files against planted, removed and replaced ones, on a real file system."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.host.lease import lock_files
from holdfast.host.lease.area import LeaseArea
from holdfast.model.errors import StorageError
from tests.host.lease_support import CARDS, slice_of

pytestmark = pytest.mark.process


def try_lock(path: Path, *, exclusive: bool = True) -> bool:
    files = lock_files.LockFiles()
    try:
        return files.try_lock(str(path), exclusive=exclusive)
    finally:
        files.close()


def test_a_lock_file_is_readable_for_everybody_whatever_the_umask(tmp_path: Path) -> None:
    previous = os.umask(0o077)
    try:
        os.close(lock_files.open_lock_file(str(tmp_path / "a")))
    finally:
        assert os.umask(previous) == 0o077
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o644


def test_two_exclusive_locks_exclude_each_other_and_shared_ones_do_not(tmp_path: Path) -> None:
    files = lock_files.LockFiles()
    path = tmp_path / "a"
    assert files.try_lock(str(path), exclusive=True)
    assert not try_lock(path)
    assert not try_lock(path, exclusive=False)
    files.close()
    assert files.try_lock(str(path), exclusive=False)
    assert try_lock(path, exclusive=False)
    assert not try_lock(path)
    files.close()
    assert try_lock(path)


@pytest.mark.requirement("LEASE-06", "B-09")
def test_LEASE_06_a_planted_symlink_is_refused_and_its_target_untouched(tmp_path: Path) -> None:
    target = tmp_path / "precious"
    (tmp_path / "gpu-x.lock").symlink_to(target)
    with pytest.raises(StorageError, match="symbolic link") as caught:
        lock_files.open_lock_file(str(tmp_path / "gpu-x.lock"))
    assert caught.value.hint
    assert not target.exists()


def test_a_hard_link_a_fifo_and_a_directory_are_refused_without_blocking(tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    os.link(tmp_path / "other", tmp_path / "linked")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "directory").mkdir()
    for name, seen in (("linked", "2 names"), ("fifo", "not a regular file"), ("directory", "not a regular file")):
        with pytest.raises(StorageError, match=seen):
            lock_files.open_lock_file(str(tmp_path / name))


def test_a_removed_lock_file_is_noticed_by_the_next_and_by_the_holder(tmp_path: Path) -> None:
    path = str(tmp_path / "a")
    files = lock_files.LockFiles()
    assert files.try_lock(path, exclusive=True)
    files.require_current()
    os.unlink(path)
    with pytest.raises(lock_files.LockObstructed):
        files.require_current()
    files.unlock()
    # The descriptor of the removed file is still open; a lock on it would mean nothing.
    assert files.try_lock(path, exclusive=True)
    files.require_current()
    assert not try_lock(Path(path))
    files.close()


def test_descriptors_are_close_on_exec_and_in_path_order(tmp_path: Path) -> None:
    files = lock_files.LockFiles()
    for name in ("b", "a"):
        assert files.try_lock(str(tmp_path / name), exclusive=True)
    assert [os.readlink(f"/proc/self/fd/{fd}") for fd in files.descriptors] == [str(tmp_path / n) for n in "ab"]
    assert not any(os.get_inheritable(descriptor) for descriptor in files.descriptors)
    files.close()


@pytest.mark.requirement("LEASE-01", "LEASE-19")
def test_the_order_of_locks_does_not_depend_on_the_order_of_the_request(tmp_path: Path) -> None:
    area = LeaseArea(("/x", "/y"), ("/x", "/y"), "test")
    forward = lock_files.plan_locks(area, (CARDS[0], CARDS[1]), share=False)
    assert forward == lock_files.plan_locks(area, (CARDS[1], CARDS[0]), share=False)
    assert [path.rpartition("/")[0] for path, _ in forward] == ["/x", "/x", "/y", "/y"]
    assert all(exclusive for _, exclusive in forward)
    one, two = slice_of(CARDS[0], 1), slice_of(CARDS[0], 2)
    plan = dict(lock_files.plan_locks(LeaseArea(("/x",), ("/x",), "test"), (one, two), share=False))
    assert plan == {
        f"/x/gpu-{CARDS[0].card_uuid}.lock": False,
        f"/x/gpu-{one.slice_uuid}.lock": True,
        f"/x/gpu-{two.slice_uuid}.lock": True,
    }


@pytest.mark.parametrize("uuid", ["", "../etc", "a/b", "a\nb", "GPU ü"])
def test_a_uuid_that_is_no_file_name_is_refused(uuid: str) -> None:
    with pytest.raises(ValueError, match="UUID"):
        lock_files.lock_name(uuid)


def test_a_full_or_vanished_directory_is_an_error_for_people(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot be made"):
        lock_files.open_lock_file(str(tmp_path / "gone" / "a"))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another account")
def test_a_lock_file_closed_to_us_is_named_with_its_owner(public_path: Path) -> None:
    from tests.host.lease_support import NOBODY, Child, Line

    path = public_path / "a"
    path.touch(mode=0o600)

    def work(line: Line) -> None:
        try:
            lock_files.open_lock_file(str(path))
        except lock_files.LockObstructed as error:
            line.send([str(error), error.hint])

    with Child(work, uid=NOBODY) as child:
        message, hint = child.receive()
    assert str(path) in message
    assert "chmod 644" in hint
