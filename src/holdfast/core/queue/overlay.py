"""Configurations in layers: a base, overlays over it, single values over them (QUEUE-17).

A tree is nested dictionaries; a leaf is anything else, and null is None. What a leaf is, is the caller's business: it
stays the very object that was read, so that ``1e-3``, a date or a tag is written again as it stood. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Tree = dict[str, Any]


class OverlayError(ValueError):
    """A layer does not fit the one below it; the message names the key."""


def merge_layers(base: Mapping[str, Any], over: Mapping[str, Any], *, path: str = "") -> Tree:
    """`over` laid over `base`, key by key; a list or any other leaf is replaced as a whole.

    A null below is as good as nothing: ``optimizer:`` without a value becomes the mapping that is laid over it. A
    mapping above may be replaced by null or by a leaf, because that says so in one place.

    Raises:
        OverlayError: a mapping stands over a value that is neither a mapping nor null.
    """
    merged: Tree = dict(base)
    for key, value in over.items():
        where = f"{path}{key}"
        below = merged.get(key)
        if not isinstance(value, dict):
            merged[key] = value
        elif below is None or isinstance(below, dict):
            merged[key] = merge_layers(below or {}, value, path=f"{where}.")
        else:
            raise OverlayError(f"{where} is a single value below, and a mapping is laid over it")
    return merged


def set_value(tree: Tree, path: str, make: Callable[[Any], Any]) -> None:
    """Set the value at ``a.b.c`` to ``make(what stood there)``, in place; nulls and gaps on the way become mappings.

    Raises:
        OverlayError: something on the way is a value, or the path ends at a mapping.
    """
    *way, last = path.split(".")
    here = tree
    for depth, key in enumerate(way):
        below = here.get(key)
        if below is None:
            below = {}
        elif not isinstance(below, dict):
            raise OverlayError(f"{path}: {'.'.join(way[: depth + 1])} is a single value, not a mapping")
        else:
            below = dict(below)
        here[key] = below
        here = below
    if isinstance(here.get(last), dict):
        raise OverlayError(f"{path} is a mapping, not a single value")
    here[last] = make(here.get(last))


def find_value(tree: Mapping[str, Any], path: str) -> tuple[bool, Any]:
    """(whether there is something at ``a.b.c``, what it is)."""
    here: Any = tree
    for key in path.split("."):
        if not isinstance(here, dict) or key not in here:
            return False, None
        here = here[key]
    return True, here


def list_paths(tree: Mapping[str, Any], prefix: str = "") -> list[str]:
    """The dotted paths of all leaves."""
    found = []
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            found += list_paths(value, f"{prefix}{key}.")
        else:
            found.append(f"{prefix}{key}")
    return found


def find_by_name(tree: Mapping[str, Any], name: str) -> list[str]:
    """The paths whose last part is `name`: where a configuration speaks of the same thing."""
    return [path for path in list_paths(tree) if path == name or path.endswith(f".{name}")]
