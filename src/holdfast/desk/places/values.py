"""Values of ``places.toml`` as they are read: what is wrong with one, in words."""

from __future__ import annotations

from holdfast.desk.toml import Node


class PlaceValueError(ValueError):
    """A value is not what its key takes; the message says what was found and expected."""


def read_text(node: Node) -> str:
    """The text of a value.

    Raises:
        PlaceValueError: it is none.
    """
    if not isinstance(node.value, str):
        raise PlaceValueError(f"expected text in quotes, found {show_value(node)}")
    return node.value


def show_value(node: Node) -> str:
    """A value as a person wrote it, cut short."""
    if isinstance(node.value, dict):
        return "a table"
    return "a list" if isinstance(node.value, list) else node.text[:80] or repr(node.value)
