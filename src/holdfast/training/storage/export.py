"""One plain file out of a checkpoint: safetensors, or what ``torch.load(weights_only=True)`` opens.

The whole checkpoint is proven first; the file is then built beside its final name, fsynced, and takes that name when it
is complete. Safetensors are copied piece by piece, each proven again as it passes, so memory does not grow with the
checkpoint; a torch file needs torch and the memory of what it holds.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any

from holdfast.host.files.files import name_temporary, remove_quietly, sync_directory
from holdfast.model.record import record
from holdfast.training.errors import CannotResume, NoValidCheckpoint, TrainingError

from . import arrays, checkpoints, layout, survey, verified_read
from .layout import OWN
from .write import files

WITHOUT_TORCH = "a safetensors file has the same arrays and needs no torch: let the name of OUT end in .safetensors"
ENDINGS = {".safetensors": "safetensors", ".pt": "torch", ".pth": "torch", ".bin": "torch", ".ckpt": "torch"}


@record
class ExportedFile:
    """The file that was made: path, format, size in bytes, the tracked names in it, how many arrays."""

    path: str
    format: str
    bytes: int
    names: tuple[str, ...]
    arrays: int


@record
class _Source:
    """A data file of the checkpoint, its header's bytes, and where each of its arrays goes by its key in the output."""

    entry: layout.FileEntry
    header: bytes
    moves: list[tuple[layout.PlacedArray, int]]


def guess_format(path: str) -> str | None:
    """The format that a file name asks for; None when it asks for none."""
    return ENDINGS.get(os.path.splitext(path)[1].lower())


def export(
    path: str,
    out: str,
    *,
    form: str,
    names: Sequence[str] = (),
    rank: int | None = None,
    overwrite: bool = False,
    progress: Callable[[int], None] | None = None,
) -> ExportedFile:
    """Write the tracked `names` (none: all) of the checkpoint at `path` into the one file `out`.

    One name alone keeps its own keys; several get the name in front (``model.0.weight``). `rank` is whose part is
    taken; without it, what differs from rank to rank is refused.

    Raises:
        NoValidCheckpoint: it does not prove right.
        TrainingError: the names, the ranks or the format do not fit; FileExistsError: `out` is there.
        OSError: the file cannot be written.
    """
    item = survey.survey_entry(path)
    if item.kind is survey.EntryKind.NEWER:
        raise CannotResume(item.problem, "use the holdfast that wrote it, or a newer one")
    if item.record is not None:
        _refuse_many(item.record, names, rank)
    if not overwrite and os.path.lexists(out):
        raise FileExistsError(errno.EEXIST, "there is such a file already", out)
    verdict = survey.verify_entry(item, progress)
    if not verdict.ok:
        if verdict.unreadable:
            raise OSError(errno.EIO, verdict.problems[0], path)
        raise NoValidCheckpoint(f"{path} does not prove right: {verdict.problems[0]}", "take an earlier one")
    try:
        write = _export_torch if form == "torch" else _export_arrays
        return write(item, os.path.abspath(out), tuple(names), rank or 0, overwrite=overwrite)
    except layout.LayoutError as error:
        raise NoValidCheckpoint(f"{path} does not prove right: {error}", "take an earlier one") from None


def _refuse_many(record: layout.CommitRecord, names: Sequence[str], rank: int | None) -> None:
    """One file is of one rank, or of what all ranks have."""
    known = {name: what for name, what in record.tracked.items() if isinstance(what, dict)}
    for name in names:
        if name not in known and name != OWN:
            have = ", ".join(sorted(known)) or "nothing"
            raise TrainingError(f"the checkpoint has no {name!r}", f"it has {have}")
    if rank is not None and not 0 <= rank < record.world:
        raise TrainingError(f"the checkpoint has no rank {rank}", f"its ranks are 0 to {record.world - 1}")
    own = sorted(name for name in names or known if not known.get(name, {}).get("replicated"))
    if record.world > 1 and rank is None and own:
        raise TrainingError(
            f"each of the {record.world} ranks saved its own {', '.join(own)}, so that one file cannot hold all of it",
            f"name the rank (0 to {record.world - 1}) whose part is wanted, or what is the same on all of them",
        )


# ------------------------------------------------------------------------------------------------------- safetensors


