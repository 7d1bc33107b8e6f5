"""A training state as a JSON document and named arrays, and back: pure, without pickle (CKPT-11, B-74).

A state is what `state_dict()` answers: dictionaries, lists, tuples, numbers, strings, arrays, random generators. Plain
JSON values stand for themselves; everything else is an object with the key ``$`` that names its kind. Arrays leave the
document: in their place stands ``{"$": "array", "key": KEY}``, and KEY names them in a safetensors file. Keys are the
dotted path, so the weights of a model have the names of its own `state_dict`.
"""

from __future__ import annotations

import math
import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.training.errors import CannotSave

from . import arrays

Array = Any
Document = Any

KIND = "$"
METADATA = "__metadata__"
"""The one key of a safetensors header that is no array's."""
LONGEST_INT_BITS = 10_000
"""Longer numbers are written in base 16: Python reads at most 4,300 decimal digits."""
MAX_DEPTH = 200
PLAIN_REMEDY = "keep it out of what is tracked, or give its owner state_dict() and load_state_dict() of plain values"


def flatten(state: object, name: str) -> tuple[Document, dict[str, Array]]:
    """The document of `state`, which is tracked as `name`, and its arrays by their keys in the document's order.

    Raises:
        CannotSave: a value has no plain form; the error names its place.
    """
    document, found, _ = flatten_described(state, name)
    return document, found


def flatten_described(state: object, name: str) -> tuple[Document, dict[str, Array], dict[str, arrays.DescribedArray]]:
    """As `flatten`, with what each array is stored as, which the walk finds out anyway."""
    walk = _Flattening(name)
    return walk.encode(state, (), 0), walk.arrays, walk.described


def unflatten(document: Document, fetch: Callable[[dict[str, Any]], Array]) -> object:
    """The state of a document; `fetch` answers the array that an ``array`` entry names.

    Raises:
        ValueError: the document is not one that `flatten` writes.
    """
    if isinstance(document, list):
        return [unflatten(item, fetch) for item in document]
    if not isinstance(document, dict):
        return document
    kind = document.get(KIND)
    if kind is None:
        return {key: unflatten(value, fetch) for key, value in document.items()}
    if kind == "array":
        return fetch(document)
    decode = _DECODERS.get(kind)
    if decode is None:
        raise ValueError(f"the state contains a {kind!r}, which this version of holdfast does not know")
    return decode(document, fetch)


