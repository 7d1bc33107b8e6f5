"""Whether a run's directory is the copy of one: `CopyMark`, as `holdfast pull` writes it before any other file."""

from __future__ import annotations

import os

from holdfast.host.files import files
from holdfast.model import wire
from holdfast.model.ids import is_run_id
from holdfast.model.receipt import COPY, CopyMark

MOST_BYTES = 1 << 16


def read_mark(directory: str) -> CopyMark | None:
    """Of which run a directory is the copy; None where it is none. A mark that cannot be read names no place.

    It is a copy all the same: nobody acts on a run because something about it is damaged. A directory that is closed to
    us is for those to name who look into it.
    """
    try:
        data = files.read_bytes(f"{directory}/{COPY}", limit=MOST_BYTES)
        return wire.from_bytes(CopyMark, data, COPY)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None
    except (OSError, wire.WireError):
        return CopyMark("a place that cannot be told", os.path.basename(directory), "a time that cannot be told", True)


def find_copy(directory: str, recorded: object) -> CopyMark | None:
    """As `read_mark`; a copy is also a directory whose record names another run, `recorded`: ``cp -a`` marks nothing.

    Its records name that run's processes, which are not its own. The run itself under another name looks the same.
    """
    mark = read_mark(directory)
    if mark is not None or not isinstance(recorded, str) or recorded == os.path.basename(directory):
        return mark
    if not is_run_id(recorded) or recorded == os.path.basename(os.path.realpath(directory)):
        return None
    return CopyMark("", recorded, "", True)


def is_copy(directory: str) -> bool:
    """Whether a directory is the copy of a run beyond doubt: a file of the mark's name may be anybody's."""
    try:
        wire.from_bytes(CopyMark, files.read_bytes(f"{directory}/{COPY}", limit=MOST_BYTES), COPY)
    except (OSError, wire.WireError):
        return False
    return True


def describe_mark(mark: CopyMark) -> str:
    """In words."""
    if not mark.place:
        return f"copy of {mark.run_id}, or that run under another name"
    return f"copy of {mark.place}, taken at {mark.taken_at}" + (", before it had ended" if mark.live else "")
