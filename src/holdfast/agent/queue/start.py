"""From a queued job to a run with a supervisor: claim, make, start. Each step is committed or can be told from files.

A job is CLAIMED with its run id, and with how many attempts that run had, before anything of it is made. Whoever
comes after a crash takes up what is there: no directory, one that was never complete, an attempt that nobody has
taken up, or a run that lives. So no kill between two instructions makes a second run, or a second attempt.
"""

from __future__ import annotations

import errno
import os
from enum import Enum
from typing import TYPE_CHECKING

from holdfast.agent.control.create import OrderedRun, create_run
from holdfast.agent.control.job.ordered import lay_out, prepare_job
from holdfast.agent.plan.claim import write_claim
from holdfast.core.job.job_hash import hash_job
from holdfast.host.clock import epoch_s, utc_now
from holdfast.host.files import files
from holdfast.host.files.code.store import WORK
from holdfast.host.files.snapshot import hash_file
from holdfast.host.formats.own_bundle import find_own_bundle
from holdfast.model import wire
from holdfast.model.errors import HoldfastError, ResourceBusy, StillAlive, StorageError
from holdfast.model.ids import build_run_id
from holdfast.model.job import JobSpec
from holdfast.model.queue import IfChanged, JobRef, JobState
from holdfast.model.record import record
from holdfast.model.run import Outcome

from . import environment
from .open import describe_removed_needs
from .proof import is_accepted, is_made_good
from .requeue import begin_again
from .shared_jobs import SharedJobs
from .watch import RunPhase, look_at_run

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from holdfast.agent.launch import StartSupervisor
    from holdfast.model.queue import QueuedJob, Submission
    from holdfast.store.queue.queue import Queue

    from .shared_jobs import ClaimAnswer

PASSING = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN}
    | {errno.ESTALE, errno.ENOTCONN, errno.EHOSTDOWN, errno.ETIMEDOUT, errno.EINTR}
)
"""What is wrong with a disk or with the box, not with the job: the job keeps its place and is tried again."""
GPU_WAIT_S = 365 * 86400.0
"""Who was queued waits for cards as long as it takes, unless the job says how long; the rules may say less."""
MOST_HASHED = 1000
BUSY_PAUSE_S = 5.0


class StartOutcome(Enum):
    """What became of the try to start a job."""

    STARTED = "started"
    ELSEWHERE = "elsewhere"
    HELD = "held"
    LATER = "later"
    """This job cannot be begun now (somebody is at its run); it is queued again with a pause."""
    BLOCKED = "blocked"
    """Nothing can be begun now: the disk is full, or no process can be had."""


@record
class StartReport:
    """What was made of a job: the job as it is now, and why in words when it was not started."""

    made: StartOutcome
    job: QueuedJob
    why: str = ""


