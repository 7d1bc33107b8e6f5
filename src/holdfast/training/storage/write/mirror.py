"""A second copy on storage that outlives this machine, proven on the far side (CKPT-06, CKPT-10).

A copy counts only after it was read back and every byte compared: some mounts answer a write, and even an fsync, before
anything has arrived.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.host.files import files
from holdfast.host.files.copies.destination import (
    describe_loss,
    describe_unread,
    look_at,
    read_destination,
    write_destination,
)
from holdfast.host.files.files import sync_directory
from holdfast.model import step_names
from holdfast.training.errors import CannotResume
from holdfast.training.storage import checkpoints, directory_lock, layout, verified_read

from . import files as writing

if TYPE_CHECKING:
    from holdfast.model.results import Destination

LANDING_S = 20.0
"""How long a copy may take to arrive on the far side after everything was answered."""
LANDING_LOOK_S = 0.25
OWNER = ".owner.json"
SEEN = ".mirror.json"
"""Beside the checkpoints: the mount that their mirror was on when it was used last."""
REMEDY = "give each training a mirror of its own"


def claim(mirror: str, directory: str, say: Callable[[str], None]) -> directory_lock.DirectoryLock | None:
    """Lock the mirror for the training in `directory`, and see that it is not the mirror of another one.

    Another training that is still there with checkpoints of its own has its mirror for itself. One whose directory is
    gone is the case that mirrors are for: whoever names the mirror continues it.

    Raises:
        CannotResume: it is the mirror of another training.
        DirectoryBusy: another run writes there.
    """
    path = os.path.join(mirror, OWNER)
    try:
        make_directory(mirror, directory)
        owner = _read_owner(path)
        if (
            owner is not None
            and owner != directory
            and any(step_names.parse_step(name) is not None for name in _list_quietly(owner))
        ):
            raise CannotResume(f"{mirror} is the mirror of the training in {owner}", REMEDY)
        lock = directory_lock.DirectoryLock(mirror, say)
    except OSError as error:
        say(f"the mirror {mirror} cannot be written ({error.strerror or error}): checkpoints have no second copy yet")
        return None
    try:
        files.commit(path, json.dumps({"host": os.uname().nodename, "directory": directory}).encode() + b"\n")
    except OSError as error:
        # A full disk, for one: the lock holds without the name, and room may come.
        say(f"{path} cannot be written ({error.strerror or error}): another training may take the mirror for its own")
    return lock


def _read_owner(path: str) -> str | None:
    """The directory whose mirror it is, when that would be on this box."""
    try:
        content = json.loads(files.read_bytes(path, limit=65536))
        return str(content["directory"]) if content["host"] == os.uname().nodename else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _list_quietly(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []


def copy(path: str, mirror: str, keep: checkpoints.Retention) -> str:
    """Copy the checkpoint at `path` into the directory `mirror`; answers the copy's path.

    The source is proven while it is read, the copy after it was written and dropped from this box's cache.

    Raises:
        LayoutError: the source is not what was written.
        OSError: the copy could not be made, or did not prove right.
    """
    step = step_names.parse_step(os.path.basename(path))
    assert step is not None, path
    make_directory(mirror, os.path.dirname(path))
    final = os.path.join(mirror, step_names.step_name(step))
    entry = checkpoints.read_entry(path, step)
    if entry.record is None:
        raise layout.LayoutError(entry.problem)
    # An earlier run may have left the same step there: only a copy of this very one is one.
    if os.path.isdir(final) and (there := checkpoints.verify(final)).ok and there.record == entry.record:
        return final
    writing.check_room(mirror, entry.record.nbytes, len(entry.record.files) + 2)
    building = os.path.join(
        mirror, layout.building_name(step, f"{os.getpid():08x}{time.monotonic_ns() & 0xFFFFFF:06x}")
    )
    try:
        _copy_files(path, building, entry.record)
        if os.path.lexists(final):
            checkpoints.set_aside(final, step)
        os.rename(building, final)
        sync_directory(mirror)
    except (OSError, layout.LayoutError):
        files.remove_tree(building)
        raise
    prove(final)
    checkpoints.prune(mirror, keep, step)
    return final


_mounts: dict[str, Destination] = {}
"""What `SEEN` says of each mirror: the disk of the checkpoints may fail, and the mirror is for that."""


def make_directory(mirror: str, directory: str) -> None:
    """The mirror itself may be made; what it lies in must be there, on the mount that it was on before.

    A mount that is missing must not be taken for a place on this machine's own disk. `directory` has the checkpoints.

    Raises:
        OSError: it is not there and cannot be made, or its mount is lost, or nobody can tell.
    """
    before, now = _read_mount(mirror, directory), look_at(mirror)
    if words := describe_loss(before, now):
        raise OSError(errno.ENODEV, f"{words}; nothing was written there: mount it again", mirror)
    if not os.path.isdir(mirror):
        os.mkdir(mirror)
    if now is not None and now != before:  # it may have been mounted since
        _mounts[mirror] = now
        with contextlib.suppress(OSError):  # then the next training of it does not know
            write_destination(f"{directory}/{SEEN}", now)


def _read_mount(mirror: str, directory: str) -> Destination | None:
    if mirror not in _mounts:
        path = f"{directory}/{SEEN}"
        try:
            found = read_destination(path, mirror)
        except OSError as error:
            if error.errno != errno.EBADMSG:
                return None  # the disk of the checkpoints fails, which is what the mirror is for
            raise OSError(error.errno, describe_unread(path, mirror, error), mirror) from error
        if found is None:
            return None
        _mounts[mirror] = found
    return _mounts[mirror]


def _copy_files(path: str, building: str, record: layout.CommitRecord) -> None:
    directories = sorted({os.path.dirname(file.path) for file in record.files} | {""})
    for name in directories:
        os.makedirs(os.path.join(building, name), exist_ok=True)
    for file in record.files:
        buffer = memoryview(bytearray(min(file.chunk, file.bytes)))
        target = os.path.join(building, file.path)
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        try:
            for piece in verified_read.read_pieces(path, file, buffer):
                while piece:
                    piece = piece[os.write(descriptor, piece) :]  # noqa: PLW2901 - what is left of it
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    writing.write_durably(os.path.join(building, layout.RECORD), layout.record_to_bytes(record))
    for name in directories:
        sync_directory(os.path.join(building, name))


def prove(final: str, patience_s: float = LANDING_S) -> None:
    """Read the copy from the far side, for some seconds again and again: some mounts answer before anything arrived.

    Raises:
        OSError: it does not prove right in time; it is kept, and nothing counts on it.
    """
    deadline = time.monotonic() + patience_s
    while True:
        problem = _look_at_far_side(final)
        if not problem:
            return
        if time.monotonic() > deadline:
            raise OSError(errno.EIO, f"the copy does not prove right: {problem}", final)
        time.sleep(LANDING_LOOK_S)


def _look_at_far_side(final: str) -> str:
    """What is wrong with a copy, empty when nothing is; what this box still has in its cache is dropped first."""
    for root, _, names in os.walk(final):
        for name in names:
            descriptor = os.open(os.path.join(root, name), os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)
    try:
        verdict = checkpoints.verify(final)
    except FileNotFoundError:
        return "it is not there"
    return "" if verdict.ok else verdict.problems[0]
