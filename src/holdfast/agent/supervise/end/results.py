"""The copy of a success's results, beside the loop: begun in a child, watched, recorded, given up (POST-07).

The job has ended well and its cards are given back; what becomes of the copy takes nothing of that back. The record
says that it is copied only after it is proven there, and scratch goes only after that is on record.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.agent.control.results.order import STALLED_S, Watch, build_order, describe_progress
from holdfast.core.run.outcome import COPY_FINDING
from holdfast.host.clock import utc_now
from holdfast.host.files import files
from holdfast.host.files.copies.progress import Progress
from holdfast.model import wire
from holdfast.model.finding import Finding, Level
from holdfast.model.record import replace
from holdfast.model.results import ResultsRecord
from holdfast.model.run import CopyState

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.agent.control.results.order import CopyOrder
    from holdfast.agent.supervise.context import SupervisorContext
    from holdfast.agent.supervise.loop import Child

LOOK_EVERY_S = 2.0
PRUNE_WITHIN_S = 60.0
TIMER = "results"
REMEDY = "holdfast results copy RUN copies again; the training is not repeated"


class ResultsCopy:
    """The copy of one attempt; calls `done` once, with what is to be said of it."""

    def __init__(self, context: SupervisorContext, done: Callable[[tuple[Finding, ...]], None]) -> None:
        """Nothing is copied before `begin`."""
        self._context, self._done = context, done
        self._child: Child | None = None
        self._over = self._pruning = False
        to = context.spec.results.to
        assert to is not None, "only a run that declares it copies"
        self._order: CopyOrder = build_order(
            context.run_dir,
            context.attempt,
            context.spec,
            to=to,
            by="holdfast",
            training="exit code 0" + (" and every declared result is in place" if context.spec.artifacts else ""),
            umask=self._read_umask(),
        )
        self._progress = Progress()
        self._watch = Watch(self._progress)

    def begin(self) -> None:
        """Begin in a child that cannot hang us."""
        order, progress, parent = self._order, self._progress, os.getpid()

        def work() -> object:
            from holdfast.agent.control.results.child import (
                copy_results,
            )  # lazy: loaded by this child alone

            return copy_results(order, progress, parent)

        self._record(order.begun)
        self._context.recorder.event("results_copying", to=order.begun.to)
        try:
            self._child = self._context.loop.run_child(work, self._take, self._fail)
        except OSError as error:
            self._fail(f"no process can be had for it: {error.strerror}")
            return
        self._look()

    def end(self, why: str) -> None:
        """Give it up; what was proven by a supervisor before us stays so."""
        if self._over:
            return
        if self._child is None and (before := self._read_done()) is not None:
            self._finish(before)
        elif not self._pruning:
            self._abandon()
            self._fail(why)

    def _look(self) -> None:
        if self._over or self._child is None or not self._child.under_way:
            return
        if self._watch.is_stalled():
            self._abandon()
            self._fail(f"nothing of it moved for {STALLED_S:.0f} s: the file system of {self._order.begun.to} hangs")
            return
        self._record(describe_progress(self._order.begun, self._progress))
        self._context.loop.timers.arm(TIMER, LOOK_EVERY_S, self._look)

    def _abandon(self) -> None:
        if self._child is not None:
            self._child.abandon()
        self._context.loop.timers.disarm(TIMER)

    def _take(self, value: object) -> None:
        self._context.loop.timers.disarm(TIMER)
        try:
            done = wire.decode(ResultsRecord, value)
        except wire.WireError as error:
            self._fail(str(error))
            return
        spec = self._context.spec
        if done.state is CopyState.COPIED and spec.results.prune_scratch and spec.disk.scratch:
            self._record(done)
            self._pruning = True
            self._prune(done)
            return
        self._finish(done)

    def _fail(self, why: str) -> None:
        now = describe_progress(self._order.begun, self._progress)
        self._finish(replace(now, state=CopyState.FAILED, at=utc_now(), problem=why))

    def _prune(self, done: ResultsRecord) -> None:
        """Remove declared scratch, now that the copy is proven and on record (POST-08)."""
        run_dir, spec = self._context.run_dir, self._context.spec

        def work() -> object:
            from holdfast.agent.control.results.child import prune  # lazy: loaded by this child alone

            return prune(run_dir, spec)

        def say(words: object) -> None:
            self._finish(replace(done, pruned=str(words)))

        def fail(why: str) -> None:
            say(f"not all of it: {why}")

        try:
            self._context.loop.run_child(work, say, fail, within_s=PRUNE_WITHIN_S)
        except OSError as error:
            fail(str(error))

    def _finish(self, done: ResultsRecord) -> None:
        self._over = True
        self._record(done)
        self._context.recorder.event(
            "results_copied" if done.state is CopyState.COPIED else "results_not_copied",
            to=done.to,
            files=done.files_done,
            bytes=done.bytes_done,
            **({"problem": done.problem, "tries": done.tries} if done.problem else {}),
        )
        self._done((_build_finding(done),))

    def _record(self, content: ResultsRecord) -> None:
        self._context.recorder.commit(wire.RESULTS, wire.to_bytes(content), durable=content.state is CopyState.COPIED)

    def _read_done(self) -> ResultsRecord | None:
        try:
            path = self._context.recorder.path(wire.RESULTS)
            found = wire.from_bytes(ResultsRecord, files.read_bytes(path), path)
        except (OSError, wire.WireError):
            return None
        return found if found.state is CopyState.COPIED else None

    def _read_umask(self) -> int:
        umask = self._context.recorder.read_manifest().get("umask")
        return umask if isinstance(umask, int) and 0 <= umask <= 0o777 else self._context.umask


def _build_finding(done: ResultsRecord) -> Finding:
    if done.state is not CopyState.COPIED:
        tried = f" ({done.tries} tries)" if done.tries > 1 else ""
        return Finding(COPY_FINDING, Level.FAIL, done.to, f"{done.problem}{tried}", REMEDY)
    words = f"{done.extent}, proven there by size and SHA-256"
    pruned = f"; scratch: {done.pruned}" if done.pruned else ""
    left = done.left_out
    named = f"; left out: {', '.join(item.path for item in left[:3])}{' ...' if len(left) > 3 else ''}" if left else ""
    level = Level.WARN if left else Level.PASS
    return Finding(COPY_FINDING, level, done.to, f"{words}{named}{pruned}", "see results.json" if left else "")
