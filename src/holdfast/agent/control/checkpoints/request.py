"""A checkpoint on request: asked for, waited for, told as a record."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING

from holdfast.agent.caller import describe_caller
from holdfast.host import clock
from holdfast.model.errors import ResourceBusy
from holdfast.model.record import record

from . import await_answer
from .await_answer import RequestPhase

if TYPE_CHECKING:
    from collections.abc import Callable

    from .await_answer import CheckpointProgress

EXIT_NOT_SAVED = ResourceBusy.exit_code
"""As EX_TEMPFAIL of sysexits.h: try again later."""
UNANSWERED_S = 10.0
"""After so long without the job it is said who does not take a request up: that may be the reason."""


@record
class CheckpointAnswer:
    """What became of a request. `condition` and `note` are those of the run; None when the request was not waited for.

    `exit_code` 0: saved, or only asked. 75: not saved in the time to wait, or never.
    """

    run_id: str
    attempt: int
    id: str
    phase: RequestPhase
    saved: bool
    step: int | None
    path: str | None
    step_when_asked: int | None
    waited_s: float
    condition: str | None
    note: str | None
    exit_code: int


def request_checkpoint(
    run_dir: str, *, reason: str, wait_s: float | None, tell: Callable[[str], None]
) -> CheckpointAnswer:
    """Ask a run for a checkpoint and wait so long for it; None does not wait. `tell` hears how far it has come.

    Raises:
        UsageError: its job does not run.
        NotPermitted, StorageError: it cannot be asked.
    """
    asked = await_answer.request_checkpoint(run_dir, by=describe_caller(), reason=reason)
    name = os.path.basename(run_dir)
    saving, waited_s = None, 0.0
    if wait_s is not None:
        began = clock.monotonic_s()
        at = "" if asked.step is None else f" at step {asked.step}"
        tell(f"{name}: asked{at}; waiting for a newer checkpoint")
        saving = await_answer.wait_saved(asked, wait_s=wait_s, tell=_ProgressNotice(name, tell))
        waited_s = round(clock.monotonic_s() - began, 3)
    saved = saving is not None and saving.phase is RequestPhase.SAVED
    return CheckpointAnswer(
        run_id=name,
        attempt=asked.attempt,
        id=asked.request.id,
        phase=RequestPhase.ASKED if saving is None else saving.phase,
        saved=saved,
        step=None if saving is None else saving.step,
        path=None if saving is None else saving.path,
        step_when_asked=asked.step,
        waited_s=waited_s,
        condition=None if saving is None else saving.view.condition,
        note=None if saving is None else saving.view.note,
        exit_code=0 if saved or saving is None else EXIT_NOT_SAVED,
    )


class _ProgressNotice:
    """Says once that the job has taken the request up, and once who does not, where nobody has for a while."""

    def __init__(self, name: str, tell: Callable[[str], None]) -> None:
        self._name, self._tell, self._told = name, tell, False
        self._doubt_s = clock.monotonic_s() + UNANSWERED_S

    def __call__(self, saving: CheckpointProgress) -> None:
        if not self._told and saving.phase is RequestPhase.TAKEN_UP:
            self._told, self._doubt_s = True, math.inf
            self._tell(f"{self._name}: the job has taken it up")
        elif saving.phase in (RequestPhase.ASKED, RequestPhase.PASSED_ON) and clock.monotonic_s() >= self._doubt_s:
            self._doubt_s = math.inf
            who = "only a script that uses holdfast.training does, at its next step"
            self._tell(f"{self._name}: not taken up yet; {who}")
