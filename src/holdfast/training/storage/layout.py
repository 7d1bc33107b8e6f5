"""Names and bytes of a checkpoint on disk: pure (docs/training.md, "A checkpoint on disk").

Data files have the safetensors layout: 8 bytes little-endian length of the header, the header (JSON, padded with
spaces), the data without holes. Source: the format's description in its README. The commit record is JSON and ends with
the SHA-256 of the rest of it, so that a record whose bytes changed does not vouch for anything.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

from holdfast.model.record import asdict, field, fields, record

from . import arrays

FORMAT = "holdfast-checkpoint"
VERSION = 1
RECORD = "checkpoint.json"
STATE = "state.json"
LOCK = ".lock"
PAGE = 4096
CHUNK = 16 << 20
"""Bytes under one CRC-32; also what is written at a time."""
MAX_HEADER = 100 << 20
"""What the safetensors library reads at most."""
MAX_CHUNK = 1 << 30
"""A record that asks a reader for larger pieces than this is not ours."""
_BUILDING = re.compile(r"\.step-(0|[1-9][0-9]{0,17})\.[0-9a-f]{4,32}", re.ASCII)
_BAD = re.compile(r"step-(0|[1-9][0-9]{0,17})\.bad-([1-9][0-9]{0,5})", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}", re.ASCII)


class LayoutError(ValueError):
    """Bytes that are no checkpoint of this format; the message says what is wrong with them."""


class NewerFormat(LayoutError):
    """A checkpoint that a later holdfast wrote."""


def building_name(step: int, token: str) -> str:
    """Where the checkpoint is built; all ranks of one launch use the same token."""
    return f".step-{step}.{token}"


def is_building(name: str) -> bool:
    """Whether this is a directory in which a checkpoint was or is being built."""
    return _BUILDING.fullmatch(name) is not None


def bad_name(step: int, taken: set[str]) -> str:
    """Where a checkpoint that failed its proof is kept: the first such name that is free."""
    at = 1
    while f"step-{step}.bad-{at}" in taken:
        at += 1
    return f"step-{step}.bad-{at}"


def is_bad(name: str) -> bool:
    """Whether this directory was set aside."""
    return _BAD.fullmatch(name) is not None


def check_name(name: str) -> str:
    """A name that may be tracked: it becomes a file's.

    Raises:
        ValueError: it has other characters than letters, digits, ``_ . -``, or is too long.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} cannot be tracked under this name; use letters, digits, _ . -")
    return name


def rank_prefix(rank: int) -> str:
    """Where the files of a rank lie in the checkpoint: rank 0 at the top."""
    return "" if rank == 0 else f"rank-{rank}/"


@record
class PlacedArray:
    """One array's place in a data file: `start` and `end` are offsets in bytes from the file's beginning."""

    key: str
    code: str
    shape: tuple[int, ...]
    start: int
    end: int


