"""Looking at a directory of checkpoints from outside, for people: what everything in it is. Changes nothing.

`checkpoints` asks what may be loaded; here nothing is passed over. A directory may belong to somebody else, so what
stands in it is data: links are not followed, what is no regular file is not opened, numbers are bounded.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Callable
from enum import Enum
from math import prod
from types import NoneType
from typing import Any

from holdfast.host.files import files
from holdfast.model import step_names
from holdfast.model.record import field, record
from holdfast.training.errors import CannotResume

from . import arrays, checkpoints, layout, verified_read

MOST_FOREIGN = 1000
"""Names that are not ours are counted beyond this, not kept."""


class EntryKind(str, Enum):
    """What an entry of a directory is. `COMPLETE`: a sound record and files of the right size; no byte was compared."""

    COMPLETE = "complete"
    DAMAGED = "damaged"
    UNREADABLE = "unreadable"
    NEWER = "newer"
    SET_ASIDE = "set_aside"
    BUILDING = "building"
    LEFT_OVER = "left_over"


@record
class SurveyEntry:
    """One entry: its path, what it is, the step of its name, its record (None without a sound one), what is wrong."""

    path: str
    kind: EntryKind
    step: int
    record: layout.CommitRecord | None = None
    problem: str = ""

    @property
    def name(self) -> str:
        """The directory's name."""
        return os.path.basename(self.path)


@record
class DirectorySurvey:
    """A directory: its entries, the newest step first; names that are not ours; whether a run writes there now.

    `writing` is None when that cannot be told.
    """

    directory: str
    items: tuple[SurveyEntry, ...] = ()
    foreign: tuple[str, ...] = ()
    writing: bool | None = False

    @property
    def visible(self) -> tuple[SurveyEntry, ...]:
        """The entries that a resume looks at."""
        aside = (EntryKind.SET_ASIDE, EntryKind.BUILDING, EntryKind.LEFT_OVER)
        return tuple(item for item in self.items if item.kind not in aside)


@record
class ArrayInfo:
    """One array as its file's header describes it."""

    key: str
    code: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of its data."""
        return prod(self.shape) * arrays.SIZES[self.code]


@record(frozen=False)
class Content:
    """What one rank's part of a checkpoint holds, from headers and ``state.json``; `documents` is not decoded."""

    arrays: dict[str, list[ArrayInfo]] = field(default_factory=dict)
    documents: dict[str, Any] = field(default_factory=dict)


def survey_directory(directory: str) -> DirectorySurvey:
    """Everything in a directory of checkpoints.

    Raises:
        OSError: it cannot be read.
    """
    directory = os.path.abspath(directory)
    names = sorted(os.listdir(directory))
    writing = is_written(directory)
    items, foreign = [], []
    for name in names:
        path = os.path.join(directory, name)
        step = _step_of(name)
        if step is None or not os.path.isdir(path):
            if name != layout.LOCK:
                foreign.append(name)
        elif layout.is_building(name):
            items.append(SurveyEntry(path, EntryKind.LEFT_OVER if writing is False else EntryKind.BUILDING, step))
        elif layout.is_bad(name):
            items.append(SurveyEntry(path, EntryKind.SET_ASIDE, step, problem="it failed its proof"))
        else:
            items.append(survey_entry(path))
    items.sort(key=lambda item: (-item.step, item.name))
    return DirectorySurvey(directory, tuple(items), tuple(foreign[:MOST_FOREIGN]), writing)


def _step_of(name: str) -> int | None:
    step = step_names.parse_step(name)
    if step is None and (layout.is_building(name) or layout.is_bad(name)):
        step = int(name.lstrip(".").removeprefix("step-").partition(".")[0])
    return step


