"""What the run directories say about a queue's jobs, for a queue whose database had to be made again (docs/queue.md).

The database alone knows which jobs have been started; when it is lost, the runs know. Each names its job in its
``run.json``; where it stands, its own files and the process table say. A run that cannot be read is said to be one, so
that nobody takes "nothing was found" for "nothing has run".
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from holdfast.agent.view.observe import observe_run
from holdfast.agent.view.retries import is_followed
from holdfast.agent.view.run_view import UNREADABLE as NO_STATE
from holdfast.agent.view.run_view import RunReach
from holdfast.host.clock import format_utc, parse_utc
from holdfast.host.files import files
from holdfast.model import wire
from holdfast.model.ids import is_run_id, name_of
from holdfast.model.queue import JobRef, JobState, QueuedJob
from holdfast.model.record import replace
from holdfast.model.run import Created, Outcome
from holdfast.store.queue.queue import Queue

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from holdfast.agent.view.run_view import RunView

UNREADABLE = "run {path} cannot be read ({why}), so whether this job has run already cannot be told"
_LIVELIEST = (JobState.RUNNING, JobState.CLAIMED, JobState.DONE, JobState.PRODUCED, JobState.HELD)


def open_queue(directory: str | None = None) -> Queue:
    """This account's queue, with what it takes to rebuild it.

    Raises:
        HoldfastError: it cannot be opened.
    """
    return Queue(directory, find_runs=find_runs)


def find_runs(roots: Iterable[str], queue_id: str, since: float = 0.0) -> list[QueuedJob]:
    """The jobs of that queue that have a run under `roots`, each as its run has it; one entry for each job.

    Each has the job's `key`, `group`, `name`, and of the run: `run_id`, `attempts`, the end of the last attempt, and
    the state that follows: RUNNING while it has not ended (or another attempt may follow by itself), CLAIMED when it
    was made and never begun, PRODUCED when it succeeded (somebody has still to prove it), else FAILED or CANCELLED. A
    run of which it cannot be told whose it is has no `key`, the state HELD, the reason as `note`, and as `name` that of
    its job (empty when even that is not known). `since` (epoch seconds) leaves out runs with an older id.
    """
    found: dict[str, QueuedJob] = {}
    suspects: list[QueuedJob] = []
    for root in dict.fromkeys(roots):
        for job in _scan(root, queue_id, since):
            if not job.key:
                suspects.append(job)
            elif job.key not in found or _rank(job) > _rank(found[job.key]):
                found[job.key] = job
    return [*found.values(), *suspects]


def _rank(job: QueuedJob) -> tuple[int, str]:
    """Of two runs of one job the one that lives counts, then the one that succeeded, then the newer."""
    place = _LIVELIEST.index(job.state) if job.state in _LIVELIEST else len(_LIVELIEST)
    return -place, job.run_id or ""


def _scan(root: str, queue_id: str, since: float) -> Iterator[QueuedJob]:
    oldest = format_utc(max(0.0, since))[:19].replace("-", "").replace(":", "").replace("T", "-")
    try:
        names = sorted(name for name in os.listdir(root) if name[: len(oldest)] >= oldest and is_run_id(name))
    except FileNotFoundError:
        return
    except OSError as error:
        yield _suspect(root, "", error.strerror or str(error), path=root)
        return
    wanted = queue_id.encode()
    for name in names:
        path = f"{root}/{name}/{wire.RUN}"
        try:
            data = files.read_bytes(path)
        except FileNotFoundError:
            # It was being made: an attempt comes after run.json, so nothing has been begun in it.
            continue
        except OSError as error:
            yield _suspect(root, name, error.strerror or str(error))
            continue
        if wanted not in data:
            if not _is_whole(data):
                yield _suspect(root, name, f"{wire.RUN} is damaged")
            continue
        reference = _read_reference(data)
        if reference is None:
            yield _suspect(root, name, f"{wire.RUN} is damaged")
        elif reference.queue == queue_id:
            yield _describe(root, name, reference)


def _is_whole(data: bytes) -> bool:
    """Whether a ``run.json`` ends as one that was written to its end; cheaper than parsing thousands of them."""
    return data[:1] == b"{" and data.rstrip()[-1:] == b"}" and b"\0" not in data


def _suspect(root: str, run_id: str, why: str, *, path: str | None = None) -> QueuedJob:
    note = UNREADABLE.format(path=path or f"{root}/{run_id}", why=why)
    name = name_of(run_id) if run_id else ""
    return QueuedJob(0, "", "", name, JobState.HELD, runs_root=root, run_id=run_id or None, note=note)


def _read_reference(data: bytes) -> JobRef | None:
    """Whose run it is; also of a file that is damaged elsewhere."""
    try:
        return wire.decode(JobRef, wire.parse_object(data, wire.RUN).get("queued"), wire.RUN)
    except wire.WireError:
        pass
    part = re.search(rb'"queued":\s*(\{[^{}]*\})', data)
    if part is None:
        return None
    try:
        return wire.decode(JobRef, wire.parse_object(part[1], wire.RUN), wire.RUN)
    except wire.WireError:
        return None


def _describe(root: str, run_id: str, reference: JobRef) -> QueuedJob:
    view = observe_run(f"{root}/{run_id}")
    job = QueuedJob(
        id=0,
        key=reference.key,
        group=reference.group,
        name=reference.name,
        state=JobState.RUNNING,
        run_id=run_id,
        runs_root=root,
        attempts=view.attempt,
        outcome=_text(view.exit.get("outcome")) or (view.end.outcome.value if view.end is not None else None),
        exit_code=view.exit_code,
        failure=_text(view.exit.get("failure_class")),
        started_at=_time(view.end.started_at if view.end is not None else view.exit.get("started_at")),
        ended_at=_time(view.end.at if view.end is not None else view.exit.get("at")),
    )
    state, note = _judge(view)
    return replace(job, state=state, note=note)


def _judge(view: RunView) -> tuple[JobState, str]:
    if view.attempt == 0:
        return JobState.CLAIMED, ""
    if view.condition == NO_STATE:
        return JobState.HELD, f"{view.run_dir}: {view.note}"
    if not view.over:
        if view.reach is not RunReach.HERE:
            return JobState.HELD, f"its run {view.run_id}: {view.note}"
        untouched = view.state is not None and isinstance(view.state.state, Created) and view.state.supervisor is None
        if untouched and view.attempt == 1:
            return JobState.CLAIMED, ""
        # Also when nothing of it is left: its worker settles it and says what follows.
        return JobState.RUNNING, ""
    outcome = view.end.outcome.value if view.end is not None else _text(view.exit.get("outcome"))
    if outcome == Outcome.SUCCEEDED.value:
        return JobState.PRODUCED, ""
    if outcome in (Outcome.LOST.value, Outcome.PREEMPTED.value) or is_followed(view.run_dir, view.attempt):
        return JobState.RUNNING, ""
    return (JobState.CANCELLED if outcome == Outcome.STOPPED.value else JobState.FAILED), view.note


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _time(value: object) -> float | None:
    try:
        return parse_utc(value) if isinstance(value, str) else None
    except (ValueError, IndexError):
        return None
