"""A state becomes plain JSON and named arrays, and comes back equal; what has no plain form is named by its place."""

from __future__ import annotations

import collections
import json
import math
import random
import sys
from array import array
from collections import OrderedDict
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.training.errors import CannotSave
from holdfast.training.storage import tree
from tests.each import each

pytestmark = pytest.mark.pure


class Point(NamedTuple):
    x: int
    y: Any


def there_and_back(state: object) -> Any:
    """Through the bytes of a file."""
    document, found = tree.flatten(state, "t")
    text = json.dumps(document)
    return tree.unflatten(json.loads(text), lambda entry: found[entry["key"]])


def same(a: Any, b: Any) -> bool:
    """Equal also in type and sign, and with NaN equal to itself."""
    if isinstance(a, float):
        return (
            type(b) is float
            and (a == b or (math.isnan(a) and math.isnan(b)))
            and math.copysign(1, a) == math.copysign(1, b)
        )
    if isinstance(a, dict):
        return (
            isinstance(b, dict)
            and list(map(repr, a)) == list(map(repr, b))
            and all(same(x, y) for x, y in zip(a.values(), b.values(), strict=True))
        )
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return type(a) is type(b) and a == b


@pytest.mark.requirement("CKPT-01", "CKPT-11")
@each(
    "value",
    [
        *(None, True, False, 0, -1, 2**63, 2**64, -(10**30), 10**5000, -(2**20000)),
        *(0.0, -0.0, 1e-320, 1.5, math.pi, float("nan"), float("-nan"), float("inf"), float("-inf")),
        *("", "text", 'quote " and \\ and \n', "\u00e4\u4e2d\U0001f600", "\ud800", "\0"),
        *(b"", b"\0\xff", 1 + 2j, complex("nan"), complex(0.0, -0.0), range(3, 30, 7)),
        *([], {}, (), set(), frozenset(), [[]], ({},), [(1, 2), [1, 2]]),
        *({1: 2}, {None: 1, 2.5: "x", True: 0}, {(1, (2, 3)): "a"}, {"$": "array", "key": "x"}, {"a": {"$": 1}}),
        *({"deep": [{"list": [1, (2.0, {"x": {3}})]}]}, {b"k": frozenset({1, 2})}, {"1": "s", 1: "i"}),
        {"__metadata__": {"x": 1}},
    ],
    ids=lambda value: f"{type(value).__name__} {(hex(value) if isinstance(value, int) else ascii(value))[:30]}",
)  # fmt: skip
def test_plain_values_come_back_equal_and_of_the_same_type(value: object) -> None:
    back = there_and_back(value)
    assert same(value, back) or (isinstance(value, complex) and repr(value) == repr(back)), (value, back)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(
            st.text(max_size=3) | st.integers() | st.sampled_from(["$", "key", "items"]), inner, max_size=3
        )
    ),
    max_leaves=12,
)


@given(PLAIN)
@example([float("nan"), float("-nan")])
def test_any_nesting_of_plain_values_comes_back(value: object) -> None:
    assert same(value, there_and_back(value))


def test_a_named_tuple_comes_back_as_a_tuple_with_its_fields_noted() -> None:
    document, _ = tree.flatten(Point(1, [2]), "t")
    assert document["type"] == "Point"
    assert document["fields"] == ["x", "y"]
    assert there_and_back(Point(1, [2])) == (1, [2])


def test_ordered_dicts_keep_their_order_and_the_versions_that_torch_hangs_on_them() -> None:
    state = OrderedDict([("z", 1), ("a", 2)])
    state._metadata = OrderedDict([("", {"version": 1}), ("sub", {"version": 2})])  # type: ignore[attr-defined]
    back = there_and_back(state)
    assert list(back.items()) == [("z", 1), ("a", 2)]
    assert back._metadata == {"": {"version": 1}, "sub": {"version": 2}}


@pytest.mark.requirement("CKPT-01")
def test_a_python_generator_goes_on_with_the_same_numbers() -> None:
    generator = random.Random(3)
    generator.gauss(0, 1)
    back = there_and_back({"g": generator})["g"]
    assert [back.random() for _ in range(5)] + [back.gauss(0, 1)] == [generator.random() for _ in range(5)] + [
        generator.gauss(0, 1)
    ]


