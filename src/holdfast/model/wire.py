"""The run directory's files: their names, and records to and from JSON values.

Encoding is structural: a record becomes an object with its fields, an enum its value, a tuple an array; members of
the lifecycle union carry their class as ``kind``. Decoding is driven by the annotations, ignores fields that it does
not know (a newer holdfast wrote them) and fills absent ones from defaults (an older one did not).
"""

from __future__ import annotations

import json
import types
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, TypeGuard, TypeVar, get_args, get_origin, get_type_hints

from .record import MISSING, fields, is_record
from .run import SCHEMA, STATES, StopRecord

T = TypeVar("T")

RUN = "run.json"
JOB = "job.json"
HANDBOOK = "handbook.md"
ATTEMPTS = "attempts"
SNAPSHOT = "snapshot"
ARTIFACTS = "artifacts"
CHECKPOINTS = "checkpoints"
MANIFEST = "manifest.json"
STATE = "state.json"
DESIRED = "desired.json"
RUN_LOCK = "run.lock"
SUPERVISOR_LOCK = "supervisor.lock"
TAKEN = "taken"
GONE = "gone.json"
NATIVE = "native.json"
STATUS = "status.json"
EVENTS = "events.jsonl"
OUTPUT = "output.log"
OUTPUT_LOST = "output_lost.json"
SUPERVISOR_LOG = "supervisor.log"
HEALTH = "health.jsonl"
METRICS = "metrics.jsonl"
HEARTBEAT = "heartbeat.json"
CHECKPOINT_REQUEST = "checkpoint_request.json"
CHECKPOINT_WANTED = "checkpoint_wanted.json"
LIMITS_WANTED = "limits_wanted.json"
DEADLINE = "deadline.json"
STOP = "stop.json"
PREFLIGHT = "preflight.json"
POSTFLIGHT = "postflight.json"
EXIT = "exit.json"
FAILURE = "failure.md"
VERDICT = "verdict.json"
RETRY = "retry.json"
REQUEUE = "requeue.json"
ACCEPTED = "accepted.json"
RESULTS = "results.json"
DESTINATION = "destination.json"
MIRROR = "mirror.json"
PLACEMENT = "placement.json"
CODE = "code.json"
CLAIM = "claim.json"
THREADS = "threads.txt"
FLIGHT = "flight"

LARGEST_HEARTBEAT_NUMBER = 1 << 63
LONGEST_HEARTBEAT_TEXT = 1000
LONGEST_LINE = 110
LONGEST_WHY = 40
LONGEST_TRACEBACK = 16 * 1024
LARGEST_STOP_BYTES = 1 << 20

_HINTS: dict[type, dict[str, object]] = {}
_NAMES: dict[type, tuple[str, ...] | None] = {}
_Field = tuple[str, object, bool, frozenset[type]]
"""Name, annotation, whether it must be there, and the types of values that need no decoding."""
_FIELDS: dict[type, tuple[_Field, ...]] = {}
_PLAIN = frozenset({str, int, float, bool, type(None)})
_TEXT = json.JSONEncoder(ensure_ascii=False)
_ASCII = json.JSONEncoder()
_BY_KIND = {cls.__name__.lower(): cls for cls in STATES}


class WireError(ValueError):
    """A stored value does not have the form that its type asks for; the message names the place."""


def read_format(content: Mapping[str, object]) -> int:
    """The format of a record, as its writer says (``schema``); 0 where it says none."""
    return as_whole(content.get("schema")) or 0


def require_format(content: Mapping[str, object], where: str) -> None:
    """Refuse what a newer holdfast wrote: its fields may mean something else.

    Raises:
        WireError: it is newer than what this holdfast reads.
    """
    number = read_format(content)
    if number > SCHEMA:
        raise WireError(f"{where} was written by a newer holdfast (format {number}; this one reads up to {SCHEMA})")


def attempt_dir(run_dir: str, attempt: int) -> str:
    """The directory of one attempt."""
    return f"{run_dir}/{ATTEMPTS}/{attempt}"


def encode(value: object) -> Any:  # noqa: ANN401 - a JSON value
    """The JSON value of a model object (record, enum, tuple, mapping or plain value)."""
    cls = type(value)
    if cls in _PLAIN:
        return value
    if cls is dict:
        assert isinstance(value, dict)
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, Enum):
        return value.value
    names = _names_of(cls)
    if names is not None:
        encoded = {name: encode(getattr(value, name)) for name in names}
        return {"kind": cls.__name__.lower(), **encoded} if cls in STATES else encoded
    if isinstance(value, (list, tuple)):
        return [encode(item) for item in value]
    if isinstance(value, dict):
        return {str(key): encode(item) for key, item in value.items()}
    return value