def survey_entry(path: str) -> SurveyEntry:
    """One checkpoint's directory by its record and the sizes of its files.

    A name other than ``step-N`` (a copy, one that was set aside) is looked at too; its step is then the record's.
    """
    path = os.path.abspath(path)
    named = step_names.parse_step(os.path.basename(path))
    where = os.path.join(path, layout.RECORD)
    try:
        record = layout.record_from_bytes(files.read_bytes(where, limit=checkpoints.RECORD_LIMIT), where)
    except FileNotFoundError:
        problem = f"{layout.RECORD} is missing: it was not completed, or files were removed"
        return SurveyEntry(path, EntryKind.DAMAGED, -1 if named is None else named, problem=problem)
    except layout.LayoutError as error:
        kind = EntryKind.NEWER if isinstance(error, layout.NewerFormat) else EntryKind.DAMAGED
        return SurveyEntry(path, kind, -1 if named is None else named, problem=str(error))
    except OSError as error:
        problem = f"{layout.RECORD} cannot be read: {error.strerror}"
        return SurveyEntry(path, EntryKind.UNREADABLE, -1 if named is None else named, problem=problem)
    if not _is_well_formed(record):
        problem = f"{layout.RECORD} has values that no holdfast writes"
        return SurveyEntry(path, EntryKind.DAMAGED, -1 if named is None else named, problem=problem)
    if named is not None and record.step != named:
        problem = f"{layout.RECORD} is that of step {record.step}: directories were swapped"
        return SurveyEntry(path, EntryKind.DAMAGED, named, problem=problem)
    kind, problem = _compare_sizes(path, record)
    return SurveyEntry(path, kind, record.step, record, problem)


def _is_well_formed(record: layout.CommitRecord) -> bool:
    """Whether the values have the types that they are declared with: its SHA-256 only says that nothing changed."""
    expected: dict[str, tuple[type, ...]] = {
        "step": (int,), "created": (int, float), "epoch": (int, NoneType), "world": (int,), "run_id": (str,),
        "attempt": (int, NoneType), "reason": (str,), "metrics": (dict,), "healthy": (bool,), "complete": (bool,),
        "tracked": (dict,), "seed": (int, NoneType), "versions": (dict,), "save_seconds": (int, float, NoneType),
    }  # fmt: skip
    typed = all(isinstance(getattr(record, name), kinds) for name, kinds in expected.items())
    return (
        typed and record.step >= 0 and record.world >= 1 and all(isinstance(w, dict) for w in record.tracked.values())
    )


def _compare_sizes(path: str, record: layout.CommitRecord) -> tuple[EntryKind, str]:
    for file in record.files:
        if not is_sensible(file):
            return EntryKind.DAMAGED, f"{file.path}: its entry in {layout.RECORD} makes no sense"
        try:
            facts = os.lstat(os.path.join(path, file.path))
        except FileNotFoundError:
            return EntryKind.DAMAGED, f"{file.path} is missing"
        except OSError as error:
            return EntryKind.UNREADABLE, f"{file.path} cannot be read: {error.strerror}"
        if not stat.S_ISREG(facts.st_mode):
            return EntryKind.DAMAGED, f"{file.path} is not a regular file"
        if facts.st_size != file.bytes:
            return EntryKind.DAMAGED, f"{file.path} has {facts.st_size} bytes, {file.bytes} were written"
    return EntryKind.COMPLETE, ""


