"""Arrays in files: numpy's own format, and safetensors.

Sources: NEP 1 "A Simple File Format for NumPy Arrays"; the format's description in the README of safetensors.
"""

from __future__ import annotations

import ast
import json
import os
import re
import struct
from math import prod
from typing import IO, Any

from holdfast.model.units import format_count

from . import finite
from .pickled import FLOATS, is_known, judge, read_extents, walk_or_refuse
from .pickles import Steps
from .tried import Checked, Damage, Untested, read_pieces

LARGEST_HEADER = 100 << 20
LONGEST_LITERAL = 10_000
"""A header of numpy is parsed as Python; numpy itself takes no longer one (`numpy.lib.format`, max_header_size)."""
MAGIC = b"\x93NUMPY"
WIDTHS = {
    "BOOL": 1, "U8": 1, "I8": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2, "I32": 4, "U32": 4, "F32": 4, "I64": 8,
    "U64": 8, "F64": 8, "C64": 8, **dict.fromkeys(finite.EIGHT_BIT, 1),
}  # fmt: skip
_DTYPE = re.compile(r"([<>|=]?)([a-zA-Z]+)([0-9]+)(?:\[.*\])?")


def check_array_file(path: str) -> Checked:
    """Read a file of one numpy array.

    Raises:
        Damage, Untested: it cannot be loaded; or nobody here can tell.
        OSError: it cannot be read.
    """
    with open(path, "rb") as file:
        return check_array(file, os.stat(path).st_size, "", Steps())


def check_array(file: IO[bytes], size: int, name: str, steps: Steps) -> Checked:
    """Read one array of `size` bytes. Raises as `check_array_file`."""
    where = f"{name}: " if name else ""
    start = file.read(8)
    if start[:6] != MAGIC or len(start) < 8:
        raise Damage(f"{where}it does not begin as a numpy array does")
    wide = 4 if start[6] >= 2 else 2
    length = int.from_bytes(file.read(wide), "little")
    begin = 8 + wide + length
    if begin > size:
        raise Damage(f"{where}its header of {length} bytes does not fit into it")
    if length > LONGEST_LITERAL:
        raise Untested(f"{where}its header of {length} bytes is longer than is read")
    try:
        facts = ast.literal_eval(file.read(length).decode("utf-8" if start[6] >= 3 else "latin-1").strip())
        kind, shape = facts["descr"], tuple(int(extent) for extent in facts["shape"])
        width = _measure(kind)
    except Untested as error:
        raise Untested(f"{where}{error}") from error
    except (ValueError, SyntaxError, LookupError, TypeError, MemoryError, RecursionError, OverflowError) as error:
        raise Damage(f"{where}its header cannot be read") from error
    if min(shape, default=0) < 0:
        raise Damage(f"{where}its shape is {shape}")
    try:
        if width is None:
            return judge(walk_or_refuse(file, size - begin, steps))
        return _check_elements(file, kind, begin, size, begin + prod(shape) * width)
    except (Damage, Untested) as error:
        raise type(error)(f"{where}{error}") from error


def _check_elements(file: IO[bytes], kind: object, begin: int, size: int, expected: int) -> Checked:
    if size != expected:
        raise Damage(f"it has {size} bytes, its header promises {expected}")
    match = _DTYPE.fullmatch(kind) if isinstance(kind, str) else None
    name = f"{match[2]}{match[3]}" if match else ""
    code = FLOATS.get(name, "")
    pieces = read_pieces(file, size - begin)
    wrong = finite.count_not_finite(code, pieces, big_endian=match is not None and match[1] == ">")
    for _ in pieces:
        pass
    if wrong:
        raise Damage(f"{format_count(wrong, 'value is', 'values are')} NaN or infinite")
    if match is None:
        raise Untested("as long as its header says; rows of several fields are not looked into")
    if not is_known(name):
        raise Untested(f"as long as its header says; elements of the kind {name:.20} are not looked into")
    return Checked(whole=True, array_bytes=size - begin)


def _measure(kind: object) -> int | None:
    """The bytes of an element; None: it is a reference, and a pickle follows.

    Raises:
        TypeError, ValueError, LookupError: it is no kind.
        Untested: it is one that is not known here.
    """
    if isinstance(kind, str):
        if kind.lstrip("<>|=").startswith(("O", "object")):
            return None
        match = _DTYPE.fullmatch(kind)
        if match is None:
            raise Untested("elements of a kind that is not known here")
        return int(match[3]) * (4 if match[2] == "U" else 1)
    if not isinstance(kind, list):
        raise TypeError("no kind")
    widths = [_measure(part[1]) for part in kind]
    if None in widths:
        return None
    counts = [prod(map(int, part[2] if isinstance(part[2], tuple) else (part[2],))) if part[2:] else 1 for part in kind]
    return sum(width * count for width, count in zip(widths, counts, strict=True) if width is not None)


def check_safetensors(path: str) -> Checked:
    """Read a file of tensors: each name once, all of its bytes used, floats finite. Raises as `check_array_file`."""
    size = os.stat(path).st_size
    with open(path, "rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if len(start) < 8 or length > min(LARGEST_HEADER, size - 8):
            raise Damage(f"its header of {length} bytes does not fit into it")
        tensors = _read_tensors(file.read(length))
        at, bad, names, unknown = 0, 0, [], ""
        for name, code, begin, end, count in tensors:
            if begin != at or end < begin or 8 + length + end > size:
                raise Damage(f"the bytes of {name!r:.80} are not where they should be, or not there")
            if code in WIDTHS and end - begin != count * WIDTHS[code]:
                raise Damage(f"{name!r:.80} has {end - begin} bytes, its shape promises {count * WIDTHS[code]}")
            at, unknown = end, unknown if code in WIDTHS else code
            if not (wrong := _count(file, code, end - begin)):
                continue
            bad += wrong
            names.append(name)
    if 8 + length + at != size:
        raise Damage(f"it has {size} bytes, its header promises {8 + length + at}")
    if bad:
        raise Damage(f"{format_count(bad, 'value is', 'values are')} NaN or infinite, in {', '.join(names[:3])}")
    if unknown:
        raise Untested(f"as long as its header says; elements of the kind {unknown!r:.20} are not looked into")
    return Checked(whole=True, array_bytes=at)


def _count(file: IO[bytes], code: str, size: int) -> int:
    pieces = read_pieces(file, size)
    found = finite.count_not_finite("F32" if code == "C64" else code, pieces)
    for _ in pieces:
        pass
    return found


def _read_tensors(header: bytes) -> list[tuple[str, str, int, int, int]]:
    try:
        found: dict[str, Any] = json.loads(header, object_pairs_hook=_refuse_twice)
        found.pop("__metadata__", None)
        rows = [
            (
                name,
                str(one["dtype"]),
                int(one["data_offsets"][0]),
                int(one["data_offsets"][1]),
                prod(read_extents(one["shape"])),
            )
            for name, one in found.items()
        ]
    except Damage:
        raise
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise Damage(f"its header cannot be read: {error}") from error
    return sorted(rows, key=lambda row: (row[2], row[3]))


def _refuse_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise Damage("a name is there twice in its header")
    return found
