"""Reads what an internal entry answered: one JSON object, or the description of an error, which is raised here.

A box is a stranger: what it says of an error is taken by type and size, and without what could steer a terminal.
"""

from __future__ import annotations

from holdfast.core.control_characters import clean, one_line
from holdfast.model import wire
from holdfast.model.errors import HoldfastError, InternalError, list_errors
from holdfast.transport.base import Done

LONGEST_MESSAGE = 8000
LONGEST_DETAIL = 1000
MOST_DETAILS = 200
DEEPEST_DETAIL = 4
LONGEST_SEEN = 300


def read_answer(place: str, name: str, done: Done) -> dict[str, object]:
    """The object that the entry `name` answered.

    Raises:
        HoldfastError: what it reported, as the class that its code names; `details` has the place.
        InternalError: it answered nothing that can be read.
    """
    try:
        if done.cut:
            raise wire.WireError("too long")
        answer = wire.parse_object(done.out, name)
        problem = None if answer.get("error") is None else read_error(answer["error"], place)
    except ValueError as error:
        said = done.err.decode("utf-8", "replace").strip().splitlines() or ["nothing was said"]
        seen = one_line(said[-1], LONGEST_SEEN)
        raise InternalError(
            f"place {place}: `{name}` gave no answer that can be read (exit code {done.code}): {seen}",
            details={"place": place},
        ) from error
    if problem is not None:
        raise problem
    return answer


def read_error(value: object, place: str | None = None) -> HoldfastError:
    """The error that `model.errors.describe` described there, as the class that it is here.

    Raises:
        WireError: it has another form.
    """
    if not isinstance(value, dict) or not all(isinstance(value.get(key), str) for key in ("code", "message", "hint")):
        raise wire.WireError("expected the description of an error")
    bounded = _bound(value.get("details"), DEEPEST_DETAIL)
    details = bounded if isinstance(bounded, dict) else {}
    if place is not None:
        details["place"] = place
    made = list_errors().get(value["code"], InternalError)
    return made(
        clean(value["message"][:LONGEST_MESSAGE], keep_newlines=True),
        hint=clean(value["hint"][:LONGEST_MESSAGE], keep_newlines=True),
        details=details,
    )


def _bound(value: object, deepest: int) -> object:
    """A value of JSON, as much of it as a person would read."""
    if isinstance(value, str):
        return clean(value[:LONGEST_DETAIL], keep_newlines=True)
    if isinstance(value, (dict, list)) and not deepest:
        return None
    if isinstance(value, dict):
        items = list(value.items())[:MOST_DETAILS]
        return {clean(str(key)[:LONGEST_SEEN]): _bound(item, deepest - 1) for key, item in items}
    if isinstance(value, list):
        return [_bound(item, deepest - 1) for item in value[:MOST_DETAILS]]
    return value