def place_arrays(described: dict[str, arrays.DescribedArray]) -> tuple[bytes, list[PlacedArray], int]:
    """The header of a data file, the arrays' places in it, and the file's size in bytes.

    Larger elements come first, so that every array is aligned to its elements; data begins on a page.
    """
    order = sorted(described, key=lambda key: (-arrays.SIZES[described[key].code], key))
    head: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at, spans = 0, []
    for key in order:
        what = described[key]
        end = at + what.nbytes
        head[key] = {"dtype": what.code, "shape": list(what.shape), "data_offsets": [at, end]}
        spans.append((key, what, at, end))
        at = end
    text = json.dumps(head, separators=(",", ":")).encode()
    padded = -(-(8 + len(text)) // PAGE) * PAGE - 8
    header = padded.to_bytes(8, "little") + text.ljust(padded)
    base = len(header)
    return header, [PlacedArray(k, w.code, w.shape, base + a, base + b) for k, w, a, b in spans], base + at


def parse_arrays(data: memoryview, where: str, size: int | None = None) -> dict[str, PlacedArray]:
    """The places of all arrays of a data file, whose bytes are `data`; with `size`, that of the file, its beginning.

    Raises:
        LayoutError: the header is not one, or names bytes that are not there.
    """
    size = len(data) if size is None else size
    if len(data) < 8:
        raise LayoutError(f"{where}: {len(data)} bytes are no safetensors file")
    length = int.from_bytes(data[:8], "little")
    if length > min(MAX_HEADER, size - 8):
        raise LayoutError(f"{where}: its header of {length} bytes does not fit into the file")
    try:
        head = json.loads(bytes(data[8 : 8 + length]))
        head.pop("__metadata__", None)
        return {key: _parse_entry(key, entry, 8 + length, size) for key, entry in head.items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise LayoutError(f"{where}: its header is damaged ({error})") from None


def _parse_entry(key: str, entry: dict[str, Any], base: int, size: int) -> PlacedArray:
    code, shape = entry["dtype"], tuple(int(length) for length in entry["shape"])
    start, end = (int(offset) for offset in entry["data_offsets"])
    if code not in arrays.SIZES or min((*shape, start), default=0) < 0:
        raise ValueError(f"{key}: {code} {shape}")
    if end - start != arrays.DescribedArray("", code, shape).nbytes or base + end > size:
        raise ValueError(f"{key}: bytes {start} to {end} of {size - base}")
    return PlacedArray(key, code, shape, base + start, base + end)


@record
class FileEntry:
    """One file of a checkpoint: path in its directory, size, and a CRC-32 for each `chunk` bytes."""

    path: str
    bytes: int
    chunks: tuple[int, ...]
    digest: str = "crc32"
    chunk: int = CHUNK


INTERPRETER = "interpreter"
"""In `versions`: the path of the Python that made it."""


@record
class CommitRecord:
    """The commit record of a checkpoint. `step` is the number of complete steps; times are epoch seconds or seconds.

    `tracked` maps each tracked name to ``{"replicated": bool, "kind": str}``; `healthy` is False when a logged value
    was NaN or infinite since the checkpoint before; `metrics` are the last logged values.
    """

    step: int
    files: tuple[FileEntry, ...]
    created: float
    epoch: int | None = None
    world: int = 1
    run_id: str = ""
    attempt: int | None = None
    reason: str = ""
    metrics: dict[str, Any] = field(default_factory=dict)
    healthy: bool = True
    complete: bool = False
    tracked: dict[str, Any] = field(default_factory=dict)
    seed: int | None = None
    versions: dict[str, str] = field(default_factory=dict)
    save_seconds: float | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""
        return sum(file.bytes for file in self.files)


def record_to_bytes(record: CommitRecord) -> bytes:
    """The file's bytes: one field a line, so that a person can read it."""
    body = {"format": FORMAT, "version": VERSION, **asdict(record)}
    body["sha256"] = hashlib.sha256(_canonical(body)).hexdigest()
    return (json.dumps(body, indent=1) + "\n").encode()


def record_from_bytes(data: bytes, where: str) -> CommitRecord:
    """The record.

    Raises:
        NewerFormat: a later version wrote it.
        LayoutError: it is no record, or its bytes changed.
    """
    try:
        body = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise LayoutError(f"{where} is not JSON ({error})") from None
    if not isinstance(body, dict) or body.get("format") != FORMAT:
        raise LayoutError(f"{where} is no commit record of a checkpoint")
    version = body.get("version")
    if isinstance(version, int) and version > VERSION:
        raise NewerFormat(f"{where} has format version {version}; this holdfast reads up to {VERSION}")
    stated = body.pop("sha256", None)
    if version != VERSION or stated != hashlib.sha256(_canonical(body)).hexdigest():
        raise LayoutError(f"{where} is damaged: its SHA-256 does not fit its content")
    try:
        files = tuple(
            FileEntry(str(f["path"]), int(f["bytes"]), tuple(f["chunks"]), str(f["digest"]), int(f["chunk"]))
            for f in body.pop("files")
        )
        known = {item.name for item in fields(CommitRecord)}
        record = CommitRecord(files=files, **{key: value for key, value in body.items() if key in known})
        wrong = _wrong_field(record)
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise LayoutError(f"{where} lacks what a record has ({error})") from None
    if wrong:
        raise LayoutError(f"{where} has a {wrong!r} that no record has")
    return record


def _wrong_field(record: Any) -> str:  # noqa: ANN401 - its fields may be anything yet
    """The first field that is of another type than a record's (whoever reads relies on them); empty when none is."""
    right = {
        "step": type(record.step) is int and record.step >= 0,
        "world": type(record.world) is int and record.world >= 1,
        "seed": record.seed is None or type(record.seed) is int,
        "metrics": isinstance(record.metrics, dict),
        "tracked": isinstance(record.tracked, dict) and all(isinstance(item, dict) for item in record.tracked.values()),
        "versions": isinstance(record.versions, dict),
        "created": isinstance(record.created, (int, float)),
        "healthy": isinstance(record.healthy, bool),
        "files": all(file.bytes >= 0 and 0 < file.chunk <= MAX_CHUNK for file in record.files),
    }
    return next((name for name, sound in right.items() if not sound), "")


def _canonical(body: dict[str, Any]) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()


OWN = "run"
"""The tracked name of what the library itself keeps: step, epoch, random states, the script's `Run.state`."""
