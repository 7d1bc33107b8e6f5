"""What is in a pickle, as far as it can be judged: arrays and numbers that are finite, and torch's files of before 1.6.

Sources: torch/serialization.py (`_legacy_save`), torch/storage.py (`__reduce__`), torch/_tensor.py
(`_reduce_ex_internal`), ATen/native/Resize.h (`checkInBoundsForStorage`), numpy's `__reduce__`.
"""

from __future__ import annotations

import io
import os
import re
import struct
from math import prod
from typing import IO

from holdfast.model.record import replace
from holdfast.model.units import format_count

from . import finite, pickles
from .pickles import Pickle, Steps
from .tried import Checked, Damage, Untested, read_pieces

LARGEST_PICKLE = 1 << 30
STORAGES = {
    "FloatStorage": "F32", "DoubleStorage": "F64", "HalfStorage": "F16", "BFloat16Storage": "BF16",
    "ComplexFloatStorage": "F32", "ComplexDoubleStorage": "F64",
}  # fmt: skip
WIDTHS = {
    "FloatStorage": 4, "DoubleStorage": 8, "HalfStorage": 2, "BFloat16Storage": 2, "LongStorage": 8, "IntStorage": 4,
    "ShortStorage": 2, "CharStorage": 1, "ByteStorage": 1, "BoolStorage": 1, "UntypedStorage": 1,
    "ComplexFloatStorage": 8, "ComplexDoubleStorage": 16, "QInt8Storage": 1, "QUInt8Storage": 1, "QInt32Storage": 4,
    "QUInt4x2Storage": 1, "QUInt2x4Storage": 1,
}  # fmt: skip
_DTYPES = {
    "uint16": ("", 2), "uint32": ("", 4), "uint64": ("", 8), "complex32": ("F16", 4), "float4_e2m1fn_x2": ("", 1),
    "float8_e4m3fn": ("F8_E4M3", 1), "float8_e5m2": ("F8_E5M2", 1), "float8_e8m0fnu": ("F8_E8M0", 1),
    "float8_e4m3fnuz": ("F8_E4M3FNUZ", 1), "float8_e5m2fnuz": ("F8_E5M2FNUZ", 1),
}  # fmt: skip
"""Of torch, whose storages do not say what is in them: the code of the floats, and bytes of an element."""
_TENSORS = frozenset(f"torch._utils._rebuild_{what}" for what in ("tensor", "tensor_v2", "tensor_v3", "qtensor"))
"""What takes a storage, where in it a tensor begins, its shape, and its steps."""
LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
"""The first pickle of a file of torch; version, system, content and keys follow, and then the storages."""
MOST_PICKLES = 1000
DEEPEST = 3
MOST_AXES = 64
"""Of a shape: numpy takes no more (NPY_MAXDIMS), and nobody has more with torch."""
_NO_SHAPE = "a shape that no array has"
FLOATS = {"f2": "F16", "f4": "F32", "f8": "F64", "c8": "F32", "c16": "F64"}
"""Of numpy's kinds."""
_KINDS = re.compile(r"b1|[iu][1248]|f[248]|c8|c16|[Mm]8|[SUa]\d+")
_REFERENCES = frozenset({"O", "O8", "O4"})


def is_known(kind: str) -> bool:
    """Whether numbers of a kind of numpy's (``f4``), texts or times: what can be wrong with them is known here."""
    return _KINDS.fullmatch(kind) is not None


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
    found = _look_into_tensors(_look_into_arrays(found))
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
    return replace(
        found,
        names=names,
        not_finite=found.not_finite + more.not_finite,
        array_bytes=found.array_bytes + more.array_bytes,
        unread=found.unread or more.unread,
    )


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
    if found.unread:
        raise Untested(found.unread)
    return Checked(whole=True, array_bytes=found.array_bytes)


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
        bad += finite.count_not_finite(content.codes.get(str(key), STORAGES.get(kind, "")), pieces)
        for _ in pieces:
            pass
    for part in (parts[0], parts[1], parts[3]):
        content = join(content, part)
    return replace(content, not_finite=content.not_finite + bad)


