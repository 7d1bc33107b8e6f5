"""A directory of checkpoints: which are there, which prove right, which may go.

A checkpoint is trusted after every byte of it was read and compared with its commit record. What proves wrong is set
aside under another name, never deleted; what cannot be read (a stale handle, a disk error) is neither right nor wrong
and keeps its name. Nothing here executes code from a file.
"""

from __future__ import annotations

import errno
import json
import math
import os
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from holdfast.host.files.files import read_bytes, remove_tree, sync_directory
from holdfast.model import step_names
from holdfast.model.record import field, record
from holdfast.training.errors import CannotResume, NoValidCheckpoint

from . import arrays, layout, tree, verified_read

if TYPE_CHECKING:
    from mmap import mmap

RECORD_LIMIT = 64 << 20
REFUSALS = (errno.EACCES, errno.EPERM)


@record
class CheckpointEntry:
    """One checkpoint in a directory as its record describes it; `problem` is set when there is no sound record."""

    path: str
    step: int
    record: layout.CommitRecord | None
    problem: str = ""
    unreadable: bool = False


@record
class CheckpointCheck:
    """What reading every byte showed: right, wrong, or not to be told (`unreadable`)."""

    path: str
    step: int
    problems: tuple[str, ...] = ()
    unreadable: bool = False
    record: layout.CommitRecord | None = None

    @property
    def ok(self) -> bool:
        """Whether it may be loaded."""
        return not self.problems


@record
class Retention:
    """What is kept: the newest `last`, the `best` ones by the `mode` (min, max) of a metric, the last finite one."""

    last: int = 2
    best: int = 0
    metric: str = "loss"
    mode: str = "min"


@record(frozen=False)
class LoadedCheckpoint:
    """A checkpoint in memory, proven right: its record and the states by tracked name."""

    path: str
    record: layout.CommitRecord
    states: dict[str, Any] = field(default_factory=dict)


def list_entries(directory: str) -> list[CheckpointEntry]:
    """Every visible checkpoint, the newest step first; none when the directory does not exist.

    Raises:
        OSError: the directory cannot be read.
    """
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return []
    steps = sorted(((step, name) for name in names if (step := step_names.parse_step(name)) is not None), reverse=True)
    return [read_entry(os.path.join(directory, name), step) for step, name in steps]


def read_entry(path: str, step: int) -> CheckpointEntry:
    """The entry of one checkpoint's directory.

    Raises:
        NewerFormat: a later holdfast wrote it.
    """
    where = os.path.join(path, layout.RECORD)
    try:
        record = layout.record_from_bytes(read_bytes(where, limit=RECORD_LIMIT), where)
    except FileNotFoundError:
        return CheckpointEntry(
            path, step, None, f"{layout.RECORD} is missing: it was not completed, or files were removed"
        )
    except layout.NewerFormat:
        raise
    except layout.LayoutError as error:
        return CheckpointEntry(path, step, None, str(error))
    except OSError as error:
        return CheckpointEntry(path, step, None, f"{layout.RECORD} cannot be read: {error.strerror}", unreadable=True)
    if record.step != step:
        return CheckpointEntry(
            path, step, None, f"{layout.RECORD} is that of step {record.step}: directories were swapped"
        )
    return CheckpointEntry(path, step, record)


def verify(path: str) -> CheckpointCheck:
    """Read every byte of a checkpoint and compare it with the commit record.

    Raises:
        CannotResume: a later holdfast wrote it.
        FileNotFoundError: there is no such directory.
    """
    path = os.path.abspath(path)
    if not os.path.isdir(path):
        raise FileNotFoundError(errno.ENOENT, "there is no checkpoint here", path)
    name = os.path.basename(path)
    step = step_names.parse_step(name)
    entry = _entry_or_refuse(path, -1 if step is None else step)
    if entry.record is None:
        check_there(path)
        return CheckpointCheck(path, entry.step, (entry.problem,), entry.unreadable)
    problems, unreadable = [], False
    for file in entry.record.files:
        try:
            verified_read.verify_file(path, file)
        except layout.LayoutError as error:
            problems.append(str(error))
        except OSError as error:
            unreadable |= not isinstance(error, FileNotFoundError)
            problems.append(_words(file.path, error))
    if problems:
        check_there(path)
    return CheckpointCheck(path, entry.step, tuple(problems), unreadable, entry.record)


def check_there(path: str) -> None:
    """See that what looked wrong while it was read is still there: a run prunes a sound one when a newer is durable.

    Raises:
        FileNotFoundError: it is not.
    """
    if not os.path.isdir(path):
        words = "the checkpoint was removed while it was read: a newer one has replaced it"
        raise FileNotFoundError(errno.ENOENT, words, path)


