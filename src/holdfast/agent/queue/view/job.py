"""Everything about one job: what it is, where it stands, why it waits, who holds the cards, and an estimate."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.agent.cards.box import read_box
from holdfast.agent.queue.open import describe_absence, list_notices, look_at_queue, look_for_worker
from holdfast.agent.view.runs.row import read_row
from holdfast.core.queue.choose import WaitKind, WaitReason
from holdfast.core.queue.words import count_jobs
from holdfast.host.clock import parse_utc
from holdfast.model.errors import UsageError
from holdfast.model.queue import ACTIVE_STATES, WAITING_STATES, JobState, QueuedJob
from holdfast.model.record import record

from .job_estimate import JobEstimate, estimate_job
from .reasons import count_before, explain_job, needs_a_person, read_situation

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.agent.cards.box import BoxCards
    from holdfast.store.queue.queue import Queue


@record
class HandIn:
    """Who handed a job in, when and from which directory; `source` is the file that it was made from."""

    by: str
    at: str
    cwd: str
    source: str | None


@record
class JobView:
    """One job as `queue show` shows it.

    `reasons` are all for which it waits, those that need a person first; `jobs_before` of its kind come first. `cards`
    says in a line each who has a card, and who stands in line for one: for a job that wants cards and is not over.
    `spec` is its resolved `JobSpec`, encoded. `worker_problem`: why no worker looks after it now (empty: one does, or
    would find nothing to do).
    `condition` is how its run stands, None without one: a job whose run stands in line for cards is ``waiting``.
    `run_gone`: the run's directory is not there any more, so nothing can be shown of it. `began_at` is when the job
    of an active run began itself (epoch seconds), which may be long after its run was made; None: not yet.
    """

    job: QueuedJob
    label: str
    reasons: tuple[WaitReason, ...]
    needs_a_person: bool
    jobs_before: int
    cards: tuple[str, ...]
    estimate: JobEstimate
    worker: bool
    worker_problem: str
    run_dir: str | None
    handed_in: HandIn
    spec: dict[str, object]
    notes: tuple[str, ...]
    condition: str | None = None
    run_gone: bool = False
    began_at: float | None = None


def show_job(word: str) -> JobView:
    """Everything about the one job that `word` names.

    Raises:
        UsageError: there is no such job, or there are several.
    """
    with look_at_queue() as queue:
        jobs = queue.find([word])
        if len(jobs) != 1:
            raise UsageError(f"{word!r} is {count_jobs(len(jobs))}", hint=f"holdfast queue ls {word.rstrip('/')}")
        return _look(queue, jobs[0])


def _look(queue: Queue, job: QueuedJob) -> JobView:
    active = queue.active()
    situation = read_situation(queue, active)
    before = count_before(queue, job)
    if before is None:
        # The worker has taken it since it was read.
        (job,), before = queue.find([f"{job.group}/{job.name}"]), 0
    row = read_row(job.runs_root, job.run_id) if job.run_id is not None and job.state in ACTIVE_STATES else None
    box = _read_box(job)
    in_line = row is not None and row.condition == "waiting"
    reasons = (_explain_line(job, box),) if in_line else explain_job(queue, job, situation, behind=before, deep=True)
    submission = queue.submission_of(job.id)
    labels = {other.run_id: other.label for other in active if other.run_id}
    worker, problem = look_for_worker(queue)
    # Where all that is left is blocked by what failed or is held, a worker would find nothing to do.
    missed = bool(active) or bool(queue.jobs(states=(JobState.QUEUED, JobState.ELSEWHERE), limit=1))
    absence = "" if worker is not None or not missed else describe_absence(queue)
    return JobView(
        job=job,
        label=job.label,
        reasons=reasons,
        needs_a_person=needs_a_person(reasons),
        jobs_before=before,
        cards=() if box is None else tuple(describe_holders(box, labels)),
        estimate=JobEstimate(None, None, "it stands in line for cards")
        if in_line
        else estimate_job(queue, job, active, situation, box),
        worker=worker is not None,
        worker_problem=problem or absence,
        run_dir=job.run_dir,
        handed_in=HandIn(submission.by, submission.at, submission.cwd, submission.source),
        spec={**submission.base, **submission.jobs[0].change},
        notes=tuple(list_notices(queue)),
        condition=None if row is None else row.condition,
        run_gone=job.run_dir is not None and not os.path.lexists(job.run_dir),
        began_at=None if row is None or not row.started_at else parse_utc(row.started_at),
    )


def _explain_line(job: QueuedJob, box: BoxCards | None) -> WaitReason:
    """Why a job that was started waits: its run stands in line for cards."""
    names = [] if box is None else [ticket.run_id for ticket in box.waiting]
    where = f", {names.index(job.run_id) + 1} of {len(names)}" if job.run_id in names else ""
    cards = f"{job.cards} card{'s' if job.cards > 1 else ''}"
    return WaitReason(WaitKind.CARD_LINE, f"its run stands in line for {cards}{where}")


def _read_box(job: QueuedJob) -> BoxCards | None:
    """The cards, for a job that waits for some, or stands in line for them."""
    if not job.cards or job.state not in {*WAITING_STATES, *ACTIVE_STATES}:
        return None
    return read_box()


def describe_holders(box: BoxCards, labels: Mapping[str, str]) -> list[str]:
    """Who has each card, since when, and what stands in the box's line; one line each. `labels` are jobs by run."""
    lines = []
    if not box.places:
        return [f"none could be read: {box.inventory.reason}" if box.inventory.reason else "this box has none"]
    for place in box.places:
        name = f"card {place.index}" + (f" slice {place.uuid}" if place.part is not None else "")
        if place.lease is not None:
            since = f" since {place.lease.since[:19]}Z" if place.lease.since else ""
            lines.append(f"{name}: {place.lease.user}, {_name_run(place.lease.run_id, labels)}{since}")
        elif place.unavailable:
            lines.append(f"{name}: not to be had: {'; '.join(place.unavailable)}")
        else:
            lines.append(f"{name}: free")
    for number, ticket in enumerate(box.waiting, start=1):
        lines.append(f"in line {number}: {ticket.user}, {_name_run(ticket.run_id, labels)}, wants {ticket.count}")
    return lines


def _name_run(run_id: str, labels: Mapping[str, str]) -> str:
    return f"run {run_id}" + (f" (job {labels[run_id]})" if run_id in labels else "")
