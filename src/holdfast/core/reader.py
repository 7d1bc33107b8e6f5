"""The time zone in which moments are shown and read: that of the desk that sent a command, else of this box."""

from __future__ import annotations


class Reader:
    """`zone` is ``NAME +HHMM`` of the desk that sent this command, its offset now; empty: the zone of this box."""

    def __init__(self) -> None:
        """This box."""
        self.zone = ""


READER = Reader()
"""The one of this process."""
