"""Preflight as the supervisor runs it: in a disposable child, because a check may touch a disk that hangs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.events import ChecksDone
from ..host.offload import Offload, OffloadFailed
from ..model import wire
from ..model.finding import Finding, Level

if TYPE_CHECKING:
    from .context import Context


class PreflightStep:
    """Runs the checks once; emits `ChecksDone`."""

    def __init__(self, context: Context) -> None:
        """Nothing runs before `begin`."""
        self._context = context
        self._work: Offload | None = None

    def begin(self) -> None:
        """Start the checks; a run that is taken up again checks again. An automatic attempt waits a little first."""
        wait_s = self._read_pause() if self._context.reason == "retry" else 0.0
        if wait_s:
            self._context.recorder.event("retry_wait", wait_s=wait_s)
            self._context.loop.timers.arm("retry_wait", wait_s, self._check)
        else:
            self._check()

    def _read_pause(self) -> float:
        from .retrying import read_wait_s

        # Within the deadline of the checks, which has begun already.
        most_s = self._context.spec.timeouts.preflight_s / 2
        return min(read_wait_s(self._context.run_dir, self._context.attempt), most_s)

    def _check(self) -> None:
        context = self._context
        if context.rules_problem is not None:
            words = str(context.rules_problem)
            self._done((Finding("rules", Level.FAIL, "rules file", words, context.rules_problem.hint),))
            return
        self.abandon()
        from .preflight import run_checks

        def work() -> object:
            return wire.encode(
                run_checks(context.spec, context.rules, environ=context.environ, run_dir=context.run_dir)
            )

        self._work = Offload(work)
        context.loop.add(self._work.fileno(), self._take)
        # The child is at work on another core; what comes next is loaded meanwhile.
        from . import starting  # noqa: F401

    def abandon(self) -> None:
        """Nobody waits for the answer any more: a check that hangs must not outlive the run."""
        self._context.loop.timers.disarm("retry_wait")
        if self._work is not None:
            self._context.loop.remove(self._work.fileno())
            self._work.abandon()
            self._work = None

    def _take(self) -> None:
        assert self._work is not None
        if not self._work.is_done():
            return
        self._context.loop.remove(self._work.fileno())
        try:
            findings = tuple(wire.decode(Finding, value) for value in self._work.result())
        except OffloadFailed as error:
            findings = (Finding("preflight.internal", Level.FAIL, "preflight", str(error), "see supervisor.log"),)
        self._work = None
        self._done(findings)

    def _done(self, findings: tuple[Finding, ...]) -> None:
        self._context.recorder.findings(wire.PREFLIGHT, findings)
        self._context.emit(ChecksDone(findings))
