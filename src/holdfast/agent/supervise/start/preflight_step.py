"""Runs preflight in a disposable child, because a check may touch a disk that hangs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.agent.supervise.plan import find_pause_s
from holdfast.core.run.events import ChecksDone
from holdfast.model import wire
from holdfast.model.container import IMAGE_RECORD
from holdfast.model.finding import Finding, Level

from .same_code import check_same_code

if TYPE_CHECKING:
    from holdfast.agent.supervise.context import SupervisorContext
    from holdfast.agent.supervise.loop import Child


class PreflightStep:
    """Runs the checks once; emits `ChecksDone`."""

    def __init__(self, context: SupervisorContext) -> None:
        """Nothing runs before `begin`."""
        self._context = context
        self._child: Child | None = None

    def begin(self) -> None:
        """Start the checks; a run that is taken up again checks again. An automatic attempt waits a little first."""
        wait_s = find_pause_s(self._context)
        if wait_s:
            self._context.recorder.event("retry_wait", wait_s=wait_s)
            self._context.loop.timers.arm("retry_wait", wait_s, self._check)
        else:
            self._check()

    def _check(self) -> None:
        context = self._context
        if context.rules_problem is not None:
            words = str(context.rules_problem)
            self._done((Finding("rules", Level.FAIL, "rules file", words, context.rules_problem.hint),))
            return
        self.abandon()

        def work() -> object:
            from holdfast.agent.checks.preflight import run_checks  # lazy: the checks are loaded by their child alone

            image = "" if context.spec.container.image is None else context.recorder.path(IMAGE_RECORD)
            found = run_checks(
                context.spec,
                context.rules,
                environ=context.environ,
                run_dir=context.run_dir,
                image_record=image,
                profile=context.profile,
            )
            return wire.encode((*check_same_code(context), *found))

        self._child = context.loop.run_child(
            work,
            lambda values: self._done(tuple(wire.decode(Finding, value) for value in values)),
            lambda why: self._done((_note_failure(why),)),
        )

    def abandon(self) -> None:
        """Nobody waits for the answer any more: a check that hangs must not outlive the run."""
        self._context.loop.timers.disarm("retry_wait")
        if self._child is not None:
            self._child.abandon()

    def _done(self, findings: tuple[Finding, ...]) -> None:
        self._context.recorder.findings(wire.PREFLIGHT, findings)
        # A request to stop that came meanwhile goes first: what failed may have failed of its signal.
        self._context.loop.take_signals()
        self._context.emit(ChecksDone(findings))


def _note_failure(why: str) -> Finding:
    return Finding("preflight.internal", Level.FAIL, "preflight", why, "see supervisor.log")
