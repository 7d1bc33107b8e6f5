"""For how long cards are to be watched: an option of the card verbs, parsed."""

from __future__ import annotations

from holdfast.model.errors import UsageError
from holdfast.model.units import parse_duration

LONGEST_S = 3600.0


def parse_window(text: str) -> float:
    """Seconds to watch.

    Raises:
        UsageError: it is not a duration, or longer than an hour.
    """
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise UsageError(f"--for: {error}", hint="write it like 10s or 2m") from error
    if not seconds <= LONGEST_S:
        raise UsageError(f"--for: {text} is too long to watch", hint="an hour at most")
    return seconds
