"""Any value of any model type, for property tests: drawn from the annotations, so a new field is covered by itself.

Numbers are finite and text is valid Unicode; what else a file may hold is for the tests of `model.wire` to say.
"""

from __future__ import annotations

import types
from enum import Enum
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

from hypothesis import strategies as st

from holdfast.model.record import fields

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

PLAIN: dict[object, SearchStrategy[Any]] = {
    bool: st.booleans(),
    int: st.integers(-(2**63), 2**63 - 1),
    float: st.floats(-1e9, 1e9),
    str: st.text(max_size=12),
    type(None): st.none(),
    object: st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.lists(st.integers(), max_size=2),
}
_KNOWN: dict[object, SearchStrategy[Any]] = {}


def values_of(hint: Any) -> SearchStrategy[Any]:
    """Values of a type as it stands in an annotation: dataclass, enum, union, tuple, dict or plain type."""
    if hint in PLAIN:
        return PLAIN[hint]
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is types.UnionType:
        return st.one_of(*map(values_of, arguments))
    if origin is tuple and arguments[-1] is Ellipsis:
        return st.lists(values_of(arguments[0]), max_size=2).map(tuple)
    if origin is tuple:
        return st.tuples(*map(values_of, arguments))
    if origin is dict:
        return st.dictionaries(st.text(max_size=6), values_of(arguments[1]), max_size=2)
    if issubclass(hint, Enum):
        return st.sampled_from(hint)
    if hint not in _KNOWN:
        hints = get_type_hints(hint)
        _KNOWN[hint] = st.builds(hint, **{field.name: values_of(hints[field.name]) for field in fields(hint)})
    return _KNOWN[hint]
