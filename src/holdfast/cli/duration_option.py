"""A span of time as it is written after an option, as the verbs have it that act at once or wait for something."""

from __future__ import annotations

from typing import overload

from holdfast.model.errors import UsageError
from holdfast.model.units import parse_duration


@overload
def parse_duration_option(text: str, option: str) -> float: ...
@overload
def parse_duration_option(text: str | None, option: str) -> float | None: ...
def parse_duration_option(text: str | None, option: str) -> float | None:
    """Seconds of what stands after `option`; None when it was not given.

    Raises:
        UsageError: it is not a duration.
    """
    if text is None:
        return None
    try:
        return parse_duration(text)
    except ValueError as error:
        words, _, hint = str(error).partition("; ")
        raise UsageError(f"{option}: {words}", hint=hint) from error
