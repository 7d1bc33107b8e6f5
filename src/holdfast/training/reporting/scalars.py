"""One JSON value from whatever a script logs: numbers, texts, arrays of one element (numpy, torch, jax).

None of these libraries is imported here: whoever made the object has done so.
"""

from __future__ import annotations

import sys
from typing import Any

Value = float | int | bool | str | None

LONGEST_TEXT = 200
LARGEST_NUMBER = 1 << 63
"""Readers drop whole numbers beyond this (`model.wire.clean_heartbeat`); they are written as floats instead."""
FOREIGN_ERRORS = (RuntimeError, TypeError, ValueError, OverflowError, AttributeError)
"""What foreign objects raise when they are no single number, or when their device is gone."""
REFUSED = object()
"""Stands for "this is no single value"."""


def is_tensor(value: object) -> bool:
    """Whether it is a torch tensor."""
    return isinstance(value, getattr(sys.modules.get("torch"), "Tensor", ()))


def is_on_device(value: Any) -> bool:  # noqa: ANN401 - anything may be logged
    """Whether reading this value would wait for a device: a torch tensor elsewhere than in memory, or a jax array."""
    if is_tensor(value):
        return value.device.type not in ("cpu", "meta") and value.numel() == 1
    # A jax array is computed in the background on every backend, and it never changes: no copy is needed.
    return type(value).__module__.startswith("jax") and getattr(value, "size", 0) == 1


def to_plain(value: object) -> object:
    """A JSON value for a number, a boolean, a text or an array of one element; `REFUSED` for anything else."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value[:LONGEST_TEXT])
    try:
        if isinstance(value, int):
            return int(value) if -LARGEST_NUMBER < value < LARGEST_NUMBER else float(value)
        if isinstance(value, float):
            return float(value)
        if hasattr(value, "item"):
            inner = value.item()
            return to_plain(inner) if isinstance(inner, (bool, int, float, str)) else REFUSED
        return float(value) if hasattr(value, "__float__") else REFUSED
    except FOREIGN_ERRORS:
        return REFUSED


def read_together(kept: list[Any]) -> list[object]:
    """The numbers of arrays that lie on one device and have one type, in order."""
    try:
        if len(kept) > 1 and is_tensor(kept[0]):
            together = sys.modules["torch"].stack([tensor.reshape(()) for tensor in kept])
            return [to_plain(number) for number in together.tolist()]
    except FOREIGN_ERRORS:
        # One of them cannot be read: find out which.
        return [to_plain(tensor) for tensor in kept]
    return [to_plain(array) for array in kept]
