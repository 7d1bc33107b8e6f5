"""Records: frozen, slotted values whose methods are compiled when the first one is made, not when their module loads.

`dataclasses` writes and compiles six methods for each class while its module is imported, and drags in `inspect`,
`ast` and `dis`: two thirds of the time that a command of ours took to start (ADR 0021). A `record` is the same thing
with the work put off: the decorator only notes the fields; ``__init__`` is compiled at the first construction, and
equality, hash and text are short functions that all records share. What a type checker sees is a dataclass.

Owned here: fields, defaults, copying with changes. Not here: JSON (`model.wire`), checks of values (their makers).

What differs from a dataclass: there is no ordering, no keyword-only field, no `InitVar`, no ``init=False``; ``repr``
does not guard against a record that contains itself, which a frozen one cannot.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from dataclasses import MISSING as MISSING
    from dataclasses import asdict as asdict
    from dataclasses import field as field
    from dataclasses import fields as fields
    from dataclasses import replace as replace
    from typing import Any, TypeVar, overload

    from typing_extensions import dataclass_transform

    _T = TypeVar("_T")

FIELDS = "__record_fields__"
"""The attribute of a record class that holds its fields by name, in order."""


class FrozenRecordError(AttributeError):
    """A field of a frozen record was assigned to or deleted."""


class _Missing:
    """Stands where a field has no default."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "MISSING"


if not TYPE_CHECKING:
    MISSING = _Missing()


class Field:
    """One field: its name, its annotation as text, its default or what makes one."""

    __slots__ = ("default", "default_factory", "name", "repr", "type")

    def __init__(self, default: object, default_factory: object, *, repr: bool) -> None:  # noqa: A002 - as dataclasses
        """`name` and `type` are filled in by the class that it stands in."""
        self.name = ""
        self.type: object = ""
        self.default = default
        self.default_factory = default_factory
        self.repr = repr


def is_record(value: object) -> bool:
    """Whether this is a record, or a class of records."""
    return hasattr(value, FIELDS)


def _fields_of(value: object) -> dict[str, Field]:
    found: dict[str, Field] = getattr(value, FIELDS)
    return found


def compile_methods(*classes: type) -> None:
    """Compile now what the first construction would compile: for a process that is about to fork."""
    for cls in classes:
        if is_record(cls) and cls.__dict__.get("__init__") is _compile_and_init:
            _compile_init(cls)


if TYPE_CHECKING:

    @overload
    def record(cls: type[_T], /) -> type[_T]: ...
    @overload
    def record(*, frozen: bool = True) -> Callable[[type[_T]], type[_T]]: ...
    @dataclass_transform(frozen_default=True, field_specifiers=(field,))
    def record(cls: Any = None, /, *, frozen: bool = True) -> Any:  # noqa: D103 - documented below
        raise NotImplementedError
else:

    def record(cls: Any = None, /, *, frozen: bool = True) -> Any:
        """Make a class a record: slots for its annotated fields, equality by value, no change unless `frozen` is False.

        Raises:
            TypeError: a field without a default follows one with a default, or a default can be changed in place.
        """
        if cls is None:
            return lambda made: _build(made, frozen=frozen)
        return _build(cls, frozen=frozen)

    def field(*, default: Any = MISSING, default_factory: Any = MISSING, repr: bool = True) -> Any:  # noqa: A002 - as dataclasses
        """A field with a default that is made anew for each record, or one that is left out of its text."""
        return Field(default, default_factory, repr=repr)

    def fields(value: Any) -> tuple[Field, ...]:
        """The fields of a record or of a class of records, in order."""
        return tuple(getattr(value, FIELDS).values())

    def replace(value: Any, /, **changes: Any) -> Any:
        """A copy with these fields changed.

        Raises:
            TypeError: there is no such field.
        """
        for name in getattr(value, FIELDS):
            if name not in changes:
                changes[name] = getattr(value, name)
        return type(value)(**changes)

    def asdict(value: Any) -> dict[str, Any]:
        """The fields by name, records inside of it and inside of its lists, tuples and dicts likewise."""
        return {name: _plain(getattr(value, name)) for name in getattr(value, FIELDS)}


def _plain(value: Any) -> Any:
    if is_record(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, (list, tuple)):
        made = [_plain(item) for item in value]
        return type(value)(*made) if hasattr(value, "_fields") else type(value)(made)
    if isinstance(value, dict):
        return {_plain(key): _plain(item) for key, item in value.items()}
    return value


