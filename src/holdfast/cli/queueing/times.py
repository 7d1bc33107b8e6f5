"""Moments as people write them: ``22:00``, ``+2h``, ``2026-11-21 08:00``."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from holdfast.model.errors import UsageError
from holdfast.model.units import parse_duration

_LAST = 253_370_764_800.0
"""9999-01-01T00:00Z: what is later has no date in every zone, and could be handed in but never shown."""
_CLOCK = re.compile(r"(\d{1,2}):(\d\d)", re.ASCII)
HINT = "write it like 22:00, +2h, 2026-11-21T08:00 (this box's time) or 2026-11-21T08:00Z"


def parse_moment(text: str, now: float, *, option: str = "--not-before") -> float | None:
    """Epoch seconds of a moment; a clock time is its next occurrence, a date without a zone is local. ``now``: None.

    Raises:
        UsageError: it is none of these.
    """
    cleaned = text.strip()
    if cleaned.lower() in {"now", "none"}:
        return None
    try:
        moment = _read(cleaned, now)
        if not 0 <= moment < _LAST:
            raise ValueError("it is not between 1970 and 9999")
    except (ValueError, OverflowError) as error:
        raise UsageError(f"{option}: {text[:60]!r} is no time: {error}", hint=HINT) from error
    return moment


def _read(text: str, now: float) -> float:
    if text.startswith("+"):
        return now + parse_duration(text[1:])
    if (match := _CLOCK.fullmatch(text)) is not None:
        return _next_occurrence(int(match[1]), int(match[2]), now)
    # fromisoformat of Python 3.10 does not know the letter.
    return datetime.fromisoformat(re.sub(r"[zZ]$", "+00:00", text)).timestamp()


def _next_occurrence(hour: int, minute: int, now: float) -> float:
    here = datetime.fromtimestamp(now)  # noqa: DTZ006 - people mean the clock of this box
    then = here.replace(hour=hour, minute=minute, second=0, microsecond=0)
    if then.timestamp() <= now:
        then += timedelta(days=1)
    return then.timestamp()


def format_moment(epoch_s: float, now: float) -> str:
    """A moment by this box's clock: the time of day, with the date when it is not today's; without one the number."""
    if not 0 <= epoch_s < _LAST:
        return f"{epoch_s:.0f} s after 1970"
    moment = datetime.fromtimestamp(epoch_s)  # noqa: DTZ006 - people mean the clock of this box
    today = datetime.fromtimestamp(now).date()  # noqa: DTZ006
    return f"{moment:%H:%M}" if moment.date() == today else f"{moment:%Y-%m-%d %H:%M}"
