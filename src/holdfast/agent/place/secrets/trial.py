"""The entry ``notify``: sends a test message from this box, by the ways that a desk says on standard input."""

from __future__ import annotations

import os

from holdfast.agent.messages.trial import send_trial
from holdfast.agent.place.answer import answer, read_input
from holdfast.model import wire
from holdfast.model.errors import UsageError
from holdfast.model.job import Channels, Notify

WHAT = "whom to tell"


def main(_words: list[str]) -> int:
    """Be the entry ``notify``."""
    os.umask(0o077)
    return answer(_send)


def _send() -> dict[str, object]:
    asked = read_input(WHAT)
    try:
        notify = wire.decode(Notify, asked.get("notify"), WHAT)
        channels = wire.decode(Channels, asked.get("channels"), WHAT)
    except wire.WireError as error:
        raise UsageError(f"{WHAT} is not as a desk sends it: {error}") from error
    return {"problems": send_trial(notify, channels, str(asked.get("place", "")))}