def _build(cls: type, *, frozen: bool) -> type:
    body = {name: value for name, value in cls.__dict__.items() if name not in ("__dict__", "__weakref__")}
    own = _own_fields(cls)
    inherited: dict[str, Field] = {}
    for base in reversed(cls.__mro__[1:]):
        inherited.update(base.__dict__.get(FIELDS, {}))
    every = {**inherited, **own}
    _check_order(cls, every)
    for name in own:
        # A slot and a class attribute cannot have the same name.
        body.pop(name, None)
    taken = {slot for base in cls.__mro__[1:] for slot in base.__dict__.get("__slots__", ())}
    body[FIELDS] = every
    body["__match_args__"] = tuple(every)
    body["__slots__"] = tuple(name for name in own if name not in taken)
    body.setdefault("__init__", _compile_and_init)
    body.setdefault("__repr__", _repr)
    if "__eq__" not in body:
        body["__eq__"] = _eq
        # Python puts None here when a class defines __eq__ alone; what was not written by hand is decided by `frozen`.
        body["__hash__"] = body.get("__hash__") or (_hash if frozen else None)
    body.setdefault("__getstate__", _get_state)
    body.setdefault("__setstate__", _set_state)
    if frozen:
        body["__setattr__"] = _refuse_change
        body["__delattr__"] = _refuse_change
    made = type(cls)(cls.__name__, cls.__bases__, body)
    made.__qualname__ = cls.__qualname__
    return made


def _own_fields(cls: type) -> dict[str, Field]:
    found = {}
    for name, annotation in cls.__annotations__.items():
        if isinstance(annotation, str) and annotation.startswith(("ClassVar", "typing.ClassVar")):
            continue
        value = cls.__dict__.get(name, MISSING)
        item = value if isinstance(value, Field) else Field(value, MISSING, repr=True)
        item.name, item.type = name, annotation
        if getattr(type(item.default), "__hash__", None) is None:
            raise TypeError(f"{cls.__name__}.{name}: a default that can be changed needs default_factory")
        found[name] = item
    return found


def _check_order(cls: type, every: dict[str, Field]) -> None:
    defaulted = ""
    for name, item in every.items():
        if item.default is not MISSING or item.default_factory is not MISSING:
            defaulted = name
        elif defaulted:
            raise TypeError(f"{cls.__name__}.{name} has no default and follows {defaulted}, which has one")


def _compile_and_init(self: object, *values: object, **named: object) -> None:
    """The ``__init__`` of a record class until its first use, which replaces it."""
    for owner in type(self).__mro__:
        # None is left when another thread was quicker.
        if owner.__dict__.get("__init__") is _compile_and_init:
            _compile_init(owner)
            break
    made: Any = type(self)
    made.__init__(self, *values, **named)


def _compile_init(cls: type) -> None:
    """Write and compile ``__init__``; two threads that do it at once write the same."""
    names: dict[str, object] = {"_set": object.__setattr__, "_MISSING": MISSING}
    head, lines = ["self"], []
    frozen = cls.__setattr__ is _refuse_change
    for name, item in _fields_of(cls).items():
        value = name
        if item.default is not MISSING:
            names[f"_default_{name}"] = item.default
            head.append(f"{name}=_default_{name}")
        elif item.default_factory is not MISSING:
            names[f"_make_{name}"] = item.default_factory
            head.append(f"{name}=_MISSING")
            value = f"_make_{name}() if {name} is _MISSING else {name}"
        else:
            head.append(name)
        lines.append(f"_set(self, {name!r}, {value})" if frozen else f"self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    text = f"def __init__({', '.join(head)}):\n    " + ("\n    ".join(lines) or "pass")
    exec(compile(text, f"<record {cls.__qualname__}>", "exec"), names)  # noqa: S102 - our own field names
    made: Any = names["__init__"]
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    type.__setattr__(cls, "__init__", made)


def _values(value: object) -> tuple[object, ...]:
    return tuple([getattr(value, name) for name in getattr(value, FIELDS)])


def _repr(self: object) -> str:
    shown = (f"{name}={getattr(self, name)!r}" for name, item in _fields_of(self).items() if item.repr)
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _eq(self: object, other: object) -> Any:
    if other.__class__ is not self.__class__:
        return NotImplemented
    return _values(self) == _values(other)


def _hash(self: object) -> int:
    return hash(_values(self))


def _get_state(self: object) -> list[object]:
    return list(_values(self))


def _set_state(self: object, state: list[object]) -> None:
    for name, value in zip(_fields_of(self), state, strict=True):
        object.__setattr__(self, name, value)


def _refuse_change(self: object, name: str, *_value: object) -> None:
    raise FrozenRecordError(f"{type(self).__name__}.{name} cannot be changed: the record is frozen")
