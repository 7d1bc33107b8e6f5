"""A checkpoint on request for a person: the words while it is waited for, and the account of it afterwards."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.agent import acting, checkpointing
from holdfast.agent.checkpointing import Phase
from holdfast.host import clock
from holdfast.model.errors import ResourceBusy

from .render import note

if TYPE_CHECKING:
    from holdfast.agent.checkpointing import Asked, Saving

    from .runs import Found

EXIT_NOT_SAVED = ResourceBusy.exit_code
"""As EX_TEMPFAIL of sysexits.h: try again later."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a wish; `saving` is None when it was not waited for."""

    asked: Asked
    saving: Saving | None
    waited_s: float

    @property
    def exit_code(self) -> int:
        """0: saved, or only asked. 75: not saved in the time to wait, or never."""
        return 0 if self.saving is None or self.saving.phase is Phase.SAVED else EXIT_NOT_SAVED

    def encode(self, run_id: str) -> dict[str, Any]:
        """The JSON object of ``checkpoint --json``."""
        saving = self.saving
        return {
            "run_id": run_id,
            "attempt": self.asked.attempt,
            "id": self.asked.wish.id,
            "phase": Phase.ASKED if saving is None else saving.phase,
            "saved": saving is not None and saving.phase is Phase.SAVED,
            "step": None if saving is None else saving.step,
            "path": None if saving is None else saving.path,
            "step_when_asked": self.asked.step,
            "waited_s": round(self.waited_s, 3),
            "condition": None if saving is None else saving.view.condition,
            "exit_code": self.exit_code,
        }


class Teller:
    """Says on standard error how far the wish has come; `quiet` says nothing."""

    def __init__(self, asked: Asked, *, quiet: bool = False) -> None:
        """Say that it was asked."""
        self._quiet = quiet
        self._said = Phase.ASKED
        at = "" if asked.step is None else f" at step {asked.step}"
        if not quiet:
            note(f"{os.path.basename(asked.run_dir)}: asked{at}; waiting for a newer checkpoint")

    def __call__(self, saving: Saving) -> None:
        """Hear one look."""
        if not self._quiet and saving.phase is Phase.TAKEN_UP and self._said is not Phase.TAKEN_UP:
            self._said = Phase.TAKEN_UP
            note(f"{saving.view.run_id}: the job has taken it up")


def save_run(found: Found, *, reason: str, wait_s: float | None, quiet: bool) -> Answer:
    """Ask a run for a checkpoint and wait so long for it; None does not wait.

    Raises:
        UsageError: its job does not run.
        NotPermitted, StorageError: it cannot be asked.
    """
    asked = checkpointing.ask(found.run_dir, by=acting.describe_caller(), reason=reason)
    if wait_s is None:
        return Answer(asked, None, 0.0)
    began = clock.monotonic_s()
    saving = checkpointing.wait_saved(asked, wait_s=wait_s, tell=Teller(asked, quiet=quiet))
    return Answer(asked, saving, clock.monotonic_s() - began)


def report_answer(answer: Answer, run_id: str) -> None:
    """Print the account."""
    saving = answer.saving
    if saving is None:
        print(f"{run_id}: asked to save a checkpoint and go on")
        return
    if saving.phase is Phase.SAVED:
        print(f"{run_id}: saved step {saving.step}: {saving.path}")
        return
    waited = f"within {answer.waited_s:.0f} s"
    if saving.phase is Phase.ENDED:
        print(f"{run_id} ended before it saved: {saving.view.condition}: {saving.view.note}")
    elif saving.phase is Phase.REFUSED:
        print(f"{run_id} was not asked: its job no longer runs ({saving.view.condition})")
    elif saving.phase is Phase.TAKEN_UP:
        print(f"{run_id} has taken the request up, and no newer checkpoint is durable {waited}")
        note(f"it may still be saving; see its output: holdfast logs {run_id}")
    elif saving.phase is Phase.PASSED_ON:
        print(f"{run_id}: the job has not answered {waited}; does the script use holdfast.training?")
        note("the request stays: a job that looks for it at a later step still saves")
    else:
        print(f"{run_id}: its supervisor has not passed the request on {waited}")
        note(f"see holdfast show {run_id}")
