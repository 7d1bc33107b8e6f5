"""Tells whether cron or systemd calls the patrol on this account (MON-05). Loads little: a preflight asks."""

from __future__ import annotations

import os

from holdfast.host import clock
from holdfast.host.files import files
from holdfast.model import wire

INSTALLED = "patrol-installed.json"
LAST = "patrol-last.txt"
"""What the last tick of an entry said: one tick, so that it never grows."""
LATE = 3.0
"""An entry that has not called for so many of its intervals does not call."""


def is_armed(state: str, now: float) -> bool:
    """Whether an installed entry does call, on present evidence: it was made, or has called, not long ago.

    A record of an entry proves little alone: somebody may have removed the entry by hand. `state` is the user's state
    directory, `now` epoch seconds.
    """
    try:
        installed = wire.parse_object(files.read_bytes(f"{state}/{INSTALLED}"), INSTALLED)
        every_s, made = float(installed["every_s"]), clock.parse_utc(installed["at"])
    except (OSError, wire.WireError, KeyError, TypeError, ValueError):
        return False
    times = [made]
    for name in ("patrol.json", LAST):
        try:
            times.append(os.stat(f"{state}/{name}").st_mtime)
        except OSError:
            continue
    return now - max(times) <= LATE * every_s