def _export_arrays(
    item: survey.SurveyEntry, out: str, names: tuple[str, ...], rank: int, *, overwrite: bool
) -> ExportedFile:
    assert item.record is not None
    found = _data_files(item.record, names, rank)
    if not found:
        what = ", ".join(names) or "the checkpoint"
        raise TrainingError(f"{what} has no arrays, and a safetensors file holds nothing else", "export it for torch")
    head, sources, size = _plan(item.path, found, alone=len(names) == 1 or len(found) == 1, record=item.record)
    with _new_file(out, size, overwrite=overwrite) as file:
        file.write(head)
        for source in sources:
            _copy(item.path, source, file.fileno())
    count = sum(len(source.moves) for source in sources)
    return ExportedFile(out, "safetensors", size, tuple(found), count)


def _data_files(record: layout.CommitRecord, names: Sequence[str], rank: int) -> dict[str, layout.FileEntry]:
    """The data file of each tracked name that has one, the rank's own, or rank 0's where all have the same."""
    by_path = {file.path: file for file in record.files}
    found = {}
    for name in names or sorted(record.tracked):
        replicated = bool(record.tracked.get(name, {}).get("replicated"))
        entry = by_path.get(f"{layout.rank_prefix(0 if replicated else rank)}{name}.safetensors")
        if entry is not None:
            found[name] = entry
    return found


def _plan(
    path: str, found: dict[str, layout.FileEntry], *, alone: bool, record: layout.CommitRecord
) -> tuple[bytes, list[_Source], int]:
    """The header of the output, where every array of every source goes, and the output's size."""
    read = {name: survey.read_header(path, entry) for name, entry in found.items()}
    placed = {
        name: layout.parse_arrays(memoryview(head), found[name].path, size) for name, (head, size) in read.items()
    }
    described = {
        key if alone else f"{name}.{key}": arrays.DescribedArray("", place.code, place.shape)
        for name, places in placed.items()
        for key, place in places.items()
    }
    if len(described) != sum(map(len, placed.values())):
        raise TrainingError("two arrays would have the same key in one file", "export one name at a time")
    head, targets, size = layout.place_arrays(described)
    at = {target.key: target.start for target in targets}
    sources = [
        _Source(
            found[name],
            read[name][0],
            sorted(
                ((place, at[key if alone else f"{name}.{key}"]) for key, place in places.items()),
                key=lambda move: move[0].start,
            ),
        )
        for name, places in placed.items()
    ]
    return _add_metadata(head, record), sources, size


def _add_metadata(head: bytes, record: layout.CommitRecord) -> bytes:
    """Say which step it is in the header's metadata, when its padding has room: offsets count from the header's end."""
    text = json.loads(head[8:])
    text["__metadata__"]["holdfast_step"] = str(record.step)
    data = json.dumps(text, separators=(",", ":")).encode()
    return head if len(data) > len(head) - 8 else head[:8] + data.ljust(len(head) - 8)


def _copy(path: str, source: _Source, descriptor: int) -> None:
    """Copy each array to its place, out of pieces that are proven as they come."""
    at, moves, first = 0, source.moves, 0
    buffer = memoryview(bytearray(min(source.entry.chunk, source.entry.bytes)))
    for piece in verified_read.read_pieces(path, source.entry, buffer):
        end = at + len(piece)
        if at < len(source.header) and bytes(piece[: len(source.header) - at]) != source.header[at:end]:
            raise layout.LayoutError(f"{source.entry.path} changed while it was read")
        while first < len(moves) and moves[first][0].end <= at:
            first += 1
        for place, target in moves[first:]:
            if place.start >= end:
                break
            begin = max(place.start, at)
            _pwrite(descriptor, piece[begin - at : max(min(place.end, end) - at, 0)], target + begin - place.start)
        at = end


def _pwrite(descriptor: int, data: memoryview, offset: int) -> None:
    while data:
        written = os.pwrite(descriptor, data, offset)
        data, offset = data[written:], offset + written


# ------------------------------------------------------------------------------------------------------------- torch


