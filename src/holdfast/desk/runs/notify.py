"""Asks a place for a test message, sent from there as its supervisors would."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from holdfast.core.control_characters import one_line
from holdfast.desk.connect import find_place, open_box
from holdfast.model import wire
from holdfast.model.errors import InternalError

if TYPE_CHECKING:
    from holdfast.model.job import Channels, Notify

LIMIT_S = 90.0
LONGEST = 300


def send_trial(place: str, notify: Notify, channels: Channels) -> dict[str, str | None]:
    """What went wrong by way, None where the message was taken.

    Raises:
        UsageError: there is no such place.
        HoldfastError: the place gave no answer.
    """
    asked = {"notify": wire.encode(notify), "channels": wire.encode(channels), "place": place}
    answer = open_box(find_place(place)).entry("notify", stdin=json.dumps(asked).encode("ascii"), limit_s=LIMIT_S)
    problems = answer.get("problems")
    if not isinstance(problems, dict):
        raise InternalError(f"{place}: its answer was not understood: it says nothing of the message")
    return {
        one_line(str(label), LONGEST): None if problem is None else one_line(str(problem), LONGEST)
        for label, problem in problems.items()
    }
