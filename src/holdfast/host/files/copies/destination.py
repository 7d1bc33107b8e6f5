"""Where a copy is to lie, and on which mount: a mount that is lost leaves a directory of this box's own disk behind it.

Told apart by the mount point: it is the same after a mount is made anew, and after a restart of the box, where the
number of the device is another.
"""

from __future__ import annotations

import errno
import os

from holdfast.host.files import files
from holdfast.host.files.disks import find_existing
from holdfast.host.files.filesystems import find_mount, read_mounts
from holdfast.model import wire
from holdfast.model.results import Destination


def look_at(directory: str) -> Destination | None:
    """The mount that a directory, or the nearest above it that is there, lies on; None where the table says nothing.

    Raises:
        OSError: it does not answer.
    """
    real = find_existing(directory)
    os.statvfs(real)  # has an automount come up, which a look by stat(2) does not
    mount = find_mount(os.path.realpath(real), read_mounts())
    return None if mount is None else Destination(directory, mount.mount_point, mount.kind)


def describe_loss(before: Destination | None, now: Destination | None) -> str:
    """What became of the mount that was there `before`, in words; empty where it is there, or none was."""
    if before is None:
        return ""
    if now is None:
        return f"{before.to} was on {before.kind} on {before.mount_point}; where it is now the mount table does not say"
    if now.mount_point == before.mount_point:
        return ""
    if not before.mount_point.startswith(now.mount_point.rstrip("/") + "/"):
        return ""
    was, here = f"{before.kind} on {before.mount_point}", f"{now.kind} on {now.mount_point}"
    return f"{before.to} was on a mount that is gone ({was}); what is there now is this box's own ({here})"


def read_destination(path: str, to: str) -> Destination | None:
    """The mount that was written down in a file, if that is of `to`; None where it was not written down.

    Raises:
        OSError: it is there and cannot be read, so that nobody can tell whether the mount is the one that was there.
    """
    try:
        found = wire.from_bytes(Destination, files.read_bytes(path), path)
    except FileNotFoundError:
        return None
    except wire.WireError as error:
        raise OSError(errno.EBADMSG, "is damaged", path) from error
    return found if found.to == to else None


def describe_unread(path: str, to: str, error: OSError) -> str:
    """What is told where `read_destination` failed, and what to do."""
    return (
        f"{path} {error.strerror if error.errno == errno.EBADMSG else f'cannot be read ({error.strerror})'}: it says "
        f"on which mount {to} was, so nothing is written there; see that it is mounted (findmnt -T {to}), then remove "
        f"that file"
    )


def write_destination(path: str, seen: Destination) -> None:
    """Write it down.

    Raises:
        OSError: it cannot be written.
    """
    files.commit(path, wire.to_bytes(seen))