def _export_torch(
    item: survey.SurveyEntry, out: str, names: tuple[str, ...], rank: int, *, overwrite: bool
) -> ExportedFile:
    try:
        import torch
    except ImportError as error:
        raise TrainingError(
            f"a torch file needs torch, and this Python has none ({error})",
            WITHOUT_TORCH,
        ) from None
    assert item.record is not None
    loaded = checkpoints.load_checkpoint(item.path, rank, frozenset(names) or None)
    if rank > 0:
        shared = frozenset(name for name, what in item.record.tracked.items() if what.get("replicated"))
        wanted = shared & frozenset(names) if names else shared
        if wanted:
            loaded.states.update(checkpoints.load_checkpoint(item.path, 0, wanted).states)
    states = loaded.states
    own = states.get(OWN)
    if isinstance(own, dict):
        # Random states are for continuing a run, which the checkpoint itself is for.
        states[OWN] = {key: value for key, value in own.items() if key in ("step", "epoch", "state")}
    plain = {name: _to_torch(state, torch) for name, state in states.items()}
    content = plain[names[0]] if len(names) == 1 else plain
    nbytes = sum(file.bytes for file in item.record.files)
    with _new_file(out, nbytes, overwrite=overwrite) as file:
        torch.save(content, file)
        size = file.tell()
    return ExportedFile(out, "torch", size, tuple(states), _count(content, torch))


def _to_torch(value: Any, torch: Any) -> Any:  # noqa: ANN401 - a state, the module
    """The same with tensors and plain values only, which is all that a weights-only load takes.

    Source: torch/_weights_only_unpickler.py, `_get_allowed_globals`: containers, numbers, text, tensors, types.
    """
    if isinstance(value, dict):
        made: Any = type(value)() if type(value).__name__ == "OrderedDict" else {}
        made.update((key, _to_torch(item, torch)) for key, item in value.items())
        if hasattr(value, "_metadata"):
            made._metadata = _to_torch(dict(value._metadata), torch)  # noqa: SLF001 - torch's own place
        return made
    if isinstance(value, (list, range)):
        return [_to_torch(item, torch) for item in value]
    if isinstance(value, tuple):
        return tuple(_to_torch(item, torch) for item in value)
    if isinstance(value, (set, frozenset)):
        return {_to_torch(item, torch) for item in value}
    generator = arrays.capture_generator(value)
    if generator is not None:
        return _to_torch(generator, torch)
    return _to_tensor(value, torch)


def _to_tensor(value: Any, torch: Any) -> Any:  # noqa: ANN401
    library = arrays.library_of(value)
    if library == "python":
        return torch.tensor(list(value), dtype=torch.uint8) if isinstance(value, bytearray) else torch.tensor(value)
    if library in ("numpy", "jax"):
        import numpy as np

        return torch.from_numpy(np.array(value))
    return value.item() if type(value).__module__ == "numpy" and hasattr(value, "item") else value


def _count(value: object, torch: Any) -> int:  # noqa: ANN401
    if isinstance(value, torch.Tensor):
        return 1
    if isinstance(value, dict):
        return sum(_count(item, torch) for item in value.values())
    return sum(_count(item, torch) for item in value) if isinstance(value, (list, tuple)) else 0


# -------------------------------------------------------------------------------------------------------------- file


@contextmanager
def _new_file(out: str, nbytes: int, *, overwrite: bool) -> Iterator[IO[bytes]]:
    """A file that gets its name when the block has ended well, durably; nothing is left of it otherwise.

    Raises:
        FileExistsError: something has that name, and it is not to be overwritten.
    """
    directory, name = os.path.split(out)
    files.check_room(directory, nbytes, 1)
    temporary = name_temporary(os.path.join(directory, name[:200]))
    descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        with open(descriptor, "w+b", buffering=1 << 20) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        _give_name(temporary, out, overwrite=overwrite)
        sync_directory(directory)
    finally:
        remove_quietly(temporary)


def _give_name(temporary: str, out: str, *, overwrite: bool) -> None:
    if overwrite:
        os.rename(temporary, out)
        return
    try:
        os.link(temporary, out, follow_symlinks=False)
    except FileExistsError:
        raise FileExistsError(errno.EEXIST, "there is such a file already", out) from None
    except OSError:
        # No hard links on this file system: there is a moment in which another file of this name would be replaced.
        if os.path.lexists(out):
            raise FileExistsError(errno.EEXIST, "there is such a file already", out) from None
        os.rename(temporary, out)
