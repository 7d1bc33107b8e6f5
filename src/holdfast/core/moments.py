"""Moments as people write them: ``22:00``, ``+2h``, ``2026-11-21 08:00``.

A clock's time is that of this box, or of the desk that sent the command (`core.reader`): who writes and reads it is
there. Only what people write and read is concerned; hours in rules are the box's own, and jobs keep its zone.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from importlib import import_module
from typing import TYPE_CHECKING

from holdfast.model.errors import UsageError
from holdfast.model.pattern import compile_later
from holdfast.model.units import parse_duration

from .reader import READER

if TYPE_CHECKING:
    from datetime import tzinfo

_LAST = 253_370_764_800.0
"""9999-01-01T00:00Z: what is later has no date in every zone, and could be handed in but never shown."""
_CLOCK = compile_later(r"(\d{1,2}):(\d\d)", re.ASCII)
_STAMP = compile_later(r"\b(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.\d+)?Z", re.ASCII)
_DATE = compile_later(r"\d{4}-\d\d-\d\d", re.ASCII)
_ZONE = compile_later(r"([A-Za-z0-9._+-]+(?:/[A-Za-z0-9._+-]+){0,2})? ([+-])(\d\d)(\d\d)", re.ASCII)
PAST = "write it like 7d, 12h, 22:00, today, yesterday or 2026-11-01"
DAYS_AGO = {"today": 0, "yesterday": 1}
HINT = "write it like 22:00, +2h, 2026-11-21T08:00 (your time) or 2026-11-21T08:00Z"


def find_zone() -> tzinfo | None:
    """The zone of who reads and writes here; None: this box's. Of one that is not known here its offset counts."""
    match = _ZONE.fullmatch(READER.zone)
    if match is None:
        return None
    try:
        # It refuses what leads out of the directories of zones.
        found: tzinfo = import_module("zoneinfo").ZoneInfo(match[1] or "")
    except (ValueError, OSError, LookupError):
        ahead = timedelta(hours=int(match[3]), minutes=int(match[4]))
        return timezone(-ahead if match[2] == "-" else ahead) if ahead < timedelta(hours=24) else None
    return found


def at_zone(epoch_s: float) -> datetime:
    """A moment by the clock of who reads it."""
    return datetime.fromtimestamp(epoch_s, find_zone())


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
        raise UsageError(f"{option}: {text[:60]!r} is no time{_explain(error)}", hint=HINT) from error
    return moment


def is_date(text: str) -> bool:
    """Whether it is a date alone, which names a day and no moment of it."""
    return _DATE.fullmatch(text.strip()) is not None


def parse_past(text: str, now: float, *, option: str = "--since", ends: bool = False) -> float:
    """Epoch seconds of a moment that has been: a span before now (``7d``), a clock time's last occurrence, or a date.

    ``today`` and ``yesterday`` begin at midnight, by the clock of who reads them, and so does a date alone; as an end
    (`ends`) that is the midnight after it.

    Raises:
        UsageError: it is none of these, or comes yet.
    """
    cleaned = text.strip()
    if cleaned.replace(".", "", 1).isdigit():
        # Elsewhere a bare number is seconds; here that would be nearly nothing.
        raise UsageError(f"{option} {cleaned[:60]}: of what", hint="write it like 36h or 7d; seconds are 90s")
    try:
        return now - parse_duration(cleaned)
    except ValueError:
        pass
    try:
        if (match := _CLOCK.fullmatch(cleaned)) is not None:
            return _find_occurrence(int(match[1]), int(match[2]), now, past=True)
        if (days := DAYS_AGO.get(cleaned.lower())) is not None:
            midnight = at_zone(now).replace(hour=0, minute=0, second=0, microsecond=0)
            return (midnight - timedelta(days=days)).timestamp()
        moment = _read_date(cleaned)
    except (ValueError, OverflowError) as error:
        raise UsageError(f"{option}: {text[:60]!r} is no time{_explain(error)}", hint=PAST) from error
    if moment > now:
        raise UsageError(f"{option}: {text[:60]} comes yet", hint="name a time that has passed, like today or 7d")
    return _read_date(cleaned, days=1) if ends and is_date(cleaned) else moment


def _explain(error: Exception) -> str:
    """What is wrong with a date or a clock's time; nothing of a word that is neither."""
    return "" if str(error).startswith("Invalid isoformat") else f": {error}"


def _read(text: str, now: float) -> float:
    if text.startswith("+"):
        return now + parse_duration(text[1:])
    if (match := _CLOCK.fullmatch(text)) is not None:
        return _find_occurrence(int(match[1]), int(match[2]), now, past=False)
    return _read_date(text)


def _read_date(text: str, *, days: int = 0) -> float:
    """The moment of a date, or so many days later by the same clock."""
    # fromisoformat of Python 3.10 does not know the letter.
    found = datetime.fromisoformat(re.sub(r"[zZ]$", "+00:00", text)) + timedelta(days=days)
    return (found if found.tzinfo is not None else found.replace(tzinfo=find_zone())).timestamp()


def _find_occurrence(hour: int, minute: int, now: float, *, past: bool) -> float:
    """The last or the next time that a clock shows this."""
    then = at_zone(now).replace(hour=hour, minute=minute, second=0, microsecond=0)
    if past and then.timestamp() > now:
        then -= timedelta(days=1)
    elif not past and then.timestamp() <= now:
        then += timedelta(days=1)
    return then.timestamp()


def show_times(text: str) -> str:
    """`text` with its moments in UTC (``2026-11-20T12:03:36.066Z``) by the clock of who reads it, to the second."""
    return _STAMP.sub(_show_stamp, text) if "Z" in text else text


def _show_stamp(found: re.Match[str]) -> str:
    try:
        moment = datetime.fromisoformat(f"{found[1]}+00:00")
        return f"{at_zone(moment.timestamp()):%Y-%m-%d %H:%M:%S}"
    except (ValueError, OverflowError, OSError):
        return found[0]


def format_moment(epoch_s: float, now: float, *, exact: bool = False) -> str:
    """A moment by people's clock: the time of day, with the date when it is not today's; without one the number.

    Of what has been the minute is enough; `exact` has its seconds too, where it is no full minute.
    """
    if not 0 <= epoch_s < _LAST:
        return f"{epoch_s:.0f} s after 1970"
    moment, today = at_zone(epoch_s), at_zone(now).date()
    clock = "%H:%M:%S" if exact and moment.second else "%H:%M"
    return moment.strftime(clock if moment.date() == today else f"%Y-%m-%d {clock}")
