"""What follows when a run of the queue is over: proven done, begun again, or left to a person."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.host.clock import epoch_s
from holdfast.host.files import files
from holdfast.model import wire
from holdfast.model.queue import JobState
from holdfast.model.run import Outcome
from holdfast.model.units import format_count

from .proof import judge_ended
from .requeue import settle_requeue

if TYPE_CHECKING:
    from holdfast.agent.messages.group_end import GroupMessages
    from holdfast.model.queue import QueuedJob
    from holdfast.model.run import Ended
    from holdfast.store.queue.queue import Queue

    from .watch import WatchedRun

BY_CLAIM = "the claim of its job"
"""Who ends a run of which another box has taken the job over (`agent.supervise.watch.claims`)."""
HOURS_FINDINGS = frozenset({"rules.allowed_hours", "rules.quiet_times"})
"""Checks that fail for nothing but the time of day."""


class JobEndings:
    """The ends of one queue's jobs, and how many of a group's have failed in a row."""

    def __init__(self, queue: Queue, messages: GroupMessages) -> None:
        """None has been seen."""
        self._queue, self._messages = queue, messages
        self._failed_in_row: dict[str, int] = {}

    def end(self, run: WatchedRun) -> None:
        """A run is over: prove it, begin it again, or leave it to a person."""
        ended, job = run.look.ended, run.job
        assert ended is not None
        facts = _facts_of(run, ended)
        if ended.outcome is Outcome.SUCCEEDED:
            state, note = judge_ended(job, run.run_dir, job.sha256)
            # Two steps, each with its evidence, and one commit.
            self._queue.move_many([(job.id, JobState.PRODUCED, facts), (job.id, state, {"note": note})])
            self._count(job, state)
            return
        if ended.request is not None and ended.request.by.startswith(BY_CLAIM):
            self._queue.move_on(job.id, JobState.ELSEWHERE, **{**facts, "note": ended.evidence})
        elif _was_closed(ended):
            self._queue.move_on(job.id, JobState.QUEUED, **{**facts, "note": ended.evidence})
        else:
            again = settle_requeue(run.run_dir)
            if again.again:
                when = {"not_before": epoch_s() + again.wait_s, "requeued": job.requeued + 1, "note": again.why}
                self._queue.move_on(job.id, JobState.QUEUED, **{**facts, **when})
            else:
                state = JobState.CANCELLED if ended.outcome is Outcome.STOPPED else JobState.FAILED
                self._close(job, state, {**facts, "note": f"{ended.evidence}; {again.why}"})

    def judge(self, job: QueuedJob) -> None:
        """Hold a run that succeeded against the roster (QUEUE-16): only proven is done."""
        assert job.run_dir is not None
        state, note = judge_ended(job, job.run_dir, job.sha256)
        self._close(job, state, {"note": note})

    def _close(self, job: QueuedJob, state: JobState, facts: dict[str, object]) -> None:
        self._queue.move_on(job.id, state, **facts)
        self._count(job, state)

    def _count(self, job: QueuedJob, state: JobState) -> None:
        """Count an end: a proven job ends a row of failures."""
        if state is JobState.DONE:
            self._failed_in_row[job.group] = 0
        elif state is JobState.FAILED:
            self._count_failure(job)
        self._messages.tell(job.group, job.run_dir)

    def _count_failure(self, job: QueuedJob) -> None:
        """So many failures in a row hold the group, where somebody asked for that."""
        group = self._queue.groups().get(job.group)
        row = self._failed_in_row[job.group] = self._failed_in_row.get(job.group, 0) + 1
        if group is not None and 0 < group.hold_after <= row and not group.held:
            self._failed_in_row[job.group] = 0
            self._queue.hold_group(job.group, f"{format_count(row, 'job')} in a row failed, the last was {job.label}")


def _facts_of(run: WatchedRun, ended: Ended) -> dict[str, object]:
    """What the queue keeps of an attempt's end."""
    path = f"{wire.attempt_dir(run.run_dir, run.look.attempt)}/{wire.EXIT}"
    try:
        failure = wire.parse_object(files.read_bytes(path), path).get("failure_class")
    except (OSError, wire.WireError):
        failure = None
    return {
        "outcome": ended.outcome.value,
        "exit_code": ended.exit_code,
        "failure": failure if isinstance(failure, str) else "",
        "attempts": run.look.attempt,
        "ended_at": epoch_s(),
    }


def _was_closed(ended: Ended) -> bool:
    """Whether the run was refused for nothing but the time of day, which had come between the choice and its checks."""
    refusal = ended.refusal
    return refusal is not None and bool(refusal.findings) and all(f.id in HOURS_FINDINGS for f in refusal.findings)
