"""Taking a job as done whose run ended with 0 while something speaks against that: a person's word, on record."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.agent.caller import describe_caller
from holdfast.agent.control.run_lock import hold_run_lock
from holdfast.agent.queue.change.start_worker import start_worker
from holdfast.agent.queue.open import build_order, list_notices, open_queue
from holdfast.agent.view.live.attempt import describe_doubt
from holdfast.agent.view.observe import observe_run
from holdfast.host.clock import utc_now
from holdfast.host.files import files
from holdfast.model import wire
from holdfast.model.errors import StorageError, UsageError
from holdfast.model.queue import ACTIVE_STATES, WAITING_STATES, JobState, OrderVerb

from .change import QueueChange, describe_jobs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.agent.view.run_view import RunView
    from holdfast.model.queue import QueuedJob


def accept(words: Sequence[str], *, reason: str) -> QueueChange:
    """Have jobs count as done although something speaks against their exit code 0.

    Their results, configuration and records are proven as ever; only the doubt is set aside.

    Raises:
        UsageError: one of them is no failed job whose run ended with 0 in doubt.
        StorageError: it cannot be written at the run.
    """
    with open_queue() as queue:
        jobs = queue.find(words)
        for job in jobs:
            _require_doubt(job)
        for job in jobs:
            _write(job, reason)
        notes = list_notices(queue)
        again = queue.order(build_order(OrderVerb.RETRY, jobs=jobs))
        start_worker(queue, notes)
        return QueueChange("accepted; looked at again", jobs=describe_jobs(again), notes=tuple(notes))


def _require_doubt(job: QueuedJob) -> RunView:
    """Refuse what is not a success in doubt; the look that sees that it is one.

    Raises:
        UsageError: it is something else.
    """
    view = None if job.run_dir is None else observe_run(job.run_dir)
    if job.state is JobState.FAILED and view is not None and view.doubt:
        return view
    ended = job.outcome or "not ended"
    words = f"{job.label} is {job.state.value} ({ended}): only a job that ended with 0 in doubt can be accepted"
    raise UsageError(words, hint=f"holdfast queue show {job.label}; {_say_again(job)}")


def _say_again(job: QueuedJob) -> str:
    """How it runs again."""
    if job.state is JobState.DONE:
        return f"it counts as done; holdfast run --like {job.label} runs it once more"
    if job.state in ACTIVE_STATES:
        return f"it has not ended: holdfast wait {job.label}"
    return "it has yet to run" if job.state in WAITING_STATES else f"holdfast queue retry {job.label} runs it again"


def _write(job: QueuedJob, reason: str) -> None:
    assert job.run_dir is not None
    with hold_run_lock(job.run_dir, what="accept it"):
        # Somebody may have started it again meanwhile: what ends later is not accepted in advance.
        view = _require_doubt(job)
        told = {"by": describe_caller(), "at": utc_now(), "reason": reason, "doubt": describe_doubt(view)}
        path = f"{view.attempt_dir}/{wire.ACCEPTED}"
        try:
            files.commit(path, wire.to_bytes(told))
        except OSError as error:
            raise StorageError(f"{path}: {error.strerror}", hint=f"see df {os.path.dirname(path)}") from error
