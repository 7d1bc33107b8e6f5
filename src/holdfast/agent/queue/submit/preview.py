"""What handing in would do, with nothing handed in: the jobs, and whether anything but room would keep them waiting."""

from __future__ import annotations

import os
import shlex
import time
from typing import TYPE_CHECKING

from holdfast.agent.queue.open import list_notices, open_queue
from holdfast.core.job.redact import redact_argv
from holdfast.core.moments import format_moment
from holdfast.core.queue.words import count_jobs
from holdfast.model.errors import NoSuchName, UsageError
from holdfast.model.queue import JobState
from holdfast.model.record import record
from holdfast.store.queue.queue import queue_directory

from .refuse import check_jobs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.core.queue.submit_options import SubmitOptions
    from holdfast.model.job import JobSpec
    from holdfast.model.queue import Submission
    from holdfast.store.queue.queue import Queue


@record
class PlannedJob:
    """One job that would be handed in; `command` is for people, with secrets left out."""

    job: str
    command: str
    cards: int
    sha256: str


@record
class Preview:
    """What would be handed in. `waits_for` is empty when it would start as soon as there is room; `job` is its base."""

    group: str
    jobs: tuple[PlannedJob, ...]
    waits_for: tuple[str, ...]
    notes: tuple[str, ...]
    job: JobSpec


def preview(spec: JobSpec, submission: Submission, wishes: SubmitOptions, environ: Mapping[str, str]) -> Preview:
    """Check a submission as if it were handed in, and take nothing.

    Raises:
        UsageError: it would be refused.
    """
    notes = check_jobs(spec, submission.jobs, environ, shared=wishes.shared)
    jobs = tuple(
        PlannedJob(job.name, _command_of(spec, job.change), spec.gpus.wanted, job.sha256) for job in submission.jobs
    )
    waits = _list_obstacles(submission, wishes, notes)
    return Preview(submission.group, jobs, tuple(waits), tuple(notes), spec)


def _command_of(spec: JobSpec, change: Mapping[str, object]) -> str:
    command = change.get("command")
    words = tuple(str(word) for word in command) if isinstance(command, (list, tuple)) else spec.command
    return shlex.join(redact_argv(words)[0])


def _list_obstacles(submission: Submission, wishes: SubmitOptions, notes: list[str]) -> list[str]:
    """What would keep the jobs waiting, as the queue is now; a queue that does not exist keeps nothing.

    What is to be said of the queue itself is added to `notes`.

    Raises:
        UsageError: they need a job that is not there, so that they would be refused.
    """
    now = time.time()
    found = []
    if wishes.not_before is not None and wishes.not_before > now:
        found.append(f"not before {format_moment(wishes.not_before, now, exact=True)}")
    if wishes.paused:
        found.append(f"group {submission.group} would be paused")
    if not os.path.isdir(queue_directory()):
        return [*(f"needs {need}" for need in wishes.needs), *found]
    with open_queue() as queue:
        notes += list_notices(queue)
        found = [*_list_needs(queue, submission, wishes), *found]
        settings, group = queue.settings(), queue.groups().get(submission.group)
        if settings.paused or settings.draining:
            found.append("the queue is paused" if settings.paused else "the queue is being drained")
        if group is not None and (group.paused or group.held):
            found.append(f"group {group.name} " + ("is paused" if group.paused else f"stopped by itself: {group.held}"))
        queued = sum(job.not_before is None or job.not_before <= now for job in queue.jobs(states=[JobState.QUEUED]))
        if queued:
            found.append(f"{count_jobs(queued)} queued before")
    return found


def _list_needs(queue: Queue, submission: Submission, wishes: SubmitOptions) -> list[str]:
    """What the jobs would have to wait for: of what they need, what is not done yet.

    Raises:
        UsageError: one of them is not there: refused with the code of handing it in.
    """
    own = {job.name for job in submission.jobs}
    found = []
    for need in wishes.needs:
        word = need if "/" in need else f"{submission.group}/{need}"
        try:
            is_open = need in own or any(job.state is not JobState.DONE for job in queue.find([word]))
        except NoSuchName as error:
            raise UsageError(f"{submission.jobs[0].name} needs {need}: {error}", hint=error.hint) from error
        if is_open:
            found.append(f"needs {need}")
    return found
