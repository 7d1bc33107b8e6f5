"""What ``holdfast wait`` says: how far it is while it waits, and in the end what is missing and how to get it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from holdfast.core.queue.words import name_labels
from holdfast.model.queue import JobState
from holdfast.model.run import Outcome
from holdfast.model.units import format_duration

from . import clean, note
from .redrawn_line import RedrawnLine

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.agent.queue.wait.missing import MissingJob
    from holdfast.agent.queue.wait.names import Waited, WaitedRun
    from holdfast.agent.queue.wait.roster import WaitState

MOST_LISTED = 20
TOLD_EVERY_S = 1.0
ESTIMATED_EVERY_S = 10.0
GRAVITY = (JobState.FAILED, JobState.CANCELLED, JobState.HELD, JobState.BLOCKED)


class ProgressLine:
    """The progress on a terminal, redrawn in place; nothing elsewhere."""

    def __init__(self, *, silent: bool) -> None:
        """Begin with nothing said."""
        self._line = RedrawnLine(silent=silent)
        self._told_at = self._estimated_at = float("-inf")
        self._estimate = ""

    def __call__(self, seen: WaitState, estimate: Callable[[], str]) -> None:
        """Hear one look, and what answers how long it takes still."""
        now = time.monotonic()
        if not self._line.shows or (now - self._told_at < TOLD_EVERY_S and seen.open):
            return
        self._told_at = now
        if not self._estimate or now - self._estimated_at >= ESTIMATED_EVERY_S:
            self._estimated_at, self._estimate = now, estimate()
        self._line.draw(", ".join(filter(None, (seen.describe(), self._estimate))))

    def close(self) -> None:
        """End the line."""
        self._line.close()


def print_waited(waited: Waited) -> None:
    """How the wait ended."""
    for text in waited.notes:
        note(text)
    if waited.for_jobs:
        _print_jobs(waited)
    for run in waited.runs:
        note(run.gone or _describe_run(run))
        if run.doubt:
            note(f"{run.run_id}: in doubt: {run.doubt} (holdfast diagnose {run.run_id})")
        for warning in run.warnings:
            note(f"{run.run_id}: warning: {warning} (holdfast show {run.run_id})")


def _describe_run(run: WaitedRun) -> str:
    if run.timed_out:
        return f"{run.run_id}: no end was seen in this time; it is {run.condition}{f': {run.note}' if run.note else ''}"
    return f"{run.run_id} {run.condition} (exit {run.exit_code}): {run.note}"


def _print_jobs(waited: Waited) -> None:
    missing = waited.missing
    if not missing and waited.done == waited.total:
        print(f"done: {waited.summary}")
        return
    print(f"{'not yet done' if waited.timed_out else 'incomplete'}: {waited.summary}")
    for job in sorted(missing, key=_find_gravity)[:MOST_LISTED]:
        print(f"  {clean(describe_missing(job))}")
    if len(missing) > MOST_LISTED:
        print(f"  and {len(missing) - MOST_LISTED} more: holdfast queue ls")
    if waited.stuck:
        note(f"nothing goes on by itself: {waited.stuck}")
    failed = [job for job in missing if job.state is JobState.FAILED and job.run_id]
    if failed:
        note(f"find out why: holdfast diagnose {failed[0].run_id}")
    # An older holdfast at a place says the whole alone.
    again = waited.rerun_failed or ("" if waited.rerun_cancelled else waited.rerun)
    if again and not waited.timed_out:
        note(f"try again what is missing{', once its cause is mended' if failed else ''}: {again}")
    doubted = [job.job for job in failed if job.outcome == Outcome.SUCCEEDED.value]
    if doubted:
        note(f"or, if its result is right after all: holdfast queue accept {doubted[0]}")
    cancelled = [job.job for job in missing if job.state is JobState.CANCELLED]
    if waited.rerun_cancelled and not waited.timed_out:
        wanted = "it is" if len(cancelled) == 1 else "they are"
        note(f"cancelled: {name_labels(cancelled)}; if {wanted} still wanted: {waited.rerun_cancelled}")


def _find_gravity(job: MissingJob) -> int:
    return GRAVITY.index(job.state) if job.state in GRAVITY else len(GRAVITY)


def describe_missing(job: MissingJob) -> str:
    """One job and how it stands, in a line."""
    words = [job.condition or job.state.value]
    if job.state is JobState.FAILED:
        words += [job.failure or job.outcome or ""]
        words += [f"exit {job.exit_code}"] if job.exit_code is not None else []
    ended = "" if job.seconds is None else f" after {format_duration(job.seconds)}"
    said = f": {job.note}" if job.note else ""
    return f"{job.job}  {', '.join(word for word in words if word)}{ended}{said}"
