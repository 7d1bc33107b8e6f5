"""Keeps the claim of a run whose job several boxes share: renewed while the run lives, given up by ending it.

The supervisor holds the claim, because it lives exactly as long as the job may: such a run's job is ended when its
supervisor dies. Each beat is made in a disposable child, since the shared directory may hang. A claim that was taken
over, or that could not be renewed for most of its expiry, ends the run before anybody else may begin the job.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.agent.plan.claim import read_claim
from holdfast.agent.view.retries import is_followed
from holdfast.core.run.events import StopWanted
from holdfast.host.clock import boottime_ns
from holdfast.host.files.claims import BEATS, Claim, ClaimEnd, end_claim, renew_claim
from holdfast.host.process.offload import Offload, OffloadFailed
from holdfast.model import wire
from holdfast.model.run import Ended, StopCause, StopRequest

if TYPE_CHECKING:
    from holdfast.agent.supervise.context import SupervisorContext
    from holdfast.agent.supervise.loop import Child

SAFE_SHARE = 0.6
"""What part of the expiry may pass without a beat. The rest is for ending the job, and for clocks that differ."""
END_WITHIN_S = 10.0


def _now_s() -> float:
    """Suspend counts: a box that slept through the expiry has lost its claims."""
    return boottime_ns() / 1e9


class ClaimWatch:
    """Keeps one run's claim from its supervisor's start to its end."""

    def __init__(self, context: SupervisorContext) -> None:
        """Nothing is done before `begin`."""
        self._context = context
        self._claim: Claim | None = None
        self._expiry_s = 0.0
        self._beaten_s = 0.0
        self._child: Child | None = None
        self._lost = False

    def begin(self) -> None:
        """Beat from now on, if the run has a claim. One that cannot be read is as good as lost."""
        try:
            found = read_claim(self._context.run_dir)
        except (OSError, wire.WireError) as error:
            self._give_up(f"its claim cannot be read: {error}")
            return
        if found is not None:
            self._claim, self._expiry_s = found
            self._beaten_s = _now_s()
            self._beat()

    def end(self, ended: Ended) -> None:
        """Beat no more, and tell the other boxes how it ended, unless the claim is no longer ours.

        An attempt that is followed by another one hands the claim on to that.
        """
        self._drop()
        if self._claim is None:
            return

        claim, view = self._claim, self._context
        if is_followed(view.run_dir, view.attempt):
            return
        # A job that never ran, because there was no card for it, is anybody's.
        outcome = "released" if ended.started_at is None and ended.refusal is not None else ended.outcome.value
        end: ClaimEnd = ClaimEnd(outcome, os.uname().nodename, view.run_dir, ended.at, ended.exit_code)
        try:
            ours = Offload(lambda: end_claim(claim, end)).wait(END_WITHIN_S)
        except (OffloadFailed, OSError) as error:
            view.recorder.event("claim_end_untold", error=str(error))
            return
        view.recorder.event("claim_ended" if ours else "claim_lost", number=claim.number, outcome=outcome)

    def _beat(self) -> None:
        claim = self._claim
        assert claim is not None
        loop = self._context.loop

        loop.timers.arm(self, self._expiry_s / BEATS, self._on_time)
        if self._child is not None and self._child.under_way:
            return

        try:
            self._child = loop.run_child(lambda: renew_claim(claim).value, self._take, self._note_failure)
        except OSError:
            return

    def _on_time(self) -> None:
        if _now_s() - self._beaten_s > SAFE_SHARE * self._expiry_s:
            self._give_up(f"it could not be renewed for {_now_s() - self._beaten_s:.0f} s")
            return
        self._beat()

    def _take(self, answer: object) -> None:
        if answer == "fenced":
            self._give_up("another box has taken it over")
        else:
            self._beaten_s = _now_s()

    def _note_failure(self, why: str) -> None:
        self._context.recorder.log(f"the claim was not renewed: {why}")

    def _give_up(self, why: str) -> None:
        """End the run: from here on the job may be somebody else's."""
        self._drop()
        if self._lost:
            return
        self._lost = True
        self._context.recorder.event("claim_lost", why=why)
        request = StopRequest(StopCause.PREEMPTION, "the claim of its job", force=True, detail=why)
        self._context.emit(StopWanted(request))

    def _drop(self) -> None:
        self._context.loop.timers.disarm(self)
        if self._child is not None:
            self._child.abandon()