def test_something_with_state_dict_inside_of_a_container_is_saved_as_its_state() -> None:
    class Counter:
        def __init__(self) -> None:
            self.count = 7

        def state_dict(self) -> dict[str, int]:
            return {"count": self.count}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.count = state["count"]

    assert there_and_back([Counter()]) == [{"count": 7}]


def test_arrays_leave_the_document_and_are_named_by_their_path() -> None:
    document, found = tree.flatten({"layer": {"weight": array("f", [1]), "list": [array("f", [2])]}}, "model")
    assert list(found) == ["layer.weight", "layer.list.0"]
    assert not any(isinstance(value, float) for value in document["layer"].values())


@pytest.mark.parametrize(
    "state",
    [
        {"a.b": array("f", [1]), "a": {"b": array("f", [2])}},
        {"a": {"b": array("f", [1])}, "a.b": array("f", [2]), "a.b#2": array("f", [3])},
        {1: array("f", [1]), "1": array("f", [2])},
        {"__metadata__": array("f", [1]), "x": {"__metadata__": array("f", [2])}},
        {"": array("f", [1]), "t": array("f", [2])},
    ],
)
def test_two_places_with_the_same_dotted_path_do_not_become_one(state: dict[Any, Any]) -> None:
    _, found = tree.flatten(state, "t")
    assert sorted(item[0] for item in found.values()) == [float(n) for n in range(1, len(found) + 1)]
    assert "__metadata__" not in found
    assert there_and_back(state) == state


def test_an_array_that_stands_at_two_places_comes_back_at_both() -> None:
    shared = array("f", [1, 2])
    assert there_and_back({"encoder": shared, "head": [shared]}) == {"encoder": shared, "head": [shared]}


def nested(depth: int, make: Any) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = make(value)
    return value


@pytest.mark.parametrize("make", [lambda v: [v], lambda v: {"k": v}, lambda v: {1: v}, lambda v: (v,)])
def test_nesting_up_to_the_limit_comes_back_and_beyond_it_is_refused(make: Any) -> None:
    deepest = nested(tree.MAX_DEPTH, make)
    assert there_and_back(deepest) == deepest
    with pytest.raises(CannotSave, match="levels deep"):
        tree.flatten(nested(tree.MAX_DEPTH + 1, make), "t")


def itself() -> list[Any]:
    loop: list[Any] = []
    loop.append([loop])
    return loop


class Opaque:
    pass


@each(
    ("value", "place", "words"),
    [
        ({"fn": lambda: 0}, "opt.fn", "function"),
        ({"a": [1, {"file": sys.stdout}]}, "opt.a.1.file", "TextIO"),
        ([Opaque()], "opt.0", "Opaque"),
        ({"t": Opaque}, "opt.t", "type"),
        (itself(), "opt.0.0", "contains itself"),
        (collections.deque([1]), "opt", "deque"),
        ({"g": iter([1])}, "opt.g", "list_iterator"),
        ({"a": array("u", "x")}, "opt.a", "typecode"),
        ((item for item in "x"), "opt", "generator"),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:The 'u' type code")
def test_what_has_no_plain_form_is_refused_by_its_place_and_kind(value: object, place: str, words: str) -> None:
    with pytest.raises(CannotSave) as caught:
        tree.flatten(value, "opt")
    assert caught.value.key == place
    assert str(caught.value).startswith(f"{place} cannot be saved: ")
    assert words in str(caught.value)
    assert caught.value.remedy


@pytest.mark.requirement("CKPT-11", "B-74")
@each(
    "document",
    [
        {"$": "exec", "value": "1"},
        {"$": "generator", "library": "numpy", "state": {"bit_generator": "system"}},
        {"$": "range", "value": [1, 2, 0]},
        {"$": "bytes", "value": "zz"},
        {"$": "float"},
        {"$": "int", "value": "x"},
        {"$": "dict", "items": [[1]]},
        {"$": "set", "items": [[]]},
        {"$": ["unhashable"]},
        {"$": "torch.dtype", "value": "nn"},
    ],
)
def test_a_document_that_nothing_here_writes_is_refused_or_stays_data(document: Any) -> None:
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    inert = (document["$"] == "generator" and numpy is None) or (document["$"] == "torch.dtype" and torch is None)
    if inert:
        tree.unflatten(document, lambda entry: entry)
        return
    with pytest.raises((ValueError, KeyError, TypeError)):
        tree.unflatten(document, lambda entry: entry)
