"""Where the bytes of a job go: to standard output as they are; with their place, where a desk elsewhere follows."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from holdfast.agent.view.live.tail import MISSED
from holdfast.desk.caller import CALLER
from holdfast.desk.route.frames import SAID, build_head
from holdfast.desk.terminal import write_fully

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.agent.view.live.tail import TailReader


class JobOutput:
    """Writes pieces of one attempt's file in full, each as soon as it is there."""

    def __init__(self, run_id: str, attempt: int, reader: TailReader) -> None:
        """`reader` is where the pieces come from. A desk is told at once which run and attempt it is."""
        self._run_id, self._attempt, self._reader = run_id, attempt, reader
        sys.stdout.flush()
        if CALLER.follows:
            write_fully(sys.stdout.buffer, build_head(run_id, attempt, reader.offset, 0, reader.anchored))

    def write(self, pieces: Iterable[bytes]) -> None:
        """Write what the reader answers, piece by piece.

        Raises:
            BrokenPipeError, OutputRefused: as of `write_fully`.
        """
        for data in pieces:
            head = self._build_head(data) if CALLER.follows else b""
            write_fully(sys.stdout.buffer, head + data)

    def _build_head(self, data: bytes) -> bytes:
        size, reader = len(data), self._reader
        if data is MISSED:
            return build_head(self._run_id, self._attempt, reader.offset, size, SAID)
        carry = max(0, reader.anchored - size)
        return build_head(self._run_id, self._attempt, reader.offset - size, size, carry)
