"""Passes a checkpoint request on to the job (LIB-17): from ``checkpoint_wanted.json`` to the job's file.

The request stays where it is, as every request does; that it was passed on, or why not, is an event with its id, and so
a supervisor that takes over repeats nothing. The job answers by removing the request and by a newer durable step in its
heartbeat. A request that the job has not taken up yet serves whoever asks meanwhile too.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.agent.requests import PASSED_ON, REFUSED
from holdfast.model import wire
from holdfast.model.run import Running

if TYPE_CHECKING:
    from holdfast.model.run import CheckpointRequest, State

    from .context import SupervisorContext


class CheckpointRequests:
    """The requests for a checkpoint of one attempt, as its supervisor treats them."""

    def __init__(self, context: SupervisorContext) -> None:
        """Nothing is looked at before `look`."""
        self._context = context
        self._seen: CheckpointRequest | None = None

    def look(self, state: State) -> None:
        """Pass on what is wanted, once; only a job that runs can be asked."""
        recorder = self._context.recorder
        request = recorder.read_checkpoint_request()
        if request is None or request == self._seen:
            return
        first, self._seen = self._seen is None, request
        if first and recorder.was_answered(request.id, PASSED_ON, REFUSED):
            return
        if not isinstance(state, Running):
            recorder.event(REFUSED, id=request.id, by=request.by, state=type(state).__name__.lower())
            return
        pending = os.path.lexists(recorder.path(wire.CHECKPOINT_REQUEST))
        if not pending:
            content = {"reason": "operator", "at": request.at, "by": request.by, "id": request.id}
            recorder.commit(wire.CHECKPOINT_REQUEST, wire.to_bytes(content))
        recorder.event(PASSED_ON, id=request.id, by=request.by, reason=request.reason, pending=pending)
