"""Which file system a path lies on, and whether it is this box's alone.

On one that is not, a lock may be nobody's business, a change that another machine makes raises no event here, and a
machine that was started again proves nothing of the others that use it. Read from the mount table: nothing is asked of
a server that may not answer.
"""

from __future__ import annotations

import os

from holdfast.model.record import record

_NETWORK = (
    *("nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "coda", "ceph", "glusterfs", "lustre", "gpfs", "beegfs", "9p"),
    *("ocfs2", "gfs2", "ncpfs", "orangefs", "pvfs2", "panfs", "wekafs", "quobyte"),
    # Shared with the machine that this one runs on, or with its neighbours there.
    *("virtiofs", "vboxsf", "vmhgfs", "prl_fs"),
)
_NETWORK_FUSE = (
    *("sshfs", "glusterfs", "ceph", "s3fs", "rclone", "gcsfuse", "juicefs", "orangefs", "pvfs2", "vmhgfs-fuse"),
    *("beegfs", "quobyte", "davfs", "davfs2", "blobfuse", "blobfuse2", "goofys", "mount-s3", "alluxio-fuse"),
)
_LOCAL_FUSE = frozenset({"fuseblk", "fuse.fuse-overlayfs", "fuse.mergerfs", "fuse.ntfs-3g", "fuse.unionfs"})
NETWORK_FILESYSTEMS = frozenset((*_NETWORK, *_NETWORK_FUSE, *(f"fuse.{name}" for name in _NETWORK_FUSE)))
"""By their names in mountinfo."""
MEMORY_TYPES = frozenset({"tmpfs", "ramfs", "hugetlbfs", "devtmpfs"})


@record
class Mount:
    """One line of the mount table; `device` is ``major:minor`` in decimal, `root` what of it is mounted."""

    mount_point: str
    kind: str
    source: str
    read_only: bool
    device: str = ""
    root: str = "/"

    @property
    def is_network(self) -> bool:
        """Whether its data lives on another machine."""
        return self.kind in NETWORK_FILESYSTEMS

    @property
    def is_memory(self) -> bool:
        """Whether it is gone after a restart and counts as memory."""
        return self.kind in MEMORY_TYPES


def read_mounts(table: str = "/proc/self/mountinfo") -> tuple[Mount, ...]:
    """The mounts that we see, in the order of mounting; empty when the table cannot be read. Source: proc(5)."""
    try:
        with open(table, encoding="utf-8", errors="surrogateescape") as file:
            lines = file.read().splitlines()
    except OSError:
        return ()
    mounts = []
    for line in lines:
        front, _, back = line.partition(" - ")
        fields, rest = front.split(" "), back.split(" ")
        if len(fields) < 6 or len(rest) < 3:
            continue
        read_only = "ro" in fields[5].split(",") or "ro" in rest[2].split(",")
        mounts.append(Mount(unescape(fields[4]), rest[0], unescape(rest[1]), read_only, fields[2], unescape(fields[3])))
    return tuple(mounts)


def unescape(text: str) -> str:
    """A path of the mount table as it really is: the kernel writes space, tab, newline and backslash as octal."""
    for code, plain in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, plain)
    return text


def find_mount(path: str, mounts: tuple[Mount, ...]) -> Mount | None:
    """The mount that an absolute path without links lies on: the longest mount point above it, the latest of equals."""
    best: Mount | None = None
    for mount in mounts:
        point = mount.mount_point.rstrip("/")
        if (path == point or path.startswith(point + "/")) and (
            best is None or len(point) >= len(best.mount_point.rstrip("/"))
        ):
            best = mount
    return best


def filesystem_of(path: str) -> tuple[str, str]:
    """The type of the file system under `path` and its device as ``major:minor`` in decimal; empty when unknown.

    Source: proc_pid_mountinfo(5). The device is the superblock's, which is what ``/proc/locks`` prints; on btrfs and
    overlayfs it differs from ``st_dev``.
    """
    mount = find_mount(os.path.realpath(path), read_mounts())
    return ("", "") if mount is None else (mount.kind, mount.device)


def is_local(path: str) -> bool:
    """Whether it provably lies on a file system of this box alone; of a FUSE server nobody knows what is behind it."""
    kind = filesystem_of(path)[0]
    if not kind or kind in NETWORK_FILESYSTEMS:
        return False
    return kind in _LOCAL_FUSE or not (kind == "fuse" or kind.startswith("fuse."))
