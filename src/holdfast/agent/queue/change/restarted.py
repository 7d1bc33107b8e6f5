"""A run of the queue that was started again by hand: its job follows it."""

from __future__ import annotations

import os

from holdfast.agent.queue.change.start_worker import start_worker
from holdfast.agent.queue.open import build_order, list_notices, open_queue
from holdfast.host.files import files
from holdfast.model import wire
from holdfast.model.errors import HoldfastError
from holdfast.model.queue import JobRef, JobState, OrderVerb
from holdfast.store.queue.queue import queue_directory

CLOSED = frozenset({JobState.FAILED, JobState.CANCELLED, JobState.HELD, JobState.DONE})


def notify_queue(run_dir: str) -> tuple[str, ...]:
    """Have the queue look after the new attempt of a run whose job it counts as closed or held; what came of it.

    A job that is at work is watched anyway, one that waits finds the attempt when it is its turn. Of another queue
    (another box, HOLDFAST_QUEUE) nothing is known here. Never raises: the run was started, whatever the queue says.
    """
    path = f"{run_dir}/{wire.RUN}"
    try:
        reference = wire.decode(JobRef, wire.parse_object(files.read_bytes(path), path).get("queued"), path)
    except (OSError, wire.WireError):
        # Not of a queue.
        return ()
    if not os.path.isdir(queue_directory()):
        return ()
    try:
        return tuple(_open_again(reference))
    except HoldfastError as error:
        return (f"its job {reference.group}/{reference.name} stays as it is in the queue: {error}",)


def _open_again(reference: JobRef) -> list[str]:
    with open_queue() as queue:
        notes = list_notices(queue)
        if queue.settings().queue_id != reference.queue:
            return notes
        found = queue.find([f"{reference.group}/{reference.name}"])
        jobs = [job for job in found if job.key == reference.key and job.state in CLOSED]
        if jobs:
            queue.order(build_order(OrderVerb.RETRY, jobs=jobs, values={"done": True}))
            notes.append(f"its job {jobs[0].label} is open again until this attempt has ended")
            start_worker(queue, notes)
        return notes
