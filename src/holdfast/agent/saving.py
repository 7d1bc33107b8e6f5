"""Passing on a person's wish that the job save and go on (LIB-17): from ``checkpoint_wanted.json`` to the job's file.

The wish stays where it is, as every wish does; that it was passed on, or why not, is an event with its id, and so a
supervisor that takes over repeats nothing. The job answers by removing the request and by a newer durable step in its
heartbeat. A request that the job has not taken up yet serves whoever asks meanwhile too.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ..host import files
from ..model import wire
from ..model.run import Running

if TYPE_CHECKING:
    from ..model.run import CheckpointWish, State
    from .context import Context

PASSED_ON = "checkpoint_requested"
REFUSED = "checkpoint_refused"


class SaveRequests:
    """The wishes for a checkpoint of one attempt, as its supervisor treats them."""

    def __init__(self, context: Context) -> None:
        """Nothing is looked at before `look`."""
        self._context = context
        self._seen: CheckpointWish | None = None

    def look(self, state: State) -> None:
        """Pass on what is wanted, once; only a job that runs can be asked."""
        recorder = self._context.recorder
        wish = recorder.read_checkpoint_wish()
        if wish is None or wish == self._seen:
            return
        first, self._seen = self._seen is None, wish
        if first and self._was_answered(wish.id):
            return
        if not isinstance(state, Running):
            recorder.event(REFUSED, id=wish.id, by=wish.by, state=type(state).__name__.lower())
            return
        pending = os.path.lexists(recorder.path(wire.CHECKPOINT_REQUEST))
        if not pending:
            content = {"reason": "operator", "at": wish.at, "by": wish.by, "id": wish.id}
            recorder.commit(wire.CHECKPOINT_REQUEST, wire.to_bytes(content))
        recorder.event(PASSED_ON, id=wish.id, by=wish.by, reason=wish.reason, pending=pending)

    def _was_answered(self, wish_id: str) -> bool:
        """Whether this supervisor, or one before it, has treated the wish."""
        try:
            lines = list(files.read_lines(self._context.recorder.path(wire.EVENTS)))
        except OSError:
            return False
        names = (f'"event": "{PASSED_ON}"'.encode(), f'"event": "{REFUSED}"'.encode())
        sign = f'"id": "{wish_id}"'.encode()
        return any(sign in line and any(name in line for name in names) for line in lines)
