"""What is in a pickle, as far as it can be judged: arrays and numbers that are finite, and torch's files of before 1.6.

Sources: torch/serialization.py (`_legacy_save`), torch/storage.py (`__reduce__`), numpy's `__reduce__`.
"""

from __future__ import annotations

import io
import os
import struct
from typing import IO

from holdfast.model.record import replace
from holdfast.model.units import format_count

from . import finite, pickles
from .pickles import Pickle, Steps
from .tried import Checked, Damage, Untested, read_pieces

LARGEST_PICKLE = 1 << 30
STORAGES = {"FloatStorage": "F32", "DoubleStorage": "F64", "HalfStorage": "F16", "BFloat16Storage": "BF16"}
WIDTHS = {
    "FloatStorage": 4, "DoubleStorage": 8, "HalfStorage": 2, "BFloat16Storage": 2, "LongStorage": 8, "IntStorage": 4,
    "ShortStorage": 2, "CharStorage": 1, "ByteStorage": 1, "BoolStorage": 1, "UntypedStorage": 1,
    "ComplexFloatStorage": 8, "ComplexDoubleStorage": 16, "QInt8Storage": 1, "QUInt8Storage": 1, "QInt32Storage": 4,
    "QUInt4x2Storage": 1, "QUInt2x4Storage": 1,
}  # fmt: skip
LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
"""The first pickle of a file of torch; version, system, content and keys follow, and then the storages."""
MOST_PICKLES = 1000
DEEPEST = 3
FLOATS = {"f2": "F16", "f4": "F32", "f8": "F64", "c8": "F32", "c16": "F64"}
"""Of numpy's kinds."""


def check_pickle(path: str) -> Checked:
    """Walk a file of one pickle, of several one behind the other, or what torch wrote before it wrote archives.

    Raises:
        Damage, Untested: it cannot be loaded; or nobody here can tell.
        OSError: it cannot be read.
    """
    size, steps = os.stat(path).st_size, Steps()
    with open(path, "rb") as file:
        found = walk_or_refuse(file, size, steps)
        if found.value == LEGACY_MAGIC:
            return judge(join(_walk_legacy(file, size, steps), found))
        for _ in range(MOST_PICKLES):
            if file.tell() >= size:
                return judge(found)
            found = join(found, walk_or_refuse(file, size - file.tell(), steps))
    raise Untested("more than a thousand pickles in one file")


def walk_or_refuse(file: IO[bytes], size: int, steps: Steps, *, depth: int = 0) -> Pickle:
    """Walk a pickle, and those that are in it as bytes; `not_finite` counts what arrays in it hold, too.

    Raises:
        Damage: it is none, or would run code.
        Untested: it is longer than is walked, or of a form that is not known here.
        OSError: it cannot be read.
    """
    if size > LARGEST_PICKLE:
        raise Untested("a pickle that is larger than is walked")
    try:
        found = pickles.walk(file, size, steps)
    except pickles.Unwalked as error:
        raise Untested(str(error)) from error
    except pickles.BadPickle as error:
        raise Damage(str(error)) from error
    if found.dangerous:
        raise Damage(f"to load it would run {', '.join(found.dangerous[:5])}: do not load it")
    found = replace(found, not_finite=found.not_finite + _count_in_arrays(found))
    for raw in _list_nested(found):
        if depth >= DEEPEST or raw.startswith(b"PK"):
            raise Untested(_UNKNOWN)
        inner = io.BytesIO(raw)
        first = walk_or_refuse(inner, len(raw), steps, depth=depth + 1)
        if first.value != LEGACY_MAGIC:
            raise Untested(_UNKNOWN)
        found = join(join(found, first), _walk_legacy(inner, len(raw), steps, depth=depth + 1))
    return found


_UNKNOWN = "has something in it that torch would load, in a form that is not known here"


def _list_nested(found: Pickle) -> list[bytes]:
    """The files of torch that are in it as bytes, each once: it may name one without an end."""
    kept: dict[int, bytes] = {}
    for arguments in found.nested:
        if not isinstance(arguments, tuple) or len(arguments) != 1 or (raw := read_raw(arguments[0])) is None:
            raise Untested(_UNKNOWN)
        kept[id(arguments[0])] = raw
    return list(kept.values())


def join(found: Pickle, more: Pickle) -> Pickle:
    """What is said of both."""
    names = tuple(dict.fromkeys((*found.names, *more.names)))
    return replace(found, names=names, not_finite=found.not_finite + more.not_finite)


