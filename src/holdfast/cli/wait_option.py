"""The option ``--wait``: how long to wait for what was asked."""

from __future__ import annotations

from holdfast.model.errors import UsageError
from holdfast.model.units import parse_duration


def parse_wait(text: str | None, option: str = "--wait") -> float | None:
    """Seconds of a ``--wait``, or of another `option`; None when it was not given.

    Raises:
        UsageError: it is not a duration.
    """
    if text is None:
        return None
    try:
        return parse_duration(text)
    except ValueError as error:
        raise UsageError(f"{option}: {error}", hint="write it like 90s or 5m") from error