def is_sensible(file: layout.FileEntry) -> bool:
    """Whether a file's entry can be one that was written: a record of somebody else's must not make a reader fail."""
    parts = file.path.split("/")
    own = len(parts) <= 2 and all(part and not part.startswith(".") and "\0" not in part for part in parts)
    return own and file.bytes >= 0 and 0 < file.chunk <= 1 << 30 and len(file.chunks) == -(-file.bytes // file.chunk)


def is_written(directory: str) -> bool | None:
    """Whether a process holds the directory's lock now; None when that cannot be told, which is no leave to delete."""
    return files.is_locked(os.path.join(directory, layout.LOCK))


def verify_entry(item: SurveyEntry, progress: Callable[[int], None] | None = None) -> checkpoints.CheckpointCheck:
    """Read every byte of what `survey_entry` found and compare it with the record.

    `progress` hears of bytes that were read.
    """
    if item.record is None:
        unreadable = item.kind in (EntryKind.UNREADABLE, EntryKind.NEWER)
        return checkpoints.CheckpointCheck(
            item.path, item.step, (item.problem or "it has no sound record",), unreadable
        )
    problems, unreadable = [], False
    for file in item.record.files:
        try:
            if not is_sensible(file):
                raise layout.LayoutError(f"{file.path}: its entry in {layout.RECORD} makes no sense")
            _require_regular(item.path, file.path)
            for piece in verified_read.read_pieces(item.path, file, memoryview(bytearray(min(file.chunk, file.bytes)))):
                if progress is not None:
                    progress(len(piece))
        except layout.LayoutError as error:
            problems.append(str(error))
        except FileNotFoundError:
            problems.append(f"{file.path} is missing")
        except OSError as error:
            unreadable = True
            problems.append(f"{file.path} cannot be read: {error.strerror or error}")
    return checkpoints.CheckpointCheck(item.path, item.step, tuple(problems), unreadable, item.record)


def _require_regular(path: str, name: str) -> None:
    mode = os.lstat(os.path.join(path, name)).st_mode
    if stat.S_ISLNK(mode) or not stat.S_ISREG(mode):
        raise layout.LayoutError(f"{name} is not a regular file")


def read_content(item: SurveyEntry, rank: int = 0) -> Content:
    """What a rank's part holds: headers of the data files and the documents of ``state.json``; no array is read.

    Raises:
        LayoutError: it is damaged.
        CannotResume: there is no such rank.
        OSError: it cannot be read.
    """
    record = item.record
    if record is None:
        raise layout.LayoutError(item.problem or "it has no sound record")
    if not 0 <= rank < record.world:
        raise CannotResume(
            f"{item.path} has no rank {rank}", f"it was made by {record.world} ranks: 0 to {record.world - 1}"
        )
    prefix, content = layout.rank_prefix(rank), Content()
    for file in record.files:
        name = file.path.removeprefix(prefix)
        if not file.path.startswith(prefix) or "/" in name:
            continue
        if name == layout.STATE:
            content.documents = read_documents(item, rank)
        elif name.endswith(".safetensors"):
            content.arrays[name.removesuffix(".safetensors")] = _read_header(item.path, file)
    return content


def read_documents(item: SurveyEntry, rank: int = 0) -> dict[str, Any]:
    """The documents of a rank's ``state.json`` by tracked name, not decoded.

    Raises:
        LayoutError: it is damaged, or not there.
        OSError: it cannot be read.
    """
    path = f"{layout.rank_prefix(rank)}{layout.STATE}"
    if item.record is None or all(file.path != path for file in item.record.files):
        raise layout.LayoutError(f"{path} is not in the record")
    _require_regular(item.path, path)
    data = files.read_bytes(os.path.join(item.path, path), limit=1 << 30)
    try:
        documents = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise layout.LayoutError(f"{path} is not JSON ({error})") from None
    if not isinstance(documents, dict):
        raise layout.LayoutError(f"{path} does not hold states")
    return documents


def _read_header(path: str, file: layout.FileEntry) -> list[ArrayInfo]:
    head, size = read_header(path, file)
    places = layout.parse_arrays(memoryview(head), file.path, size)
    return [
        ArrayInfo(place.key, place.code, place.shape) for place in sorted(places.values(), key=lambda place: place.key)
    ]


def read_header(path: str, file: layout.FileEntry) -> tuple[bytes, int]:
    """The first bytes of a data file, its length word and its header, and the file's size in bytes.

    Raises:
        LayoutError: there is no header.
        OSError: it cannot be read.
    """
    _require_regular(path, file.path)
    descriptor = os.open(os.path.join(path, file.path), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        size = os.fstat(descriptor).st_size
        length = int.from_bytes(os.pread(descriptor, 8, 0), "little")
        if size < 8 or length > min(layout.MAX_HEADER, size - 8):
            raise layout.LayoutError(f"{file.path}: its header of {length} bytes does not fit into the file")
        data = b""
        while len(data) < 8 + length:
            piece = os.pread(descriptor, 8 + length - len(data), len(data))
            if not piece:
                raise OSError(errno.EIO, "it ended while it was read", file.path)
            data += piece
    finally:
        os.close(descriptor)
    return data, size
