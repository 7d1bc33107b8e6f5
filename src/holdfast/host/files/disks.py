"""What is left on the disk that a path really lives on: bytes, inodes, and what kind of file system it is (PRE-06).

A path is followed to its real place first (a cache that is a symbolic link fills the disk behind the link), and a path
that does not exist yet counts for its nearest existing parent. Values that the file system does not tell are None; a
file system without a fixed number of inodes says so (`counts_inodes`), which is not "none left".

A network file system may not answer at all. Paths on one are asked in a child of ours that is left behind after a
deadline, so that a dead server costs a finding and not the caller.
"""

from __future__ import annotations

import json
import os
import select
import signal
import stat

from holdfast.model.record import asdict, record

from .filesystems import Mount, find_mount, read_mounts

ANSWER_WITHIN_S = 2.0


class DiskUnreadable(OSError):
    """The file system behind a path did not tell its state, in time or at all; the message says why."""


@record
class DiskSpace:
    """One look at the file system under `real_path` (the nearest existing parent of what was asked, links resolved).

    Bytes and inodes are those that an unprivileged account may still use. `free_inodes` is None where the file system
    does not count them (`counts_inodes` False). `device` tells file systems apart.
    """

    real_path: str
    mount_point: str
    kind: str
    source: str
    device: int
    free_bytes: int
    total_bytes: int
    free_inodes: int | None
    counts_inodes: bool
    read_only: bool
    is_network: bool
    is_memory: bool


def measure_space(path: str, mounts: tuple[Mount, ...] | None = None) -> DiskSpace:
    """The space behind `path`; relative paths count from the working directory.

    Raises:
        DiskUnreadable: it cannot be told, or a network file system did not answer within 2 s.
    """
    mounts = read_mounts() if mounts is None else mounts
    near = find_mount(os.path.abspath(path), mounts)
    if any(mount.is_network for mount in mounts) and (near is None or near.is_network or _has_links(path)):
        return _measure_in_child(path, mounts)
    return _measure_here(path, mounts)


def _has_links(path: str) -> bool:
    """Whether some part of the path is a link, which could lead onto a network file system; none is followed."""
    current = os.path.abspath(path)
    while current != "/":
        try:
            if stat.S_ISLNK(os.lstat(current).st_mode):
                return True
        except OSError:
            pass
        current = os.path.dirname(current)
    return False


def find_existing(path: str) -> str:
    """The real path of the nearest part of `path` that exists; a dangling link counts for where it points."""
    current = os.path.realpath(path)
    while current != "/" and not os.path.lexists(current):
        current = os.path.dirname(current)
    return current


def _measure_here(path: str, mounts: tuple[Mount, ...]) -> DiskSpace:
    real = find_existing(path)
    try:
        facts, device = os.statvfs(real), os.stat(real).st_dev
    except OSError as error:
        raise DiskUnreadable(error.errno, f"{error.strerror}", real) from error
    mount = find_mount(real, mounts) or Mount("?", "unknown", "?", bool(facts.f_flag & os.ST_RDONLY))
    return DiskSpace(
        real_path=real,
        mount_point=mount.mount_point,
        kind=mount.kind,
        source=mount.source,
        device=device,
        free_bytes=facts.f_bavail * facts.f_frsize,
        total_bytes=facts.f_blocks * facts.f_frsize,
        free_inodes=facts.f_favail if facts.f_files else None,
        counts_inodes=facts.f_files > 0,
        read_only=bool(facts.f_flag & os.ST_RDONLY) or mount.read_only,
        is_network=mount.is_network,
        is_memory=mount.is_memory,
    )


def _measure_in_child(path: str, mounts: tuple[Mount, ...]) -> DiskSpace:
    """As `_measure_here`, in a child that may hang in the kernel without taking us along."""
    reader, writer = os.pipe2(os.O_CLOEXEC)
    child = os.fork()
    if child == 0:
        try:
            try:
                answer = asdict(_measure_here(path, mounts))
            except OSError as error:
                answer = {"error": str(error)}
            os.write(writer, json.dumps(answer).encode())
        finally:
            os._exit(0)
    os.close(writer)
    try:
        ready = select.select([reader], [], [], ANSWER_WITHIN_S)[0]
        data = os.read(reader, 65536) if ready else b""
    finally:
        os.close(reader)
        if not ready:
            os.kill(child, signal.SIGKILL)
        # A child stuck in the kernel is not waited for: it is reaped when we end, or by init after us.
        os.waitpid(child, 0 if ready else os.WNOHANG)
    if not data:
        raise DiskUnreadable(110, f"the network file system did not answer within {ANSWER_WITHIN_S:g} s", path)
    answer = json.loads(data)
    if "error" in answer:
        raise DiskUnreadable(5, str(answer["error"]), path)
    return DiskSpace(**answer)
