"""Looking at checkpoints without a run: the newest valid one, the proof of one, its content."""

from __future__ import annotations

import os
from typing import Any

from .errors import CannotResume, NoValidCheckpoint
from .restoring import OWN
from .storage import checkpoints, layout

Path = str | os.PathLike[str]


def latest(directory: Path) -> str | None:
    """The path of the newest checkpoint whose every byte proves right; None when there is none. Changes nothing.

    Raises:
        CannotResume: a later holdfast wrote it.
        OSError: the directory cannot be read.
    """
    try:
        entries = checkpoints.list_entries(os.fspath(directory))
    except layout.NewerFormat as error:
        raise CannotResume(str(error), "use the holdfast that wrote it, or a newer one") from None
    return next((entry.path for entry in entries if checkpoints.verify(entry.path).ok), None)


def verify(path: Path) -> checkpoints.Verdict:
    """Read every byte of one checkpoint and compare it with its commit record; `Verdict.ok` and `Verdict.problems`.

    Raises:
        CannotResume: a later holdfast wrote it.
        FileNotFoundError: there is no such directory.
    """
    return checkpoints.verify(os.fspath(path))


def load(path: Path, *, rank: int = 0) -> dict[str, Any]:
    """The saved states of one checkpoint by tracked name, proven while read; without the library's own.

    Arrays come as torch tensors or numpy arrays when these are imported, as they were saved. No code in the file runs.

    Raises:
        NoValidCheckpoint: it does not prove right; the message says where.
        CannotResume: a later holdfast wrote it.
        OSError: it cannot be read.
    """
    try:
        states = checkpoints.load_checkpoint(os.fspath(path), rank).states
    except layout.LayoutError as error:
        raise NoValidCheckpoint(f"{os.fspath(path)} does not prove right: {error}", "take an earlier one") from None
    states.pop(OWN, None)
    return states
