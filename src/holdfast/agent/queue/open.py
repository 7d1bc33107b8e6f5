"""The queue of this account opened for a command: with what a rebuild needs, and its worker looked for.

Nothing is printed here: what is to be said beside an answer comes back as sentences, which the answer's record holds.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from holdfast.agent.caller import describe_caller
from holdfast.agent.view.runs import of_queue
from holdfast.core.near import find_near
from holdfast.core.queue.words import name_jobs
from holdfast.host.clock import utc_now
from holdfast.model.errors import HoldfastError, NoSuchName
from holdfast.model.queue import QueueAct
from holdfast.store.paths import queue_directory

from .presence import read_worker, was_just_started

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from holdfast.model.queue import JobGroup, OrderVerb, QueuedJob
    from holdfast.store.queue.queue import Queue

    from .presence import WorkerFacts

NEAR_SHOWN = 10


@contextmanager
def open_queue() -> Iterator[Queue]:
    """This account's queue on this box.

    That it had to be rebuilt is said in `list_notices`, and in the hint of an error that ends the use of it.

    Raises:
        HoldfastError: it cannot be opened.
    """
    with of_queue.open_queue() as queue:
        try:
            yield queue
        except HoldfastError as error:
            error.hint = "\n".join(filter(None, (error.hint, queue.notice)))
            raise


@contextmanager
def look_at_queue() -> Iterator[Queue]:
    """As `open_queue`, for who only looks: where nobody has made a queue yet, an empty one that nobody keeps.

    Raises:
        HoldfastError: it cannot be opened.
    """
    try:
        os.lstat(queue_directory())
        is_there = True
    except OSError as error:
        # Anything else that is in the way is told by whoever opens it: it does not mean that there is no queue.
        is_there = not isinstance(error, FileNotFoundError)
    if is_there:
        with open_queue() as queue:
            yield queue
        return
    import tempfile  # lazy: only where there is no queue

    with tempfile.TemporaryDirectory() as nowhere, of_queue.open_queue(nowhere) as queue:
        queue.directory = queue_directory()
        yield queue


def list_notices(queue: Queue) -> list[str]:
    """What had to be done to open the queue, for people; empty usually."""
    return [queue.notice] if queue.notice else []


def describe_removed_needs(queue: Queue, job_ids: Sequence[int], *, below: str | None = None) -> str:
    """What these jobs need that was proven done and has no run any more, as a sentence; empty where nothing is so.

    A person has removed it, and what was proven then lets them start; ids are in a row. `below`: only what has its run
    in this directory of runs is looked for; another one may lie on a mount that hangs.
    """
    gone = [
        job
        for job in queue.done_needs(job_ids)
        if job.run_dir is not None
        and below in (None, job.runs_root)
        and os.path.isdir(job.runs_root)
        and not os.path.lexists(job.run_dir)
    ]
    return f"needs what was done and whose run was removed since: {name_jobs(gone)}" if gone else ""


def build_order(
    verb: OrderVerb,
    *,
    group: str | None = None,
    jobs: Iterable[QueuedJob] = (),
    values: dict[str, object] | None = None,
) -> QueueAct:
    """An order of the caller's, now."""
    keys = tuple(job.key for job in jobs)
    return QueueAct(verb, by=describe_caller(), at=utc_now(), group=group, jobs=keys, values=values or {})


def look_for_worker(queue: Queue) -> tuple[WorkerFacts | None, str]:
    """The worker at work, and a sentence when that could not be looked at."""
    try:
        return read_worker(queue.directory), ""
    except HoldfastError as error:
        return None, f"whether a worker is there cannot be told: {error}"


def describe_absence(queue: Queue) -> str:
    """That no worker is there, for people; one that was started a moment ago is not missed yet."""
    if was_just_started(queue.directory):
        return "a worker is just being started"
    return "no worker is there to go on; `holdfast queue resume` starts one"


def find_group(queue: Queue, word: str) -> JobGroup | None:
    """The group that is called so, with or without a slash at the end; None without."""
    return queue.groups().get(word.rstrip("/"))


def require_group(queue: Queue, word: str) -> JobGroup:
    """The group that is called so.

    Raises:
        NoSuchName: there is none; near names are proposed.
    """
    found = find_group(queue, word)
    if found is not None:
        return found
    names = list(queue.groups())
    near = find_near(word.rstrip("/"), names)
    hint = f"did you mean {near}?" if near else f"groups: {', '.join(names[:NEAR_SHOWN]) or 'none yet'}"
    if _is_job(queue, word):
        hint = f"it is a job: holdfast queue edit {word} --not-before 22:00, or: holdfast queue cancel {word}"
    raise NoSuchName(f"there is no group {word!r} in the queue", hint=hint)


def _is_job(queue: Queue, word: str) -> bool:
    try:
        return len(queue.find([word])) == 1
    except HoldfastError:
        return False