def judge(found: Pickle) -> Checked:
    """What a pickle comes to, of which all is there.

    Raises:
        Damage: it holds what no result may.
        Untested: it would run code to be loaded.
    """
    if found.not_finite:
        raise Damage(f"{format_count(found.not_finite, 'value is', 'values are')} NaN or infinite")
    if found.unknown:
        more = f" and {len(found.unknown) - 3} more" if len(found.unknown) > 3 else ""
        raise Untested(f"holds code of {', '.join(found.unknown[:3])}{more}: not loaded")
    return Checked(whole=True)


def read_storage(ident: object) -> tuple[str, str, int]:
    """Kind, key and number of elements of a storage.

    Raises:
        Damage: it is none.
    """
    if isinstance(ident, tuple) and len(ident) >= 5 and ident[0] == "storage" and isinstance(ident[1], pickles.Name):
        count = ident[4]
        if isinstance(count, int) and 0 <= count < 1 << 48 and isinstance(ident[2], (str, int)):
            return ident[1].full.rpartition(".")[2], str(ident[2]), count
    raise Damage("a storage that torch does not write")


def _walk_legacy(file: IO[bytes], size: int, steps: Steps, *, depth: int = 0) -> Pickle:
    """What stands behind the magic number: version, system, content and keys, then each storage with its length."""
    parts = [walk_or_refuse(file, size - file.tell(), steps, depth=depth) for _ in range(4)]
    content, keys = parts[2], parts[3].value
    kinds = {key: (kind, count) for kind, key, count in map(read_storage, content.stored)}
    if not isinstance(keys, list) or not all(isinstance(key, (str, int)) for key in keys):
        raise Damage("it has no list of storages")
    if lacking := kinds.keys() - {str(key) for key in keys}:
        raise Damage(f"the storage {min(lacking):.80} is not in it")
    bad = 0
    for key in keys:
        kind, count = kinds.get(str(key), ("", -1))
        head = file.read(8)
        if len(head) < 8 or kind not in WIDTHS or struct.unpack("<q", head)[0] != count:
            raise Damage("a storage is not as it was announced")
        pieces = read_pieces(file, count * WIDTHS[kind])
        bad += finite.count_not_finite(STORAGES.get(kind, ""), pieces)
        for _ in pieces:
            pass
    for part in (parts[0], parts[1], parts[3]):
        content = join(content, part)
    return replace(content, not_finite=content.not_finite + bad)


def _count_in_arrays(found: Pickle) -> int:
    """How many floats of the numpy arrays and numbers in a pickle are not finite; the same bytes count once."""
    counted: dict[tuple[int, str, bool], int] = {}
    for made in found.made:
        for kind, raw in _list_raw(made):
            code, big = _read_kind(kind)
            where = (id(raw), code, big)
            if code and where not in counted and (data := read_raw(raw)) is not None:
                counted[where] = finite.count_not_finite(code, (data,), big_endian=big)
    return sum(counted.values())


def _list_raw(made: pickles.Made) -> list[tuple[object, object]]:
    """Kind and bytes of what a call of numpy's makes."""
    maker = made.maker.full if isinstance(made.maker, pickles.Name) else ""
    if maker.endswith("multiarray._reconstruct"):
        return [(state[2], state[4]) for state in made.state if isinstance(state, tuple) and len(state) == 5]
    if not isinstance(made.arguments, tuple) or len(made.arguments) < 2:
        return []
    if maker.endswith("numeric._frombuffer"):
        return [(made.arguments[1], made.arguments[0])]
    return [(made.arguments[0], made.arguments[1])] if maker.endswith("multiarray.scalar") else []


def _read_kind(kind: object) -> tuple[str, bool]:
    """The code of numpy's kind of float, empty where it is none; whether its bytes are the other way round."""
    if not isinstance(kind, pickles.Made):
        return "", False
    name = kind.arguments[0] if isinstance(kind.arguments, tuple) and kind.arguments else ""
    big = any(isinstance(state, tuple) and len(state) > 1 and state[1] == ">" for state in kind.state)
    return FLOATS.get(name, "") if isinstance(name, str) else "", big


def read_raw(raw: object) -> bytes | None:
    """The bytes that something of a pickle is, also as protocols without bytes have them; None: it is none."""
    if isinstance(raw, pickles.Made) and isinstance(raw.arguments, tuple) and raw.arguments:
        raw = raw.arguments[0].encode("latin-1", "replace") if isinstance(raw.arguments[0], str) else None
    return bytes(raw) if isinstance(raw, (bytes, bytearray)) else None
