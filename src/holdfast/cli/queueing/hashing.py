"""The hash of a cell's resolved job, without resolving ten thousand jobs that differ in three keys."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class CellHasher:
    """Hashes cells of one base; the result is that of `core.cells.hash_cell`.

    `base` is the encoded job with every field. Each key's canonical JSON is made once; a cell only adds its own.
    """

    def __init__(self, base: Mapping[str, object]) -> None:
        """Encode the base's keys."""
        self._parts = {key: _member(key, value) for key, value in base.items()}

    def hash(self, change: Mapping[str, object]) -> str:
        """SHA-256 of the base with `change` laid over it key by key, as hexadecimal digits."""
        parts = {**self._parts, **{key: _member(key, value) for key, value in change.items()}}
        text = "{" + ",".join(parts[key] for key in sorted(parts)) + "}"
        return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def _member(key: str, value: object) -> str:
    encoded = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return f"{json.dumps(key, ensure_ascii=False)}:{encoded}"
