"""Where the jobs of a sweep stand by what is on disk, and by Slurm's word where that has no end: one look for all."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.agent.queue.proof import gather_evidence
from holdfast.agent.queue.roster import RosterItem, RosterReport, compare_items
from holdfast.agent.view.observe import observe_run
from holdfast.agent.view.run_view import is_never_taken
from holdfast.agent.view.runs.sweeps import ArraySweep, FoundSweep, SweepJob, read_sweep
from holdfast.agent.view.scheduled import apply_word, ask, is_open, judge_end
from holdfast.core.queue.completion import JobEvidence, ProofStatus
from holdfast.core.queue.completion import judge_completion as judge_evidence
from holdfast.core.slurm.arrays import name_rerun
from holdfast.model.errors import StorageError
from holdfast.model.queue import JobState, QueuedJob
from holdfast.model.record import record, replace
from holdfast.model.run import Outcome
from holdfast.model.scheduler import Phase, SchedulerReport

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.agent.view.run_view import RunView

NOTHING = JobEvidence(exists=False)


@record
class JobLook:
    """One job as this look found it; `word` is the scheduler's where it was asked, `evidence` what proves an end."""

    view: RunView
    item: RosterItem
    word: SchedulerReport | None = None
    evidence: JobEvidence = NOTHING

    @property
    def job(self) -> QueuedJob:
        """The job as a queue would show it."""
        return self.item.job


def require_sweep(found: FoundSweep) -> ArraySweep:
    """The record of a sweep that was found.

    Raises:
        StorageError: it cannot be read, or has gone.
    """
    sweep = read_sweep(found.directory)
    if sweep is None:
        raise StorageError(f"{found.directory} has gone", hint="somebody removed the sweep")
    return sweep


def look_at_jobs(found: FoundSweep, sweep: ArraySweep, *, deep: bool = False) -> tuple[JobLook, ...]:
    """Every job in the order in which it was handed in; `deep` reads the results whole."""
    views = {job.run_id: observe_run(f"{found.root}/{job.run_id}") for job in sweep.jobs}
    words, silent = ask(view for view in views.values() if is_open(view))
    return tuple(
        _look(found.root, sweep.name, number, one, views[one.run_id], words, silent, deep=deep)
        for number, one in enumerate(sweep.jobs, 1)
    )


def _look(  # noqa: PLR0917 - all that is known of a job
    root: str,
    group: str,
    number: int,
    one: SweepJob,
    view: RunView,
    words: dict[str, SchedulerReport],
    silent: str,
    *,
    deep: bool,
) -> JobLook:
    word = words.get(view.run_dir)
    job = QueuedJob(
        number,
        one.run_id,
        group,
        one.given.name,
        JobState.QUEUED,
        expected_s=one.given.expected_s,
        params=one.given.params,
        sha256=one.given.sha256,
        run_id=one.run_id,
        runs_root=root,
        attempts=view.attempt - 1 if is_never_taken(view) else view.attempt,
        exit_code=view.exit_code,
        failure=str(view.exit.get("failure_class") or ""),
    )

    def stand(state: JobState, standing: ProofStatus, why: str) -> JobLook:
        return JobLook(view, RosterItem(replace(job, state=state, note=why), standing, why, view.run_dir), word)

    if not os.path.isdir(view.run_dir):
        return stand(JobState.HELD, ProofStatus.MISSING, "its run directory is not there")
    goes_on = is_open(view) and (word is None or word.phase is not Phase.OVER)
    if view.over and not goes_on:
        return _prove(view, job, word, deep=deep)
    heard = view if word is None else apply_word(view, word)
    why = f"{heard.condition}: {heard.note}" if heard.note else heard.condition
    if word is None and silent:
        why = f"{why}; {silent}"
    if not one.array:
        return stand(JobState.HELD, ProofStatus.MISSING, "it was not handed to Slurm yet")
    if word is not None and word.phase is Phase.OVER:
        stopped = judge_end(view, word)[0] is Outcome.STOPPED
        return stand(JobState.CANCELLED if stopped else JobState.FAILED, ProofStatus.FAILED, why)
    waits = view.over or is_never_taken(view)
    return stand(JobState.QUEUED if waits else JobState.RUNNING, ProofStatus.OPEN, why)


def _prove(view: RunView, job: QueuedJob, word: SchedulerReport | None, *, deep: bool) -> JobLook:
    evidence = gather_evidence(job, view.run_dir, expected_sha=job.sha256, deep=deep)
    proof = judge_evidence(evidence)
    if proof.standing is ProofStatus.OPEN:
        state = JobState.RUNNING
    elif proof.done:
        state = JobState.DONE
    else:
        state = JobState.CANCELLED if evidence.outcome is Outcome.STOPPED else JobState.FAILED
    outcome = None if evidence.outcome is None else evidence.outcome.value
    job = replace(job, state=state, outcome=outcome, note=proof.why)
    return JobLook(view, RosterItem(job, proof.standing, proof.why, proof.path or view.run_dir), word, evidence)


def check_jobs(found: FoundSweep, *, deep: bool = False) -> RosterReport:
    """Hold the jobs of a sweep against what is on disk. Nothing is changed.

    Raises:
        StorageError: the sweep cannot be read.
    """
    sweep = require_sweep(found)
    looks = look_at_jobs(found, sweep, deep=deep)
    items, remarks = compare_items([(look.item, look.evidence) for look in looks], deep=deep)
    left = [item.job for item in items if not item.done]
    hint = "" if items else "there are no jobs: nothing is proven"
    command = find_rerun(sweep.name, left)
    if left and command is None:
        hint = f"what is left waits or runs; `holdfast wait {sweep.name}/` waits for it"
    return RosterReport((sweep.name,), tuple(items), tuple(remarks), command, hint)


def find_rerun(sweep: str, left: Iterable[QueuedJob]) -> str | None:
    """The command that runs again what of these jobs does not wait or run; None where there is nothing of that."""
    again = list_rerun(left, everything=True)
    return name_rerun(sweep, everything=any(job.state is JobState.CANCELLED for job in again)) if again else None


def list_rerun(jobs: Iterable[QueuedJob], *, everything: bool) -> list[QueuedJob]:
    """The jobs that are run again: failed ones, those that Slurm never had, and with `everything` cancelled ones."""
    states = {JobState.FAILED, JobState.HELD} | ({JobState.CANCELLED} if everything else set())
    return [job for job in jobs if job.state in states]
