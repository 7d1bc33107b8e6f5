"""Data of a hub, which the box can most often take from there itself, sooner than over a line from here (XPORT-17)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from holdfast.core.code.manifest import LINK
from holdfast.model.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.core.code.manifest import CodeEntry

    from .roster import DataSet

LARGE_BYTES = 1 << 30
"""What is less is sent from here sooner than somebody reads about it."""
_FOLDER = re.compile(r"(model|dataset|space)s--([A-Za-z0-9][\w.-]{0,95})\Z", re.ASCII)
"""A repository in the cache of Hugging Face's library. Source: huggingface_hub, file_download.py, repo_folder_name: its
kind, owner and name with two dashes between; two dashes are not allowed within (utils/_validators.py)."""


def suggest_fetch(place: str, data: DataSet, missing: dict[str, CodeEntry]) -> Iterator[str]:
    """Words for people: what of this has the box fetch a large part of what is `missing` there."""
    sizes: dict[str, int] = {}
    for entry in missing.values():
        folder = None if entry.kind == LINK else _find_folder(data.sources[entry.path])
        if folder is not None:
            sizes[folder] = sizes.get(folder, 0) + entry.size
    for folder, size in sizes.items():
        if size < LARGE_BYTES:
            continue
        kind, _, name = folder.partition("s--")
        option = "" if kind == "model" else f" --repo-type {kind}"
        command = f"holdfast run -d --no-code --on {place} -- hf download {name.replace('--', '/')}{option}"
        yield f"{folder} ({format_bytes(size)}) is on a hub: {place} may have it sooner by itself: {command}"


def _find_folder(path: str) -> str | None:
    return next((part for part in reversed(path.split("/")) if _FOLDER.match(part)), None)