class JobStarter:
    """Starts jobs of one queue."""

    def __init__(self, queue: Queue, start_supervisor: StartSupervisor) -> None:
        """Nothing is started yet. `start_supervisor`: how an attempt of a run is given its supervisor."""
        self._queue, self._start_supervisor = queue, start_supervisor
        self._queue_id = queue.settings().queue_id
        self._hashes: dict[tuple[str, int, int, int], str] = {}
        self.shared = SharedJobs()

    def start(self, job: QueuedJob) -> StartReport:
        """Claim a queued job and start its run, or the next attempt of the run that it has.

        Raises:
            StorageError: the queue itself cannot be written.
        """
        submission = self._queue.submission_of(job.id)
        changed = self._find_changes(submission.files)
        note = f"changed since submit: {', '.join(changed)}" if changed else ""
        # The job's own directory of runs is looked at anyway, to begin its run there.
        removed = describe_removed_needs(self._queue, (job.id,), below=submission.runs_root)
        if changed and submission.if_changed is IfChanged.HOLD:
            return self._hold(job, f"{note}; `holdfast queue resume {job.label} --accept-changes` runs it as it is")
        try:
            run_id = job.run_id or invent_run_id(submission)
        except ValueError as error:
            return self._hold(job, f"its job cannot be read: {error}")
        # One that the queue has not counted (begun by hand meanwhile, or never settled) is watched, not repeated.
        before = min(count_taken(f"{submission.runs_root}/{run_id}"), job.attempts) if job.run_id else 0
        run_dir = f"{submission.runs_root}/{run_id}"
        counted = job.outcome != Outcome.SUCCEEDED.value and before and is_made_good(run_dir, before)
        if counted or (before and is_accepted(run_dir, before)):
            # A person takes it as it is, or has copied its results: it is looked at again, not begun again.
            before -= 1
        facts = {"run_id": run_id, "attempts": before, "note": "; ".join(filter(None, (note, removed)))}
        return self.resume_start(self._queue.move_on(job.id, JobState.CLAIMED, **facts))

    def resume_start(self, job: QueuedJob) -> StartReport:
        """Go on with a job that is CLAIMED, by us or by a worker that is dead.

        Raises:
            StorageError: the queue itself cannot be written.
        """
        try:
            answer = self._claim(job)
            if answer is not None and answer.claim is None:
                return self._leave_to_others(job, answer)
            attempt = self._make(job, answer)
        except (ResourceBusy, StillAlive) as error:
            return self._retreat(job, StartOutcome.LATER, str(error))
        except HoldfastError as error:
            cause = error.__cause__
            if isinstance(error, StorageError) and isinstance(cause, OSError) and cause.errno in PASSING:
                return self._retreat(job, StartOutcome.BLOCKED, str(error))
            return self._hold(job, f"{error}; {error.hint}" if error.hint else str(error))
        except OSError as error:
            made = StartOutcome.BLOCKED if error.errno in PASSING else StartOutcome.LATER
            return self._retreat(job, made, f"{error.filename or job.run_dir}: {error.strerror}")
        except wire.WireError as error:
            return self._hold(job, f"its job cannot be read: {error}")
        moved = self._queue.move_on(job.id, JobState.RUNNING, attempts=attempt, started_at=epoch_s())
        return StartReport(StartOutcome.STARTED, moved)

    def supervise(self, job: QueuedJob, attempt: int, reason: str, *, without_secrets: bool = False) -> None:
        """Give an attempt of a job's run a supervisor, in the job's environment.

        `without_secrets`: also where those are gone, because nothing is begun in it any more.

        Raises:
            HoldfastError: its environment is gone, or no process can be had.
        """
        assert job.run_dir is not None
        environ, umask = self.environ_of(job, without_secrets=without_secrets)
        previous = os.umask(umask)
        try:
            self._start_supervisor(job.run_dir, attempt, environ=environ, reason=reason)
        finally:
            os.umask(previous)

    def environ_of(self, job: QueuedJob, *, without_secrets: bool = False) -> tuple[dict[str, str], int]:
        """The environment and umask of a job's run.

        Raises:
            StorageError: it cannot be read, or its secrets are gone with the memory that they lay in.
        """
        name = self._queue.submission_of(job.id).environment
        stored = environment.load_environment(name, directory=self._queue.directory)
        if stored.missing and not without_secrets:
            raise StorageError(
                f"its environment lacks {', '.join(stored.missing)}: secrets are kept in memory only and went with it",
                hint=f"give them from a shell that has them: holdfast queue resume {job.label} --with-environment",
            )
        ours = {"HOLDFAST_QUEUE": self._queue.directory, "HOLDFAST_JOB": job.name, "HOLDFAST_GROUP": job.group}
        return {**stored.environ, **ours}, stored.umask

    def _claim(self, job: QueuedJob) -> ClaimAnswer | None:
        """Among several boxes: whether the job is ours to run; None when only this box has it."""
        if job.claims is None:
            return None
        assert job.run_id is not None
        answer = self.shared.claim(job, job.run_id)
        if answer.claim is None and answer.state is None:
            raise ResourceBusy(answer.note)
        return answer

    def _leave_to_others(self, job: QueuedJob, answer: ClaimAnswer) -> StartReport:
        """Another box has it. A run of ours that was begun for it stays on record, one that was not never was."""
        assert answer.state is not None
        forget = {} if job.attempts else {"run_id": None}
        moved = self._queue.move_on(job.id, answer.state, note=answer.note, **forget)
        return StartReport(StartOutcome.ELSEWHERE, moved, answer.note)

    def _make(self, job: QueuedJob, answer: ClaimAnswer | None) -> int:
        """Make what is not there yet of a claimed job's run, and start its supervisor; the attempt's number."""
        assert job.run_dir is not None
        look = look_at_run(job.run_dir, first_attempt=job.attempts + 1)
        if look.phase is RunPhase.MISSING and not job.attempts:
            self._create(job)
            look = look_at_run(job.run_dir)
        if answer is not None and answer.claim is not None:
            write_claim(job.run_dir, answer.claim, answer.expiry_s)
        if look.phase is RunPhase.MISSING:
            environ = self.environ_of(job)[0]
            return begin_again(job.run_dir, environ=environ, start_supervisor=self._start_supervisor)
        if look.phase is RunPhase.UNTAKEN:
            self.supervise(job, look.attempt, look.reason)
        # Anything else is a run that was taken up already: it is watched.
        return look.attempt

    def _create(self, job: QueuedJob) -> None:
        """Make the run's directory, instead of one that was never complete."""
        assert job.run_dir is not None
        assert job.run_id is not None
        # So that a job whose environment is gone makes no run.
        environ, _ = self.environ_of(job)
        submission = self._queue.submission_of(job.id)
        if os.path.lexists(job.run_dir):
            files.remove_tree(job.run_dir)
        create_run(
            build_spec(submission),
            submission.runs_root,
            argv=submission.argv,
            cwd=submission.cwd,
            environ=environ,
            run_id=job.run_id,
            queued=JobRef(self._queue_id, job.key, job.group, job.name),
            gpu_wait_s=GPU_WAIT_S,
            ordered=describe_ordered(submission, environ),
        )

    def _hold(self, job: QueuedJob, why: str) -> StartReport:
        return StartReport(StartOutcome.HELD, self._queue.move_on(job.id, JobState.HELD, note=why), why)

    def _retreat(self, job: QueuedJob, made: StartOutcome, why: str) -> StartReport:
        """Back in the queue. What was made of its run is kept: the next try goes on with it."""
        pause = {"not_before": epoch_s() + BUSY_PAUSE_S} if made is StartOutcome.LATER else {}
        return StartReport(made, self._queue.move_on(job.id, JobState.QUEUED, note=why, **pause), why)

    def _find_changes(self, known: dict[str, str]) -> list[str]:
        """Names of the files that are not what they were when the job was handed in."""
        changed = []
        for path, sha256 in known.items():
            try:
                facts = os.stat(path)
                key = (path, facts.st_mtime_ns, facts.st_size, facts.st_ino)
                if key not in self._hashes:
                    if len(self._hashes) > MOST_HASHED:
                        self._hashes.clear()
                    self._hashes[key] = hash_file(path)
                now = self._hashes[key]
            except OSError as error:
                changed.append(f"{os.path.basename(path)} ({error.strerror})")
                continue
            if now != sha256:
                changed.append(os.path.basename(path))
        return changed


