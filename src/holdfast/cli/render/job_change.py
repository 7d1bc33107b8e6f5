"""What somebody changed of a job, in words: by the keys of a job file, with sizes and times as people write them."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.cli.job.schema import KEYS
from holdfast.core.job.redact import redact_argv
from holdfast.model.origin import KeyChange
from holdfast.model.units import format_bytes, format_duration

_PATHS = {key.field: key.path for key in KEYS}


def describe_changes(changes: Iterable[KeyChange]) -> list[str]:
    """A line for each change: ``limits.memory 95.4 MiB -> 1.9 GiB``."""
    return [f"{_PATHS.get(change.key, change.key)} {_say_both(change)}" for change in changes]


def _say_both(change: KeyChange) -> str:
    """Before and after, as people write them; to the last digit where that would be the same word twice."""
    before, after = _say(change.key, change.before), _say(change.key, change.after)
    if before == after and isinstance(change.before, (int, float)) and isinstance(change.after, (int, float)):
        unit = " s" if change.key.endswith("_s") else " B" if change.key.endswith("_bytes") else ""
        before, after = (f"{value:.15g}{unit}" for value in (change.before, change.after))
    return f"{before} -> {after}"


def describe_limit(limit: Mapping[str, Any]) -> str:
    """One limit of a manifest: what was asked for, and what holds it."""
    asked, detail = str(limit.get("asked")), limit.get("detail")
    if asked.isdigit() and str(limit.get("name")) in ("memory", "memory_high", "swap"):
        asked = format_bytes(int(asked))
    return f"{asked} by {limit.get('mechanism')}{f' ({detail})' if detail else ''}"


def _say(key: str, value: object) -> str:
    if value == "" and key.startswith("env."):
        return "''"  # set, and empty: a variable that is not set is none
    if value is None or value in ("", [], {}):
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        if key.endswith("_bytes"):
            return format_bytes(int(value))
        return format_duration(value) if key.endswith("_s") else f"{value:g}"
    if isinstance(value, list):
        words = [str(word) for word in value]
        return f"`{shlex.join(redact_argv(words)[0])}`" if key.endswith("command") else ", ".join(words)
    if isinstance(value, dict):
        named = value.get("devices")
        return ",".join(map(str, named)) if isinstance(named, list) and named else str(value.get("count", value))
    return str(value)