def _look_into_tensors(found: Pickle) -> Pickle:
    """What tensors say of their storages: each lies in its own; and what is in those that do not say it.

    Raises:
        Damage: a tensor reaches beyond its storage.
    """
    codes, unread = dict[str, str](), found.unread
    for made in found.made:
        arguments = made.arguments if isinstance(made.arguments, tuple) else ()
        if not isinstance(made.maker, pickles.Name) or made.maker.full not in _TENSORS:
            continue
        if len(arguments) < 4 or not isinstance(arguments[0], pickles.Stored):
            continue  # of a storage that is pickled by itself: that was looked into
        kind, key, count = read_storage(arguments[0].ident)
        code, width = "", 1
        if made.maker.full.endswith("_v3"):
            dtype = arguments[6] if len(arguments) > 6 else None
            name = dtype.full.removeprefix("torch.") if isinstance(dtype, pickles.Name) else ""
            if name not in _DTYPES:
                unread = f"a tensor of the kind {name or '?':.40} is not looked into"
                continue
            code, width = _DTYPES[name]
            codes[key] = code
        if _measure(*arguments[1:4]) * width > count and kind not in ("QUInt4x2Storage", "QUInt2x4Storage"):
            raise Damage(f"a tensor reaches beyond its storage {key:.80}")
    size = sum(count * WIDTHS.get(kind, 1) for kind, _, count in set(map(read_storage, found.stored)))
    return replace(found, codes=codes, unread=unread, array_bytes=found.array_bytes + size)


def _measure(begin: object, shape: object, steps: object) -> int:
    """How many elements of its storage a tensor needs.

    Raises:
        Damage: that cannot be told.
    """
    extents, strides, [first] = read_extents(shape), read_extents(steps), read_extents((begin,))
    if len(extents) != len(strides):
        raise Damage(_NO_SHAPE)
    if not all(extents):
        return 0
    return first + 1 + sum((extent - 1) * step for extent, step in zip(extents, strides, strict=True))


def read_extents(values: object) -> tuple[int, ...]:
    """The numbers of a shape.

    Raises:
        Damage: they are none, or more than any library takes.
    """
    if not isinstance(values, (tuple, list)) or len(values) > MOST_AXES:
        raise Damage(_NO_SHAPE)
    if not all(isinstance(value, int) and 0 <= value < 1 << 63 for value in values):
        raise Damage(_NO_SHAPE)
    return tuple(values)


def _look_into_arrays(found: Pickle) -> Pickle:
    """What the numpy arrays and numbers in a pickle hold; the same bytes count once.

    Raises:
        Damage: an array has more bytes than its shape promises, or fewer.
    """
    counted: dict[tuple[int, str, bool], int] = {}
    sizes: dict[int, int] = {}
    unread = found.unread
    for made in found.made:
        for kind, raw, shape in _list_raw(made):
            name, big = _read_kind(kind)
            if name in _REFERENCES:
                continue
            if not is_known(name):
                unread = f"an array of the kind {name or '?':.20} is not looked into"
                continue
            if id(raw) not in sizes and (data := read_raw(raw)) is not None:
                sizes[id(raw)] = len(data)
            if id(raw) not in sizes:
                continue
            if sizes[id(raw)] != prod(read_extents(shape)) * int(name[1:]) * (4 if name[0] == "U" else 1):
                raise Damage(f"an array has {sizes[id(raw)]} bytes, its shape promises others")
            where = (id(raw), FLOATS.get(name, ""), big)
            if where[1] and where not in counted and (data := read_raw(raw)) is not None:
                counted[where] = finite.count_not_finite(where[1], (data,), big_endian=big)
    bad = found.not_finite + sum(counted.values())
    return replace(found, not_finite=bad, array_bytes=found.array_bytes + sum(sizes.values()), unread=unread)


def _list_raw(made: pickles.Made) -> list[tuple[object, object, object]]:
    """Kind, bytes and shape of what a call of numpy's makes."""
    maker = made.maker.full if isinstance(made.maker, pickles.Name) else ""
    if maker.endswith("multiarray._reconstruct"):
        states = (state for state in made.state if isinstance(state, tuple) and len(state) == 5)
        return [(state[2], state[4], state[1]) for state in states]
    if not isinstance(made.arguments, tuple) or len(made.arguments) < 2:
        return []
    if maker.endswith("numeric._frombuffer") and len(made.arguments) > 2:
        shape = made.arguments[2]
        return [(made.arguments[1], made.arguments[0], shape if isinstance(shape, tuple) else (shape,))]
    return [(made.arguments[0], made.arguments[1], ())] if maker.endswith("multiarray.scalar") else []


def _read_kind(kind: object) -> tuple[str, bool]:
    """Numpy's word for the kind of an element, empty where it is none; whether its bytes are the other way round."""
    if not isinstance(kind, pickles.Made):
        return "", False
    name = kind.arguments[0] if isinstance(kind.arguments, tuple) and kind.arguments else ""
    big = any(isinstance(state, tuple) and len(state) > 1 and state[1] == ">" for state in kind.state)
    return name if isinstance(name, str) else "", big


def read_raw(raw: object) -> bytes | None:
    """The bytes that something of a pickle is, also as protocols without bytes have them; None: it is none."""
    if isinstance(raw, pickles.Made) and isinstance(raw.arguments, tuple) and raw.arguments:
        raw = raw.arguments[0].encode("latin-1", "replace") if isinstance(raw.arguments[0], str) else None
    return bytes(raw) if isinstance(raw, (bytes, bytearray)) else None
