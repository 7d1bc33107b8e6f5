"""Has the queue judge a job again that failed by the copy of its results alone, once somebody has copied them."""

from __future__ import annotations

from holdfast.agent.queue.change.start_worker import start_worker
from holdfast.agent.queue.open import build_order, list_notices, open_queue
from holdfast.model.errors import UsageError
from holdfast.model.queue import JobState, OrderVerb


def look_again(label: str, run_id: str) -> tuple[str, ...]:
    """Have a failed job of this account's queue proven by what is on disk now; sentences for people.

    Nothing is begun again: its last attempt counts as it is (`queue.proof.is_made_good`).

    Raises:
        HoldfastError: the queue cannot be opened or written.
    """
    with open_queue() as queue:
        notes = list_notices(queue)
        try:
            found = queue.find([label])
        except UsageError:
            return tuple(notes)
        jobs = [job for job in found if job.run_id == run_id and job.state is JobState.FAILED]
        if jobs:
            queue.order(build_order(OrderVerb.RETRY, jobs=jobs))
            start_worker(queue, notes)
            notes.append(f"{label} is looked at again; what waits for it goes on when it is proven done")
        return tuple(notes)
