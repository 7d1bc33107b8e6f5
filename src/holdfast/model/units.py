"""Durations and sizes as people write them, and back.

Durations are seconds (float), sizes are bytes (int). Decimal and binary suffixes mean what they say: GB is 1000^3,
GiB is 1024^3. A bare number is seconds or bytes.
"""

from __future__ import annotations

import math
import re

from .pattern import compile_later

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_BYTES = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgtp", start=1):
    _BYTES[_letter] = _BYTES[_letter + "b"] = 1000**_power
    _BYTES[_letter + "ib"] = _BYTES[_letter + "i"] = 1024**_power
_PAGE_BYTES = 4096
_LEAST_CUT = 100 * 1000**2
_DECIMAL = (("TB", 1000**4), ("GB", 1000**3), ("MB", 1000**2))
_PART = compile_later(r"(\d+(?:\.\d+)?)\s*(ms|min|[smhdw])\s*", re.ASCII)
_SIZE = compile_later(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.ASCII)


def parse_duration(text: str | float) -> float:
    """Seconds in ``90``, ``90s``, ``1h30m``, ``2d``, ``500ms``.

    Raises:
        ValueError: the text is not a duration; the message says what was expected.
    """
    if isinstance(text, bool):
        # One error for every wrong value: who reads a job file catches ValueError.
        raise ValueError(f"{text!r} is not a duration; write it like 90s, 15m, 1h30m or 7d")  # noqa: TRY004
    if isinstance(text, (int, float)):
        return _checked_seconds(text, str(text))
    cleaned = text.strip().lower()
    if re.fullmatch(r"\d+(\.\d+)?", cleaned, re.ASCII):
        return _checked_seconds(float(cleaned), text)
    total, position = 0.0, 0
    while (match := _PART.match(cleaned, position)) is not None:
        total += float(match[1]) * _SECONDS[match[2]]
        position = match.end()
    if not cleaned or position != len(cleaned):
        raise ValueError(f"{text!r} is not a duration; write it like 90s, 15m, 1h30m or 7d")
    return _checked_seconds(total, text)


def _checked_seconds(seconds: float, text: str) -> float:
    if not 0 <= seconds < 10 * 365 * 86400:
        raise ValueError(f"{text[:40]!r} is out of range for a duration (0 to 10 years)")
    return float(seconds)


def parse_bytes(text: str | int) -> int:
    """Bytes in ``512``, ``10GB`` (decimal), ``8GiB`` (binary), ``1.5G``.

    Raises:
        ValueError: the text is not a size; the message says what was expected.
    """
    if isinstance(text, int) and not isinstance(text, bool):
        if text < 0:
            raise ValueError(f"{text} is negative; a size is 0 or more bytes")
        return _checked_bytes(text, text)
    match = _SIZE.fullmatch(str(text).strip().lower())
    if match is None or match[2] not in _BYTES or isinstance(text, bool):
        raise ValueError(f"{text!r} is not a size; write it like 512MB, 10GB or 8GiB")
    return _checked_bytes(float(match[1]) * _BYTES[match[2]], text)


def _checked_bytes(count: float, text: str | int) -> int:
    if not 0 <= count < 2**60:
        raise ValueError(f"{str(text)[:40]!r} is out of range for a size (0 to 1 EiB)")
    return int(count)


def format_count(count: int, one: str, many: str = "") -> str:
    """``1 card``, ``2 cards``; `many` where that is not `one` with an s: ``2 entries``, ``2 cards are``."""
    return f"{count} {one}" if count == 1 else f"{count} {many or f'{one}s'}"


def format_duration(seconds: float) -> str:
    """Two units at most: ``0.8 s``, ``42 s``, ``3m12s``, ``4h05m``, ``2d03h``; ``?`` for what is no finite number."""
    if not math.isfinite(seconds):
        # A damaged record says so; nothing of ours does.
        return "?"
    if seconds < 10:
        return f"{max(seconds, 0.0):.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"


def format_bytes(count: int) -> str:
    """Binary units, three significant digits: ``512 B``, ``9.5 GiB``.

    A size from 1 MB on that is round in decimal units is shown in them: who wrote ``300MB`` reads ``300 MB``.
    """
    # A limit of memory comes back from the kernel cut to whole pages; below this most sizes are near a round one.
    slack = _PAGE_BYTES - 1 if count > _LEAST_CUT - _PAGE_BYTES and count % _PAGE_BYTES == 0 else 0
    for unit, size in _DECIMAL if count % 2**20 else ():
        step = size // 100
        round_size = -(-count // step) * step
        text = f"{round_size / size:.3g}"
        if size <= round_size < 1000 * size and round_size - count <= slack and float(text) == round_size / size:
            return f"{text} {unit}"
    return _format_binary(count)


def format_asked_bytes(count: int) -> str:
    """A size that is compared with measured ones, which are in binary units: ``40 GB (37.3 GiB)``, ``8 GiB``."""
    said, binary = format_bytes(count), _format_binary(count)
    return said if said == binary else f"{said} ({binary})"


def _format_binary(count: int) -> str:
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{count} B" if unit == "B" else f"{value:.3g} {unit}" if value < 100 else f"{value:.0f} {unit}"