def _names_of(cls: type) -> tuple[str, ...] | None:
    """The field names of a record, None for any other class; looked up once a class: a run encodes thousands."""
    try:
        return _NAMES[cls]
    except KeyError:
        names = tuple(field.name for field in fields(cls)) if is_record(cls) else None
        _NAMES[cls] = names
        return names


def decode(cls: type[T], value: object, where: str = "") -> T:
    """The model object of type `cls` in a JSON value.

    Raises:
        WireError: a field is missing or has the wrong form.
    """
    result = _decode(cls, value, where or cls.__name__)
    assert isinstance(result, cls)
    return result


def to_bytes(value: object, **extra: object) -> bytes:
    """A whole file: the encoded object with ``schema`` first, for people a line a key, long objects a line a part.

    Not by json's own indentation: with it the standard library encodes in Python, which was a third of a run's cost.
    """
    content = {"schema": SCHEMA, **extra, **encode(value)}
    try:
        return _lay_out(content, _TEXT.encode).encode()
    except UnicodeEncodeError:
        # A path or argument that is no UTF-8: its bytes are lone surrogates here, which JSON can say as escapes.
        return _lay_out(content, _ASCII.encode).encode()


def _lay_out(content: dict[str, Any], write: Callable[[object], str]) -> str:
    lines = []
    for key, item in content.items():
        text = write(item)
        if isinstance(item, dict) and len(text) > LONGEST_LINE:
            below = ",\n".join(f"  {write(str(name))}: {write(part)}" for name, part in item.items())
            text = f"{{\n{below}\n }}"
        lines.append(f" {write(key)}: {text}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def from_bytes(cls: type[T], data: bytes, where: str) -> T:
    """The object that `to_bytes` wrote.

    Raises:
        WireError: not JSON, not an object, or not of that form.
    """
    return decode(cls, parse_object(data, where), where)


def parse_object(data: bytes, where: str) -> dict[str, Any]:
    """The JSON object in `data`.

    Raises:
        WireError: it is not valid JSON, or not an object.
    """
    try:
        # Named, because json guesses UTF-16 and UTF-32 too, whose codecs a process would load only then.
        value = json.loads(data.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError) as error:
        raise WireError(f"{where} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise WireError(f"{where} holds {type(value).__name__}, not a JSON object")
    return value


def clean_heartbeat(values: dict[str, Any]) -> dict[str, Any]:
    """What of a heartbeat can be reckoned with and repeated: short text and numbers of a sane size.

    The job writes it, so anything may stand there: a number that no float holds would break whoever computes with it,
    and a megabyte would be repeated in every sample. NaN and infinity stay: a loss may be either.
    """
    return {
        key: value
        for key, value in values.items()
        if value is None
        or isinstance(value, float)
        or (isinstance(value, int) and abs(value) < LARGEST_HEARTBEAT_NUMBER)
        or (isinstance(value, str) and len(value) <= LONGEST_HEARTBEAT_TEXT)
    }


def clean_stop(values: dict[str, Any]) -> StopRecord | None:
    """What of a ``stop.json`` can be judged and repeated; None when it does not say why.

    The job writes it, so, as with a heartbeat, only values of a sane kind and size are taken, and text without control
    characters. Of a long traceback the end is kept: it names the error.
    """
    why = _clean_line(values.get("why"), LONGEST_WHY)
    if not why:
        return None
    traceback = values.get("traceback")
    seconds = values.get("seconds")
    return StopRecord(
        why=why,
        detail=_clean_line(values.get("detail"), LONGEST_HEARTBEAT_TEXT),
        step=_clean_count(values.get("step")),
        checkpoint_step=_clean_count(values.get("checkpoint_step")),
        saved=values.get("saved") is True,
        seconds=float(seconds) if _is_duration(seconds) else None,
        at=_clean_line(values.get("at"), LONGEST_WHY),
        traceback=_clean_lines(traceback[-LONGEST_TRACEBACK:]) if isinstance(traceback, str) else "",
    )


def _clean_line(value: object, longest: int) -> str:
    text = value[:longest] if isinstance(value, str) else ""
    return "".join(letter if letter.isprintable() else " " for letter in text).strip()


def _clean_lines(text: str) -> str:
    return "".join(letter if letter.isprintable() or letter in "\n\t" else " " for letter in text)


def as_whole(value: object) -> int | None:
    """A whole number that somebody else wrote; None for anything else, True too."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def as_number(value: object) -> float | None:
    """A number from 0 to what a float holds exactly enough; None for anything else, NaN too."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    return float(value) if 0 <= value < LARGEST_HEARTBEAT_NUMBER else None


def _clean_count(value: object) -> int | None:
    count = as_whole(value)
    return count if count is not None and 0 <= count < LARGEST_HEARTBEAT_NUMBER else None


def _is_duration(value: object) -> TypeGuard[int | float]:
    return as_number(value) is not None


def _hints_of(cls: type) -> dict[str, object]:
    if cls not in _HINTS:
        _HINTS[cls] = get_type_hints(cls)
    return _HINTS[cls]


def _decode(hint: object, value: object, where: str) -> object:
    origin = get_origin(hint)
    if origin is types.UnionType:
        return _decode_union(get_args(hint), value, where)
    if origin is tuple:
        return _decode_tuple(get_args(hint), value, where)
    if origin is dict:
        return _decode_dict(get_args(hint)[1], value, where)
    if hint is object:
        return value
    assert isinstance(hint, type)
    if issubclass(hint, Enum):
        try:
            return hint(value)
        except ValueError as error:
            raise WireError(f"{where}: {value!r} is none of {', '.join(m.value for m in hint)}") from error
    if is_record(hint):
        return _decode_fields(hint, value, where)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError as error:
            raise WireError(f"{where}: {str(value)[:20]}... is too large a number") from error
    if not isinstance(value, hint) or (hint is int and isinstance(value, bool)):
        raise WireError(f"{where}: expected {hint.__name__}, found {value!r}")
    return value


def _decode_dict(item_hint: object, value: object, where: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise WireError(f"{where}: expected an object, found {value!r}")
    if item_hint is object:
        return dict(value)
    return {key: _decode(item_hint, item, f"{where}.{key}") for key, item in value.items()}


def _decode_union(options: tuple[object, ...], value: object, where: str) -> object:
    if value is None and type(None) in options:
        return None
    if isinstance(value, dict) and "kind" in value and any(option in STATES for option in options):
        kind = value["kind"]
        cls = _BY_KIND.get(kind) if isinstance(kind, str) else None
        if cls is None or cls not in options:
            raise WireError(f"{where}: unknown kind {kind!r}")
        return _decode_fields(cls, value, where)
    rest = [option for option in options if option is not type(None)]
    for option in rest[:-1]:
        try:
            return _decode(option, value, where)
        except WireError:
            continue
    return _decode(rest[-1], value, where)


def _decode_tuple(args: tuple[object, ...], value: object, where: str) -> tuple[object, ...]:
    if not isinstance(value, (list, tuple)):
        raise WireError(f"{where}: expected an array, found {value!r}")
    if len(args) == 2 and args[1] is Ellipsis:
        return tuple(_decode(args[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if len(args) != len(value):
        raise WireError(f"{where}: expected {len(args)} items, found {len(value)}")
    return tuple(_decode(hint, item, f"{where}[{i}]") for i, (hint, item) in enumerate(zip(args, value, strict=True)))


def _decode_fields(cls: type, value: object, where: str) -> object:
    if not isinstance(value, dict):
        raise WireError(f"{where}: expected an object, found {value!r}")
    data: Mapping[str, object] = value
    arguments = {}
    for name, hint, required, plain in _fields_of(cls):
        if name in data:
            found = data[name]
            arguments[name] = found if type(found) in plain else _decode(hint, found, f"{where}.{name}")
        elif required:
            raise WireError(f"{where}: {name} is missing")
    return cls(**arguments)


def _fields_of(cls: type) -> tuple[_Field, ...]:
    """What decoding needs of each field; worked out once a class."""
    if cls not in _FIELDS:
        hints = _hints_of(cls)
        _FIELDS[cls] = tuple(
            (
                field.name,
                hints[field.name],
                field.default is MISSING and field.default_factory is MISSING,
                _find_plain(hints[field.name]),
            )
            for field in fields(cls)
        )
    return _FIELDS[cls]


def _find_plain(hint: object) -> frozenset[type]:
    """The types whose values are taken as they are under this annotation: what `_decode` would find out each time."""
    options = get_args(hint) if get_origin(hint) is types.UnionType else (hint,)
    if not all(option in _PLAIN for option in options) or {int, float} <= set(options):
        return frozenset()
    return frozenset(option for option in options if isinstance(option, type))


def warm_up(*classes: type) -> None:
    """Work out now, before a fork, what decoding and encoding these records needs to know about them."""
    for cls in classes:
        if is_record(cls) and _names_of(cls) and cls not in _FIELDS:
            for _, hint, _, _ in _fields_of(cls):
                warm_up(*(part for part in (hint, *_flatten(hint)) if isinstance(part, type)))


def _flatten(hint: object) -> list[object]:
    return [part for argument in get_args(hint) for part in (argument, *_flatten(argument))]
