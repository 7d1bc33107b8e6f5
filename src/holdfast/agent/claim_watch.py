"""The claim of a run whose cell several boxes share: shown to be alive while the run lives, given up by ending it.

The supervisor holds the claim, because it lives exactly as long as the job may: such a run's job is ended when its
supervisor dies. Each beat is made in a disposable child, since the shared directory may hang. A claim that was taken
over, or that could not be renewed for most of its expiry, ends the run before anybody else may begin the cell.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ..core.events import StopWanted
from ..host import files
from ..host.clock import boottime_ns
from ..host.offload import Offload, OffloadFailed
from ..model import wire
from ..model.run import Ended, StopCause, StopRequest

if TYPE_CHECKING:
    from ..host.claims import Claim, End
    from .context import Context

SAFE_SHARE = 0.6
"""What part of the expiry may pass without a beat. The rest is for ending the job, and for clocks that differ."""
END_WITHIN_S = 10.0


def write_claim(run_dir: str, claim: Claim, expiry_s: float) -> None:
    """Leave a run its claim: before its supervisor is started."""
    record = {"directory": claim.directory, "number": claim.number, "token": claim.token, "expiry_s": expiry_s}
    files.commit(f"{run_dir}/{wire.CLAIM}", wire.to_bytes(record))


def read_claim(run_dir: str) -> tuple[Claim, float] | None:
    """The claim of a run and its expiry in seconds; None when its cell is not shared.

    Raises:
        OSError, WireError: there is one, and it cannot be read.
    """
    from ..host.claims import Claim

    path = f"{run_dir}/{wire.CLAIM}"
    try:
        found = wire.parse_object(files.read_bytes(path), path)
    except FileNotFoundError:
        return None
    try:
        claim = Claim(str(found["directory"]), int(found["number"]), str(found["token"]))
        return claim, float(found["expiry_s"])
    except (KeyError, TypeError, ValueError) as error:
        raise wire.WireError(f"{path} is damaged: {error!r}") from error


def _now_s() -> float:
    """Suspend counts: a box that slept through the expiry has lost its claims."""
    return boottime_ns() / 1e9


def _is_followed(context: Context) -> bool:
    from .retrying import Following, find_following

    return find_following(context.run_dir, context.attempt) is Following.BEGUN


class ClaimWatch:
    """Keeps one run's claim from its supervisor's start to its end."""

    def __init__(self, context: Context) -> None:
        """Nothing is done before `begin`."""
        self._context = context
        self._claim: Claim | None = None
        self._expiry_s = 0.0
        self._beaten_s = 0.0
        self._work: Offload | None = None
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
        from ..host.claims import End, end_claim

        claim, view = self._claim, self._context
        if _is_followed(view):
            return
        # A cell that never ran, because there was no card for it, is anybody's.
        outcome = "released" if ended.started_at is None and ended.refusal is not None else ended.outcome.value
        end: End = End(outcome, os.uname().nodename, view.run_dir, ended.at, ended.exit_code)
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
        from ..host.claims import BEATS

        loop.timers.arm(self, self._expiry_s / BEATS, self._on_time)
        if self._work is not None:
            return
        from ..host.claims import renew

        try:
            work = self._work = Offload(lambda: renew(claim).value)
        except OSError:
            return
        self._context.helpers.add(work.pid)
        loop.add(work.fileno(), lambda: self._take(work))

    def _on_time(self) -> None:
        if _now_s() - self._beaten_s > SAFE_SHARE * self._expiry_s:
            self._give_up(f"it could not be renewed for {_now_s() - self._beaten_s:.0f} s")
            return
        self._beat()

    def _take(self, work: Offload) -> None:
        if not work.is_done():
            return
        self._forget()
        try:
            answer = work.result()
        except OffloadFailed as error:
            self._context.recorder.log(f"the claim was not renewed: {error}")
            return
        if answer == "fenced":
            self._give_up("another box has taken it over")
        else:
            self._beaten_s = _now_s()

    def _give_up(self, why: str) -> None:
        """End the run: from here on the cell may be somebody else's."""
        self._drop()
        if self._lost:
            return
        self._lost = True
        self._context.recorder.event("claim_lost", why=why)
        request = StopRequest(StopCause.PREEMPTION, "the claim of its cell", force=True, detail=why)
        self._context.emit(StopWanted(request))

    def _forget(self) -> None:
        work, self._work = self._work, None
        if work is not None:
            self._context.loop.remove(work.fileno())
            self._context.helpers.discard(work.pid)

    def _drop(self) -> None:
        work = self._work
        self._forget()
        self._context.loop.timers.disarm(self)
        if work is not None:
            work.abandon()