def count_taken(run_dir: str) -> int:
    """How many attempts of a run a supervisor has taken up: the newest number, less one that was only made."""
    look = look_at_run(run_dir)
    return look.attempt - 1 if look.phase is RunPhase.UNTAKEN else look.attempt


def build_spec(submission: Submission) -> JobSpec:
    """The spec of the one job in `submission`: the base with the job's own fields in the place of the base's.

    Raises:
        WireError: that is no spec.
    """
    return wire.decode(JobSpec, {**submission.base, **submission.jobs[0].change})


def describe_ordered(submission: Submission, environ: Mapping[str, str]) -> OrderedRun | None:
    """What the run of the one job in `submission` gets from the desk that ordered it; None when it was typed here.

    Raises:
        WireError: the job is no spec.
    """
    ordered = submission.ordered
    if ordered is None:
        return None
    spec = build_spec(submission)

    def lay_out_code(built: str) -> JobSpec:
        if ordered.code is None:
            base = f"{built}/{WORK}"
            os.mkdir(base, 0o700)
        else:
            base = lay_out(built, submission.runs_root, ordered.code, shared=ordered.shares_tree)
        return prepare_job(spec, ordered.setup, base, environ, ordered.profile)

    bundle, by = find_own_bundle(), submission.by
    return OrderedRun(hash_job(spec), bundle, ordered.code, by, lay_out_code, profile=ordered.profile)


def invent_run_id(submission: Submission, taken: Container[str] = ()) -> str:
    """A run id for the one job in `submission`, with the name of its spec; none of those that are `taken`.

    Raises:
        ValueError: the spec has no valid name.
    """
    now = utc_now()
    stamp = f"{now[0:4]}{now[5:7]}{now[8:10]}-{now[11:13]}{now[14:16]}{now[17:19]}"
    name = {**submission.base, **submission.jobs[0].change}.get("name")
    for _ in range(100):
        run_id = build_run_id(stamp, str(name), os.urandom(2).hex())
        if run_id not in taken and not os.path.lexists(f"{submission.runs_root}/{run_id}"):
            break
    return run_id