def _entry_or_refuse(path: str, step: int) -> CheckpointEntry:
    try:
        if step >= 0:
            return read_entry(path, step)
        where = os.path.join(path, layout.RECORD)
        record = layout.record_from_bytes(read_bytes(where, limit=RECORD_LIMIT), where)
        return CheckpointEntry(path, record.step, record)
    except layout.NewerFormat as error:
        raise CannotResume(str(error), "use the holdfast that wrote it, or a newer one") from None
    except FileNotFoundError:
        return CheckpointEntry(path, step, None, f"{layout.RECORD} is missing")
    except layout.LayoutError as error:
        return CheckpointEntry(path, step, None, str(error))
    except OSError as error:
        return CheckpointEntry(path, step, None, _words(layout.RECORD, error), unreadable=True)


def _words(path: str, error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return f"{path} is missing"
    return f"{path} cannot be read: {error.strerror or error}"


def load_checkpoint(path: str, rank: int = 0, only: frozenset[str] | None = None) -> LoadedCheckpoint:
    """The states that a rank saved (or those of them named in `only`), each byte proven while it is read.

    Raises:
        LayoutError: it is wrong.
        OSError: it cannot be read.
        CannotResume: a later holdfast wrote it.
    """
    step = step_names.parse_step(os.path.basename(os.path.abspath(path)))
    entry = _entry_or_refuse(path, -1 if step is None else step)
    if entry.record is None:
        if entry.unreadable:
            raise OSError(errno.EIO, entry.problem, path)
        raise layout.LayoutError(entry.problem)
    loaded = LoadedCheckpoint(path, entry.record)
    prefix = layout.rank_prefix(rank)
    mine = {file.path.removeprefix(prefix): file for file in entry.record.files if _belongs(file.path, prefix)}
    if layout.STATE not in mine:
        raise layout.LayoutError(f"{prefix}{layout.STATE} is not in the record")
    documents = _parse_state(verified_read.read_whole(path, mine.pop(layout.STATE)))
    if only is not None:
        documents = {name: document for name, document in documents.items() if name in only}
        mine = {name: file for name, file in mine.items() if name.removesuffix(".safetensors") in only}
    buffers = {name: verified_read.read_whole(path, file) for name, file in mine.items()}
    for name, document in documents.items():
        loaded.states[name] = _decode(name, document, buffers)
    return loaded


def _belongs(path: str, prefix: str) -> bool:
    return path.startswith(prefix) if prefix else "/" not in path


def _parse_state(data: bytearray | mmap) -> dict[str, Any]:
    try:
        documents = json.loads(bytes(data))
    except (ValueError, RecursionError) as error:
        raise layout.LayoutError(f"{layout.STATE} is not JSON ({error})") from None
    if not isinstance(documents, dict):
        raise layout.LayoutError(f"{layout.STATE} is no object of states")
    return documents


def _decode(name: str, document: Any, buffers: dict[str, bytearray | mmap]) -> object:  # noqa: ANN401 - a JSON value
    data = buffers.get(f"{name}.safetensors", bytearray())
    places = layout.parse_arrays(memoryview(data), f"{name}.safetensors") if data else {}

    def fetch(entry: dict[str, Any]) -> Any:  # noqa: ANN401 - an array
        place = places.get(entry["key"])
        if place is None:
            raise layout.LayoutError(f"{name}.safetensors has no array {entry['key']!r}")
        view = entry.get("view", "")
        what = arrays.DescribedArray(entry["library"], place.code, place.shape, view)
        return arrays.from_buffer(what, data, place.start)

    try:
        return tree.unflatten(document, fetch)
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise layout.LayoutError(f"{layout.STATE}: {name} is damaged ({error})") from None


@record
class CheckpointSearch:
    """The newest checkpoint that proves right (None: there is none at all), and what was passed over on the way."""

    found: LoadedCheckpoint | None
    passed_over: tuple[CheckpointCheck, ...] = ()


def find_newest(directory: str, rank: int = 0, *, aside: bool = False, whole: bool = False) -> CheckpointSearch:
    """Load the newest valid checkpoint, looking from the newest step down.

    With `aside` those that are wrong are renamed to ``step-N.bad-1`` once a valid one is found: while there is none
    they keep their names, so that the next start meets them too and does not begin from scratch. Unreadable ones are
    never renamed. With `whole` every rank's files are proven, not only this rank's.

    Raises:
        NoValidCheckpoint: there are checkpoints, and none proves right.
        CannotResume: a later holdfast wrote the newest, or it may not be read.
        OSError: the directory cannot be read.
    """
    passed: list[CheckpointCheck] = []
    try:
        entries = list_entries(directory)
    except layout.NewerFormat as error:
        raise CannotResume(str(error), "use the holdfast that wrote it, or a newer one") from None
    for entry in entries:
        verdict, loaded = _try_load(entry, rank, whole=whole)
        if loaded is not None:
            for wrong in passed:
                if aside and not wrong.unreadable:
                    set_aside(wrong.path, wrong.step)
            return CheckpointSearch(loaded, tuple(passed))
        assert verdict is not None
        passed.append(verdict)
    if passed:
        lines = "; ".join(f"{os.path.basename(item.path)}: {item.problems[0]}" for item in passed)
        raise NoValidCheckpoint(
            f"none of the {len(passed)} checkpoints in {directory} proves right ({lines})",
            "restore one from a mirror or a backup, or begin in another directory; nothing was started from scratch",
        )
    return CheckpointSearch(None)


def _try_load(
    entry: CheckpointEntry, rank: int, *, whole: bool
) -> tuple[CheckpointCheck | None, LoadedCheckpoint | None]:
    if entry.record is None:
        return CheckpointCheck(entry.path, entry.step, (entry.problem,), entry.unreadable), None
    try:
        if whole and entry.record.world > 1:
            verdict = verify(entry.path)
            if not verdict.ok:
                return verdict, None
        return None, load_checkpoint(entry.path, rank)
    except layout.LayoutError as error:
        return CheckpointCheck(entry.path, entry.step, (str(error),)), None
    except OSError as error:
        if error.errno in REFUSALS:
            raise CannotResume(f"{entry.path} may not be read ({error.strerror})", "run as its owner") from None
        missing = isinstance(error, FileNotFoundError)
        problem = _words(os.path.basename(error.filename or "") or "a file", error)
        return CheckpointCheck(entry.path, entry.step, (problem,), unreadable=not missing), None


def set_aside(path: str, step: int) -> str | None:
    """Rename a wrong checkpoint so that nobody takes it for one; its new path, None when that was not possible."""
    directory = os.path.dirname(os.path.abspath(path))
    try:
        target = os.path.join(directory, layout.bad_name(step, set(os.listdir(directory))))
        os.rename(path, target)
        sync_directory(directory)
    except OSError:
        return None
    return target


def choose_victims(entries: Iterable[CheckpointEntry], keep: Retention) -> list[CheckpointEntry]:
    """The checkpoints that need not be kept, the oldest first (CKPT-07): pure.

    Kept are the newest `last` that have a sound record, the best ones, the last one without NaN, and every one
    without a sound record (it may be evidence, it is no copy of anything).
    """
    sound = sorted((entry for entry in entries if entry.record is not None), key=lambda entry: -entry.step)
    kept = {entry.step for entry in sound[: max(1, keep.last)]}
    finite = [entry.step for entry in sound if entry.record is not None and entry.record.healthy]
    if not kept.intersection(finite):
        kept.update(finite[:1])
    ranked = [(value, entry.step) for entry in sound if (value := _entry_metric(entry, keep.metric)) is not None]
    # A checkpoint carries the value that was logged last: of several with one value the oldest has earned it.
    ranked.sort(key=lambda pair: (-pair[0] if keep.mode == "max" else pair[0], pair[1]))
    firsts: dict[float, int] = {}
    for value, step in ranked:
        firsts.setdefault(value, step)
    kept.update(list(firsts.values())[: keep.best])
    return sorted((entry for entry in sound if entry.step not in kept), key=lambda entry: entry.step)


def _entry_metric(entry: CheckpointEntry, name: str) -> float | None:
    return None if entry.record is None else read_metric(entry.record, name)


def read_metric(record: layout.CommitRecord, name: str) -> float | None:
    """The number that was logged last under a name; None: none was, or it was NaN or infinite."""
    value = record.metrics.get(name)
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except OverflowError:  # a whole number of somebody else's record
        return None
    return number if math.isfinite(number) else None


def newest_proven(directory: str, below: int | None = None) -> int:
    """The step of the newest checkpoint whose every byte proves right, of those before step `below`; -1 for none."""
    for entry in list_entries(directory):
        if entry.record is not None and (below is None or entry.step < below) and verify(entry.path).ok:
            return entry.step
    return -1


def prune(directory: str, keep: Retention, proven: int | None = None, hidden: list[str] | None = None) -> list[str]:
    """Remove what `choose_victims` names; the paths that are gone. Errors leave a checkpoint where it is.

    `proven` is the step of one that is known to be right; without it the newest that proves right is looked for, and
    without any nothing goes. What is newer than it stays and does not count: it could not be read, so it replaces
    nothing. With `hidden` they are only renamed to names that no reader takes for a checkpoint, which it gets, and
    removed by the caller: to free the blocks takes a third of the time of writing them.
    """
    if proven is None:
        proven = newest_proven(directory)
    gone = []
    for entry in choose_victims((entry for entry in list_entries(directory) if entry.step <= proven), keep):
        # Out of sight first: a reader never meets a checkpoint that is half removed.
        aside = os.path.join(directory, layout.building_name(entry.step, f"{time.monotonic_ns() & 0xFFFFFFFFFF:010x}"))
        try:
            os.rename(entry.path, aside)
        except OSError:
            continue
        if hidden is None:
            remove_tree(aside)
        else:
            hidden.append(aside)
        gone.append(entry.path)
    return gone


def remove_leftovers(directory: str) -> list[str]:
    """Remove what killed saves left; only for who holds the directory's lock."""
    gone = []
    for name in os.listdir(directory):
        path = os.path.join(directory, name)
        if layout.is_building(name) and os.path.isdir(path) and not os.path.islink(path):
            remove_tree(path)
            gone.append(path)
    return gone
