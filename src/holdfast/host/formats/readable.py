"""Checks the structure of results in well-known formats, without their libraries (POST-05).

Finds what an interrupted save leaves: a torn end, a header that promises more bytes than there are. It does not judge
the values inside. A format that is not known here is not judged.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Callable

LARGEST_PARSED_BYTES = 64 * 1024**2
LARGEST_HEADER_BYTES = 100 * 1024**2
"""Source: safetensors format, "Format": the header is at most 100 MB."""


def find_damage(path: str) -> str | None:
    """What is wrong with the file's structure, in words; None when nothing is, or its format is not known here.

    Raises:
        OSError: it cannot be read.
    """
    check = _CHECKS.get(os.path.splitext(path)[1].lower())
    return None if check is None else check(path, os.stat(path).st_size)


def _check_json(path: str, size: int) -> str | None:
    if size > LARGEST_PARSED_BYTES:
        return None
    with open(path, "rb") as file:
        data = file.read()
    try:
        json.loads(data)
    except (ValueError, RecursionError) as error:
        return f"is not valid JSON: {error}"
    return None


def _check_json_lines(path: str, size: int) -> str | None:
    """The last complete line parses; a torn last line is damage."""
    with open(path, "rb") as file:
        file.seek(max(0, size - 1024**2))
        data = file.read()
    if not data.endswith(b"\n"):
        return "its last line has no end: the write was cut off"
    last = data[:-1].rpartition(b"\n")[2]
    try:
        json.loads(last)
    except (ValueError, RecursionError) as error:
        return f"its last line is not valid JSON: {error}"
    return None


def _check_zip(path: str, size: int) -> str | None:
    import zipfile

    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError, struct.error) as error:
        return f"is not a whole zip archive: {error}"
    if not entries:
        return "is an empty archive"
    past = [entry for entry in entries if entry.header_offset + entry.compress_size > size]
    return f"member {past[0].filename} lies beyond its end" if past else None


def _check_torch(path: str, size: int) -> str | None:
    """A zip since torch 1.6; before that, and for plain pickles, a pickle. Source: torch.save documentation."""
    with open(path, "rb") as file:
        head = file.read(4)
    return _check_zip(path, size) if head == b"PK\x03\x04" else _check_pickle(path, size)


def _check_pickle(path: str, size: int) -> str | None:
    """A pickle stream ends in STOP, a full stop; nothing is unpickled. Source: Python docs, pickletools."""
    with open(path, "rb") as file:
        file.seek(max(0, size - 1))
        last = file.read(1)
    return None if last == b"." or not _is_pure_pickle(path) else "ends before the end of its pickle"


def _is_pure_pickle(path: str) -> bool:
    """Legacy torch files append raw data behind the pickle: only .pkl and .pickle promise the STOP at the end."""
    return path.lower().endswith((".pkl", ".pickle"))


def _check_numpy(path: str, size: int) -> str | None:
    """Header and size agree. Source: NEP 1, "A Simple File Format for NumPy Arrays"."""
    import ast

    with open(path, "rb") as file:
        start = file.read(12)
        if start[:6] != b"\x93NUMPY" or len(start) < 12:
            return "does not begin like a NumPy array"
        wide = start[6] >= 2
        length = struct.unpack("<I", start[8:12])[0] if wide else struct.unpack("<H", start[8:10])[0]
        begin = 12 if wide else 10
        if length > LARGEST_HEADER_BYTES:
            return "has an impossible header"
        file.seek(begin)
        header = file.read(length)
    try:
        facts = ast.literal_eval(header.decode("latin-1").strip())
        kind, shape = str(facts["descr"]), facts["shape"]
        items = 1
        for extent in shape:
            items *= int(extent)
    except (ValueError, SyntaxError, KeyError, TypeError):
        return "has an unreadable header"
    digits = kind.lstrip("<>|=").lstrip("bifucmM").partition("[")[0]
    if kind[:1] not in "<>|=" or not digits.isdigit():
        return None
    expected = begin + length + items * int(digits)
    return None if size >= expected else f"has {size} bytes, its header promises {expected}"


def _check_safetensors(path: str, size: int) -> str | None:
    """Eight bytes of length, a JSON header, then exactly the tensors. Source: safetensors format."""
    with open(path, "rb") as file:
        start = file.read(8)
        if len(start) < 8:
            return "is shorter than its own header"
        length = struct.unpack("<Q", start)[0]
        if length > min(LARGEST_HEADER_BYTES, size - 8):
            return f"its header of {length} bytes does not fit into the file"
        header = file.read(length)
    try:
        tensors = json.loads(header)
        ends = [entry["data_offsets"][1] for name, entry in tensors.items() if name != "__metadata__"]
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        return f"has an unreadable header: {error}"
    expected = 8 + length + max(ends, default=0)
    return None if size == expected else f"has {size} bytes, its header promises {expected}"


def _check_gzip(path: str, size: int) -> str | None:
    """It can be unpacked to its end, which carries a checksum. Large ones are only looked at at their beginning."""
    import gzip

    try:
        with gzip.open(path) as file:
            total = 0
            while (chunk := file.read(1 << 20)) and size <= LARGEST_PARSED_BYTES:
                total += len(chunk)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        return f"cannot be unpacked: {error}"
    return None


_CHECKS: dict[str, Callable[[str, int], str | None]] = {
    ".json": _check_json,
    ".jsonl": _check_json_lines,
    ".ndjson": _check_json_lines,
    ".zip": _check_zip,
    ".npz": _check_zip,
    ".whl": _check_zip,
    ".pt": _check_torch,
    ".pth": _check_torch,
    ".ckpt": _check_torch,
    ".bin": _check_torch,
    ".pkl": _check_pickle,
    ".pickle": _check_pickle,
    ".npy": _check_numpy,
    ".safetensors": _check_safetensors,
    ".gz": _check_gzip,
}
