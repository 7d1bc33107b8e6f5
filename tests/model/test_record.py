"""A record is a dataclass whose methods come late: every one of ours is held against its twin from `dataclasses`."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import pickle
import pkgutil
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

import holdfast
from holdfast.model import record as records
from holdfast.model.record import (
    MISSING,
    FrozenRecordError,
    asdict,
    compile_methods,
    field,
    fields,
    is_record,
    record,
    replace,
)

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.pure


def list_records() -> list[type]:
    """Every record class of the package, but for those of modules that need a framework or end the process."""
    found = []
    for info in pkgutil.walk_packages(holdfast.__path__, "holdfast."):
        if "._vendor" in info.name or "payloads" in info.name or info.name.endswith("__main__"):
            continue
        try:
            module = importlib.import_module(info.name)
        except ModuleNotFoundError as error:
            if str(error.name).startswith("holdfast"):
                raise
            continue
        found += [
            value
            for value in vars(module).values()
            if isinstance(value, type) and is_record(value) and value.__module__ == info.name
        ]
    return found


def make_twin(cls: Any) -> Any:
    """The same fields as a dataclass: without the checks of ``__post_init__``, which any value here would fail."""
    described = []
    for item in fields(cls):
        default = {} if item.default is MISSING else {"default": item.default}
        factory = {} if item.default_factory is MISSING else {"default_factory": item.default_factory}
        described.append((item.name, object, dataclasses.field(**default, **factory, repr=item.repr)))  # type: ignore[call-overload]
    frozen = "__setattr__" in cls.__dict__
    return dataclasses.make_dataclass(cls.__name__, described, frozen=frozen, slots=True)


def outcome_of(act: Callable[[], Any]) -> object:
    try:
        return act()
    except (TypeError, AttributeError):
        # Which of the two differs: a slotted dataclass answers a new attribute with a TypeError about `super`.
        return "refused"


def differences(cls: Any) -> list[str]:
    twin = make_twin(cls)
    names = [item.name for item in fields(cls)]
    values = [f"value of {name}" for name in names]
    both: dict[str, Callable[[Any], object]] = {
        "match_args": lambda kind: kind.__match_args__,
        "slots": lambda kind: sorted(slot for base in kind.__mro__ for slot in vars(base).get("__slots__", ())),
        "repr": lambda kind: repr(kind(*values)).split("(", 1)[1],
        "by name": lambda kind: [getattr(kind(**dict(zip(names, values, strict=True))), name) for name in names],
        "too few": lambda kind: [getattr(kind(), name) for name in names],
        "too many": lambda kind: kind(*values, 1),
        "unknown name": lambda kind: kind(*values, no_such_field=1),
        "equal": lambda kind: (kind(*values) == kind(*values), kind(*values) == kind(*values[:-1], 1)),
        "other type": lambda kind: kind(*values) == tuple(values),
        "hash": lambda kind: hash(kind(*values)) == hash(kind(*values)),
        "change": lambda kind: setattr(kind(*values), names[0], 1) if names else None,
        "deletion": lambda kind: delattr(kind(*values), names[0]) if names else None,
        "new attribute": lambda kind: setattr(kind(*values), "no_such_field", 1),
        "copy": lambda kind: copy.copy(kind(*values)) == kind(*values),
    }
    own = cls.__dict__
    if "__repr__" in own and own["__repr__"] is not records._repr:
        del both["repr"]
    return [
        f"{cls.__module__}.{cls.__qualname__}: {what}"
        for what, look in both.items()
        if outcome_of(lambda look=look: look(cls)) != outcome_of(lambda look=look: look(twin))  # type: ignore[misc]
    ]


@pytest.mark.slow
def test_every_record_of_ours_behaves_as_a_dataclass() -> None:
    classes = [cls for cls in list_records() if not hasattr(cls, "__post_init__")]
    assert len(classes) > 300
    assert [line for cls in classes for line in differences(cls)] == []


@record
class Base:
    """A record with each kind of default."""

    KINDS: ClassVar[int] = 3
    number: int
    words: tuple[str, ...] = ()
    made: list[int] = field(default_factory=list)
    hidden: str = field(default="x", repr=False)


class Outer:
    """Has one inside of it."""

    @record
    class Inner:
        """Found by its full name alone."""

        number: int


@record
class Derived(Base):
    """One field more."""

    more: int = 0


@record(frozen=False)
class Loose:
    """May be changed."""

    number: int = 0


def test_defaults_are_shared_and_factories_are_not() -> None:
    assert Base(1).made is not Base(1).made
    assert Base(1) == Base(1, (), [], "x")
    assert repr(Base(1)) == "Base(number=1, words=(), made=[])"
    assert Base.KINDS == 3


def test_a_derived_record_has_the_fields_of_its_base_first() -> None:
    value = Derived(1, ("a",), [2], "y", 4)
    assert [item.name for item in fields(Derived)] == ["number", "words", "made", "hidden", "more"]
    assert (value.number, value.more) == (1, 4)
    assert value != Base(1, ("a",), [2], "y")
    assert vars(Derived)["__slots__"] == ("more",)


def test_a_frozen_record_refuses_a_change_and_says_which() -> None:
    with pytest.raises(FrozenRecordError, match=r"Base\.number"):
        Base(1).number = 2  # type: ignore[misc]
    value = Loose(1)
    value.number = 2
    assert value == Loose(2)
    with pytest.raises(TypeError, match="unhashable"):
        hash(value)


def test_replace_and_asdict() -> None:
    value = Derived(1, ("a",), [2], more=5)
    assert replace(value, number=7) == Derived(7, ("a",), [2], more=5)
    with pytest.raises(TypeError, match="no_such"):
        replace(value, no_such=1)  # type: ignore[call-arg]
    nested = Base(1, words=(Loose(3), "b"), made=[{"k": Loose(4)}])  # type: ignore[arg-type, list-item]
    assert asdict(nested) == {"number": 1, "words": ({"number": 3}, "b"), "made": [{"k": {"number": 4}}], "hidden": "x"}


def test_a_record_survives_pickling() -> None:
    value = Derived(1, ("a",), [2], more=5)
    assert pickle.loads(pickle.dumps(value)) == value
    assert copy.deepcopy(value) == value


def test_a_record_inside_of_a_class_keeps_its_full_name() -> None:
    value = Outer.Inner(3)
    assert repr(value) == "Outer.Inner(number=3)"
    assert pickle.loads(pickle.dumps(value)) == value


def test_two_threads_may_make_the_first_one_at_once() -> None:
    @record
    class Late:
        number: int

    seen_before = Late.__init__
    assert Late(3).number == 3
    late = Late.__new__(Late)
    seen_before(late, 4)
    assert late.number == 4


def test_a_wrong_class_is_refused_when_it_is_made() -> None:
    with pytest.raises(TypeError, match="default_factory"):
        record(type("Bad", (), {"__annotations__": {"x": "list[int]"}, "x": []}))
    with pytest.raises(TypeError, match="y has no default"):
        record(type("Bad", (), {"__annotations__": {"x": "int", "y": "int"}, "x": 1}))


def test_methods_can_be_compiled_before_the_first_use() -> None:
    @record
    class Late:
        number: int

    before = Late.__init__
    compile_methods(Late)
    assert Late.__init__ is not before
    assert Late(3).number == 3
    with pytest.raises(TypeError, match="number"):
        Late()  # type: ignore[call-arg]
