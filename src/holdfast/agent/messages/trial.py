"""A message that only says that messages arrive, by the ways that a job names."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from holdfast.host.clock import utc_now
from holdfast.host.process.offload import Offload, OffloadFailed
from holdfast.host.process.processes import user_name
from holdfast.model import wire

from .deliver import LIMIT_S, Delivery, deliver

if TYPE_CHECKING:
    from holdfast.model.job import Channels, Notify

SUMMARY = "a test message: holdfast can reach you from here"


def send_trial(notify: Notify, channels: Channels, place: str = "") -> dict[str, str | None]:
    """Send it; what went wrong by way, None where it was taken. `place` is what a desk calls this box."""
    facts = {
        "state": "test",
        "summary": SUMMARY,
        "at": utc_now(),
        "host": os.uname().nodename,
        "user": user_name(os.geteuid()),
        "place": place,
    }

    def work() -> object:
        return wire.encode(deliver(notify, channels, facts))

    try:
        answer = Offload(work).wait(LIMIT_S) if sys.platform == "linux" else work()
    except (OffloadFailed, OSError) as error:
        return {"all": str(error)}
    return wire.decode(Delivery, answer).problems