class _Flattening:
    """One walk over a state."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.arrays: dict[str, Array] = {}
        self.described: dict[str, arrays.DescribedArray] = {}
        self._inside: set[int] = set()
        self._numpy = sys.modules.get("numpy")

    def encode(self, value: object, path: tuple[str, ...], depth: int) -> Document:
        kind = type(value)
        if value is None or kind is bool or kind is str:
            return value
        if kind is int:
            return _encode_int(value)  # type: ignore[arg-type]  # its exact type was just asked for
        if kind is float:
            return _encode_float(value)  # type: ignore[arg-type]  # its exact type was just asked for
        if kind is dict or kind is list or kind is tuple:
            return self._encode_container(value, path, depth)
        # Most of a large state: asked first, and for less than `library_of` asks.
        what = arrays.describe_alike(value)
        if what is not None or arrays.library_of(value) is not None:
            return self._encode_array(value, path, what)
        if isinstance(value, (dict, list, tuple, set, frozenset)):
            return self._encode_container(value, path, depth)
        return self._encode_other(value, path)

    def _encode_array(self, value: Array, path: tuple[str, ...], what: arrays.DescribedArray | None) -> Document:
        what = what or arrays.describe_array(value, self._place(path))
        # Half of a surrogate pair is no text in UTF-8, which other readers of the file insist on.
        wanted = ".".join(path) or self.name
        key = wanted = wanted if wanted.isascii() else wanted.encode(errors="backslashreplace").decode()
        again = 1
        while key in self.arrays or key == METADATA:
            again += 1
            key = f"{wanted}#{again}"
        self.arrays[key], self.described[key] = value, what
        entry = {KIND: "array", "key": key, "library": what.library}
        if what.view:
            entry["view"] = what.view
        return entry

    def _encode_container(self, value: Any, path: tuple[str, ...], depth: int) -> Document:  # noqa: ANN401 - a container
        if depth >= MAX_DEPTH:
            raise CannotSave(self._place(path), f"it is nested more than {MAX_DEPTH} levels deep", PLAIN_REMEDY)
        if id(value) in self._inside:
            raise CannotSave(self._place(path), "it contains itself", PLAIN_REMEDY)
        self._inside.add(id(value))
        try:
            if isinstance(value, dict):
                return self._encode_dict(value, path, depth)
            items = sorted(value, key=repr) if isinstance(value, (set, frozenset)) else value
            encoded = [self.encode(item, (*path, str(at)), depth + 1) for at, item in enumerate(items)]
        finally:
            self._inside.discard(id(value))
        if isinstance(value, list):
            return encoded
        if isinstance(value, tuple):
            fields = getattr(value, "_fields", None)
            named = {} if fields is None else {"type": type(value).__name__, "fields": list(fields)}
            return {KIND: "tuple", "items": encoded, **named}
        return {KIND: "set" if isinstance(value, set) else "frozenset", "items": encoded}

    def _encode_dict(self, value: dict[Any, Any], path: tuple[str, ...], depth: int) -> Document:
        metadata = getattr(value, "_metadata", None)
        items = list(value.items())  # another thread may add to it meanwhile
        if KIND not in value and all(type(key) is str for key, _ in items):
            encoded = {key: self.encode(item, (*path, key), depth + 1) for key, item in items}
            if metadata is None:
                return encoded
            # torch keeps the versions of a module's formats in an attribute of its state_dict.
            return {KIND: "state_dict", "items": encoded, "metadata": self.encode(dict(metadata), path, depth + 1)}
        pairs = []
        for key, item in items:
            if isinstance(key, (list, dict)) or arrays.library_of(key) is not None:
                raise CannotSave(
                    self._place(path), f"a key of type {type(key).__name__}", "use strings or numbers as keys"
                )
            pairs.append([self.encode(key, path, depth + 1), self.encode(item, (*path, str(key)), depth + 1)])
        return {KIND: "dict", "items": pairs}

    def _encode_other(self, value: Any, path: tuple[str, ...]) -> Document:  # noqa: ANN401 - whatever it is
        numpy = self._numpy
        if numpy is not None and isinstance(value, numpy.generic) and value.dtype.kind in "biufc":
            plain = value.item()
            if isinstance(plain, numpy.generic):
                raise CannotSave(self._place(path), f"a number of type {value.dtype}", "convert it to float64")
            return {KIND: "numpy.scalar", "dtype": value.dtype.name, "value": self.encode(plain, path, 0)}
        if isinstance(value, bytes):
            return {KIND: "bytes", "value": value.hex()}
        if isinstance(value, complex):
            return {KIND: "complex", "value": [_encode_float(value.real), _encode_float(value.imag)]}
        if isinstance(value, range):
            return {KIND: "range", "value": [value.start, value.stop, value.step]}
        if callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None)):
            return self._encode_owner(value, path)
        generator = arrays.capture_generator(value)
        if generator is not None:
            return {KIND: "generator", **{key: self.encode(item, path, 0) for key, item in generator.items()}}
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(value, (torch.dtype, torch.device)):
            return {KIND: f"torch.{type(value).__name__}", "value": str(value).removeprefix("torch.")}
        # A number or a string of a subclass (bool and the like were taken above): its value is what counts.
        if isinstance(value, (int, float, str)) and not hasattr(value, "__dict__"):
            return self.encode(next(base for base in (int, float, str) if isinstance(value, base))(value), path, 0)
        raise CannotSave(self._place(path), _describe_other(value), PLAIN_REMEDY)

    def _encode_owner(self, value: Any, path: tuple[str, ...]) -> Document:  # noqa: ANN401 - it has a state_dict()
        if id(value) in self._inside:
            raise CannotSave(self._place(path), "its state_dict() contains itself", PLAIN_REMEDY)
        self._inside.add(id(value))
        try:
            return self.encode(value.state_dict(), path, len(path))
        finally:
            self._inside.discard(id(value))

    def _place(self, path: tuple[str, ...]) -> str:
        return ".".join((self.name, *path))


def _describe_other(value: object) -> str:
    """Its type, and what it says of itself; its own ``repr`` may fail."""
    kind = _article(type(value).__qualname__)
    try:
        return f"{kind} ({value!r:.60})"
    except Exception:  # noqa: BLE001 - code of the script's
        return kind


def _article(noun: str) -> str:
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"


def _encode_float(value: float) -> Document:
    if math.isfinite(value):
        return value
    # repr says nan for both signs. What else a NaN's bits hold is not kept.
    sign = "-" if math.isnan(value) and math.copysign(1, value) < 0 else ""
    return {KIND: "float", "value": f"{sign}{value!r}"}


def _encode_int(value: int) -> Document:
    return value if value.bit_length() <= LONGEST_INT_BITS else {KIND: "int", "value": hex(value)}


def _decode_items(document: dict[str, Any], fetch: Callable[[dict[str, Any]], Array]) -> list[Any]:
    return [unflatten(item, fetch) for item in document["items"]]


def _decode_dict(document: dict[str, Any], fetch: Callable[[dict[str, Any]], Array]) -> dict[Any, Any]:
    return {unflatten(key, fetch): unflatten(value, fetch) for key, value in document["items"]}


def _decode_state_dict(document: dict[str, Any], fetch: Callable[[dict[str, Any]], Array]) -> Mapping[str, Any]:
    state = OrderedDict((key, unflatten(value, fetch)) for key, value in document["items"].items())
    state._metadata = unflatten(document["metadata"], fetch)  # type: ignore[attr-defined]  # noqa: SLF001 - torch's own place
    return state


def _decode_scalar(document: dict[str, Any], fetch: Callable[[dict[str, Any]], Array]) -> object:
    value = unflatten(document["value"], fetch)
    numpy = sys.modules.get("numpy")
    return value if numpy is None else numpy.dtype(document["dtype"]).type(value)


def _decode_torch(document: dict[str, Any], _fetch: Callable[[dict[str, Any]], Array]) -> object:
    torch = sys.modules.get("torch")
    if torch is None:
        return document["value"]
    if document[KIND] == "torch.device":
        return torch.device(document["value"])
    found = getattr(torch, str(document["value"]), None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"torch has no dtype {document['value']!r}")  # noqa: TRY004 - bad data in a file
    return found


_DECODERS: dict[str, Callable[[dict[str, Any], Callable[[dict[str, Any]], Array]], Any]] = {
    "float": lambda document, _: float(document["value"]),
    "int": lambda document, _: int(document["value"], 16),
    "bytes": lambda document, _: bytes.fromhex(document["value"]),
    "complex": lambda document, fetch: complex(*(float(unflatten(part, fetch)) for part in document["value"])),  # type: ignore[arg-type]
    "range": lambda document, _: range(*document["value"]),
    "tuple": lambda document, fetch: tuple(_decode_items(document, fetch)),
    "set": lambda document, fetch: set(_decode_items(document, fetch)),
    "frozenset": lambda document, fetch: frozenset(_decode_items(document, fetch)),
    "dict": _decode_dict,
    "state_dict": _decode_state_dict,
    "numpy.scalar": _decode_scalar,
    "torch.dtype": _decode_torch,
    "torch.device": _decode_torch,
    "generator": lambda document, fetch: arrays.make_generator(
        {key: unflatten(value, fetch) for key, value in document.items() if key != KIND}
    ),
}
