"""A digest of each part of a checkpoint's state, to tell which part two checkpoints do not have in common.

Parts are the tracked names; of what the library keeps itself, the epoch, each entry of `Run.state` and each generator.
What a second run cannot have in common (how long a save took) is left out. Made from the record's own digests of the
data files and from ``state.json``: no array is read.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from . import layout, survey
from .layout import OWN
from .survey import SurveyEntry


def digest_parts(item: SurveyEntry) -> dict[str, str]:
    """Part to hexadecimal digest; parts of ranks other than 0 begin with ``rank-N/``.

    Raises:
        LayoutError: it has no sound record, or is damaged.
        OSError: it cannot be read: it was just removed, for example.
    """
    record = item.record
    if record is None:
        raise layout.LayoutError(item.problem or "it has no sound record")
    found: dict[str, str] = {}
    for rank in range(record.world):
        prefix = layout.rank_prefix(rank)
        data = {
            file.path.removeprefix(prefix).removesuffix(".safetensors"): [file.bytes, *file.chunks]
            for file in record.files
            if file.path.startswith(prefix) and "/" not in file.path.removeprefix(prefix)
        }
        for name, document in survey.read_documents(item, rank).items():
            for part, content in _split(name, document):
                if content is not None or part in data:
                    found[prefix + part] = _digest([content, data.get(part)])
    return found


def _split(name: str, document: Any) -> list[tuple[str, Any]]:  # noqa: ANN401 - a JSON value
    if name != OWN or not isinstance(document, dict):
        return [(name, document)]
    parts: list[tuple[str, Any]] = [(f"{OWN}.epoch", document.get("epoch"))]
    for key in ("state", "random"):
        inner = document.get(key)
        parts += [(f"{OWN}.{key}.{at}", value) for at, value in inner.items()] if isinstance(inner, dict) else []
    # Arrays of `Run.state` are in one file, which has digests as a whole.
    return [*parts, (name, None)]


def _digest(value: Any) -> str:  # noqa: ANN401
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
