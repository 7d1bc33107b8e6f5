"""Looking at checkpoints without a run: the newest valid one, the proof of one, its content."""

from __future__ import annotations

import errno
import os
from typing import Any

from .errors import CannotResume, NoValidCheckpoint
from .storage import checkpoints, layout
from .storage.layout import OWN

Path = str | os.PathLike[str]

MOST_LOOKS = 100
"""So often a directory whose checkpoints come and go is looked through."""


def latest(directory: Path) -> str | None:
    """The path of the newest checkpoint whose every byte proves right; None when there is none. Changes nothing.

    A run may save and prune meanwhile: what is gone when it is read was replaced by a newer one, which is looked for.

    Raises:
        CannotResume: a later holdfast wrote it.
        OSError: the directory cannot be read; or a run replaces its checkpoints faster than they can be read here.
    """
    where = os.fspath(directory)
    for _ in range(MOST_LOOKS):
        before, gone = _changed_at(where), False
        try:
            for entry in checkpoints.list_entries(where):
                try:
                    if checkpoints.verify(entry.path).ok:
                        return entry.path
                except FileNotFoundError:
                    gone = True
        except layout.NewerFormat as error:
            raise CannotResume(str(error), "use the holdfast that wrote it, or a newer one") from None
        if not gone and _changed_at(where) == before:
            return None
    raise OSError(errno.EBUSY, "checkpoints are replaced faster than they can be read; keep more of them", where)


def _changed_at(directory: str) -> int | None:
    """When a name in the directory was last made, changed or removed, in nanoseconds; None without a directory."""
    try:
        return os.stat(directory).st_mtime_ns
    except FileNotFoundError:
        return None


def verify(path: Path) -> checkpoints.CheckpointCheck:
    """Read every byte of one checkpoint and compare it with its commit record: `ok`, and `problems` in words.

    Raises:
        CannotResume: a later holdfast wrote it.
        FileNotFoundError: there is no such directory, or a run pruned it while it was read.
    """
    return checkpoints.verify(os.fspath(path))


def load(path: Path, *, rank: int = 0) -> dict[str, Any]:
    """The saved states of one checkpoint by tracked name, proven while read; without the library's own.

    Arrays come as torch tensors or numpy arrays when these are imported, as they were saved. No code in the file runs.

    Raises:
        NoValidCheckpoint: it does not prove right; the message says where.
        CannotResume: a later holdfast wrote it.
        OSError: it cannot be read. A `FileNotFoundError`: it is not there, or was pruned while it was read.
    """
    try:
        states = checkpoints.load_checkpoint(os.fspath(path), rank).states
    except FileNotFoundError:
        checkpoints.check_there(os.fspath(path))
        raise
    except layout.LayoutError as error:
        checkpoints.check_there(os.fspath(path))
        raise NoValidCheckpoint(f"{os.fspath(path)} does not prove right: {error}", "take an earlier one") from None
    states.pop(OWN, None)
    return states
