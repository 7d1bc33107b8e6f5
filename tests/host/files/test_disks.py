"""Space is measured on the file system that a path really lives on."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from holdfast.host.files import disks
from holdfast.host.files.code.store import remove_tree
from holdfast.host.files.disks import DiskUnreadable, find_existing, measure_space
from holdfast.host.files.filesystems import Mount, find_mount, read_mounts
from holdfast.host.process import libc

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.process
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount without a user namespace")
MIB = 1024**2


def in_own_mounts(work: Callable[[], object]) -> object:
    """Run `work` in a child with mounts of its own and answer what it returned."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            libc.unshare(0x00020000)  # CLONE_NEWNS
            libc.mount("none", "/", flags=0x4000 | 0x40000)  # MS_REC | MS_PRIVATE
            os.write(writer, json.dumps(work()).encode())
        except BaseException as error:  # noqa: BLE001 - the child must not run the test session
            os.write(writer, json.dumps(repr(error)).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    return json.loads(text)


@needs_root
def test_a_read_only_tree_goes_and_what_is_mounted_in_it_keeps_its_mode(tmp_path: Path) -> None:
    for name in ("tree/sub", "else/where"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name).chmod(0o500)
    (tmp_path / "tree" / "at").mkdir()
    (tmp_path / "tree").chmod(0o500)

    def work() -> object:
        libc.mount(str(tmp_path / "else"), str(tmp_path / "tree" / "at"), flags=0x1000 | 0x4000)  # MS_BIND | MS_REC
        with pytest.raises(OSError, match="something else is mounted here"):
            remove_tree(str(tmp_path / "tree"))
        return [sorted(os.listdir(tmp_path / "tree")), oct((tmp_path / "else" / "where").stat().st_mode)]

    assert in_own_mounts(work) == [["at"], "0o40500"]
    remove_tree(str(tmp_path / "tree"))
    assert not (tmp_path / "tree").exists()


@pytest.mark.requirement("PRE-06")
def test_PRE_06_a_link_counts_for_the_disk_behind_it(tmp_path: Path) -> None:
    (tmp_path / "cache").symlink_to("/dev/shm")
    space = measure_space(str(tmp_path / "cache" / "models" / "not-yet-there"))
    facts = os.statvfs("/dev/shm")
    assert space.real_path == "/dev/shm"
    assert space.device == os.stat("/dev/shm").st_dev
    assert space.total_bytes == facts.f_blocks * facts.f_frsize
    assert measure_space(str(tmp_path)).device == tmp_path.stat().st_dev


@pytest.mark.gotcha("U7")
@needs_root
@pytest.mark.requirement("PRE-06")
def test_PRE_06_bytes_and_inodes_of_a_small_mount(tmp_path: Path) -> None:
    (tmp_path / "small").mkdir()

    def work() -> object:
        target = f"{tmp_path}/small"
        libc.mount("tmpfs", target, kind="tmpfs", options="size=2m,nr_inodes=50")
        empty = measure_space(target)
        with open(f"{target}/file", "wb") as file:
            file.write(b"x" * MIB)
        used = measure_space(f"{target}/a/b")
        libc.mount("none", target, flags=32 | 1)  # MS_REMOUNT | MS_RDONLY
        return [
            empty.kind,
            empty.is_memory,
            empty.free_bytes,
            used.free_bytes,
            used.free_inodes,
            measure_space(target).read_only,
        ]

    assert in_own_mounts(work) == ["tmpfs", True, 2 * MIB, MIB, 48, True]


@needs_root
def test_a_mount_that_hides_another_is_the_one_that_counts(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()

    def work() -> object:
        for size in ("4m", "8m"):
            libc.mount("tmpfs", f"{tmp_path}/m", kind="tmpfs", options=f"size={size}")
        space = measure_space(f"{tmp_path}/m")
        return [space.total_bytes, space.mount_point == f"{tmp_path}/m"]

    assert in_own_mounts(work) == [8 * MIB, True]


def test_the_mount_table_is_read_with_its_escapes(tmp_path: Path) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(
        "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
        "30 22 0:40 / /mnt/my\\040data ro,relatime - nfs4 server:/x rw,vers=4\n"
        "nonsense\n"
    )
    root, data = read_mounts(str(table))
    assert (root.mount_point, root.kind, root.read_only) == ("/", "ext4", False)
    assert (data.mount_point, data.is_network, data.read_only) == ("/mnt/my data", True, True)
    assert find_mount("/mnt/my data/x", (root, data)) == data
    assert find_mount("/mnt/my database", (root, data)) == root
    assert read_mounts(str(tmp_path / "none")) == ()


def test_a_path_on_a_network_mount_is_asked_in_a_child(tmp_path: Path) -> None:
    mounts = (Mount("/", "ext4", "d", read_only=False), Mount(str(tmp_path), "nfs4", "s", read_only=False))
    space = measure_space(f"{tmp_path}/deeper", mounts)
    assert space.is_network
    assert space.real_path == str(tmp_path)


def test_a_network_mount_that_is_silent_costs_a_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = os.pipe()
    monkeypatch.setattr(disks, "ANSWER_WITHIN_S", 0.05)
    monkeypatch.setattr(disks, "_measure_here", lambda *_: os.read(gate[0], 1))
    mounts = (Mount("/", "nfs4", "s", read_only=False),)
    with pytest.raises(DiskUnreadable, match="did not answer within"):
        measure_space(str(tmp_path), mounts)
    for descriptor in gate:
        os.close(descriptor)
    try:
        os.waitpid(-1, 0)
    except ChildProcessError:
        pass


def test_the_nearest_existing_place(tmp_path: Path) -> None:
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere" / "deep")
    assert find_existing(f"{tmp_path}/a/b/c") == str(tmp_path)
    assert find_existing(f"{tmp_path}/gone/x") == str(tmp_path)
