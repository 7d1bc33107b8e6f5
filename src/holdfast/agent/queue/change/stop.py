"""Letting nothing new start (pause, drain), of the queue, of groups or of single jobs, and letting go on."""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING

from holdfast.agent.queue.change.start_worker import start_worker
from holdfast.agent.queue.environment import refresh_secrets
from holdfast.agent.queue.open import build_order, find_group, list_notices, open_queue
from holdfast.agent.queue.wait.wait import wait_idle
from holdfast.core.control_characters import one_line
from holdfast.core.queue.words import SHOWN_LABELS, count_jobs, name_jobs
from holdfast.host.files.snapshot import hash_file
from holdfast.model.errors import NoSuchName, UsageError
from holdfast.model.queue import IfChanged, JobState, OrderVerb
from holdfast.model.record import replace

from .change import QueueChange, describe_jobs
from .hold_scheduled import find_scheduled, hold_scheduled, release_scheduled

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from holdfast.model.queue import QueuedJob
    from holdfast.store.queue.queue import Queue


LONGEST_REASON = 300
GO_ON = "go on: holdfast queue resume"


def pause(words: Sequence[str], *, reason: str, by: str) -> QueueChange:
    """Start nothing more of groups, or of the whole queue, and hold jobs; what runs goes on.

    `by` is who wants it and `reason` why: both stand in the note of a job that is held.

    Raises:
        UsageError: none of the jobs waits, or the reason is not one of a job.
        HoldfastError: a run of a scheduler cannot be held.
    """
    with open_queue() as queue:
        try:
            groups, jobs = _sort_words(queue, words)
        except NoSuchName:
            if scheduled := find_scheduled(words):
                return hold_scheduled(scheduled, reason=reason)
            raise
        if reason and not jobs:
            raise UsageError("--reason is kept with a job", hint="name jobs, or leave it out")
        held = _hold(queue, jobs, reason, by) if jobs else ()
        for name in groups if words else [None]:
            queue.order(build_order(OrderVerb.PAUSE, group=name))
        notes = list_notices(queue)
        active = [job for job in queue.active() if not words or job.group in groups]
        notes += [f"{count_jobs(len(active))} still at work: {name_jobs(active)}"] if active else []
        ids = {job.id for job in held}
        left = [job for job in jobs if job.id not in ids]
        notes += [f"left alone: {', '.join(f'{job.label} is {job.state.value}' for job in left)}"] if left else []
        notes.append(" ".join([GO_ON, *groups, *(job.label for job in held)]))
        said = [*(f"group {name} is paused" for name in groups), *(["held"] if held else [])]
        what = ", ".join(said) if words else "the queue is paused: nothing new starts"
        group = groups[0] if len(groups) == 1 else None
        return QueueChange(what, group=group, jobs=describe_jobs(held), notes=tuple(notes), active=len(active))


def _sort_words(queue: Queue, words: Sequence[str]) -> tuple[list[str], tuple[QueuedJob, ...]]:
    """The groups and the jobs that these words name.

    Raises:
        NoSuchName: one of them names neither.
    """
    groups = list(dict.fromkeys(found.name for word in words if (found := find_group(queue, word)) is not None))
    others = [word for word in words if find_group(queue, word) is None]
    return groups, queue.find(others) if others else ()


def _hold(queue: Queue, jobs: Sequence[QueuedJob], reason: str, by: str) -> tuple[QueuedJob, ...]:
    waiting = [job for job in jobs if job.state is not JobState.HELD]
    if not waiting:
        raise UsageError(f"{name_jobs(jobs)}: held already", hint="`holdfast queue show JOB` says why")
    values: dict[str, object] = {"reason": one_line(reason, LONGEST_REASON)} if reason else {}
    order = build_order(OrderVerb.PAUSE, jobs=waiting, values=values)
    return queue.order(replace(order, by=one_line(by, LONGEST_REASON)))


def resume(words: Sequence[str], *, accept_changes: bool, with_environment: bool) -> QueueChange:
    """Let groups, jobs or the whole queue go on; a job that a person holds only where it is named."""
    with open_queue() as queue:
        values: dict[str, object] = {"accept_changes": True} if accept_changes else {}
        notes = list_notices(queue)
        if with_environment:
            notes += _give_environment(queue, _held_of(queue, words))
        if not words:
            jobs = queue.order(build_order(OrderVerb.RESUME, values=values))
            what = "the queue goes on"
        else:
            try:
                jobs, what = _resume_some(queue, words, values)
            except NoSuchName:
                if scheduled := find_scheduled(words):
                    return release_scheduled(scheduled)
                raise
        notes += _say_still_held(queue, words)
        for job in () if accept_changes else jobs[:SHOWN_LABELS]:
            if again := _say_changed(queue, job):
                notes.append(f"{again}; {GO_ON} {job.label} --accept-changes")
        if start_worker(queue, notes):
            notes.append("a worker was started")
        return QueueChange(what, jobs=describe_jobs(jobs), notes=tuple(notes))


def _resume_some(queue: Queue, words: Sequence[str], values: dict[str, object]) -> tuple[tuple[QueuedJob, ...], str]:
    groups, jobs = _sort_words(queue, words)
    held = [job for job in jobs if job.state is JobState.HELD]
    others = [word for word in words if find_group(queue, word) is None]
    if others and not held:
        raise UsageError(f"{', '.join(others)}: not held", hint="`holdfast queue show JOB` says why it waits")
    if not values and (again := [found for job in held if (found := _say_changed(queue, job))]):
        raise UsageError("; ".join(again), hint=f"{GO_ON} {shlex.join(others)} --accept-changes")
    changed: list[QueuedJob] = []
    for name in groups:
        changed += queue.order(build_order(OrderVerb.RESUME, group=name, values=values))
    if held:
        changed += queue.order(build_order(OrderVerb.RESUME, jobs=held, values=values))
    what = ", ".join([*(f"group {name}" for name in groups), *others])
    return tuple(changed), f"{what} {'goes' if len(words) == 1 else 'go'} on"


def _say_changed(queue: Queue, job: QueuedJob) -> str:
    """Why a job would be held again at once: what it was handed in with is still changed; empty where it is not."""
    submission = queue.submission_of(job.id)
    if submission.if_changed is not IfChanged.HOLD:
        return ""
    names = [os.path.basename(path) for path, sha256 in submission.files.items() if _read_hash(path) != sha256]
    return f"{job.label} would be held again: changed since it was handed in: {', '.join(names)}" if names else ""


def _read_hash(path: str) -> str:
    """The SHA-256 of a file; empty where it cannot be read."""
    try:
        return hash_file(path)
    except OSError:
        return ""


def _say_still_held(queue: Queue, words: Sequence[str]) -> list[str]:
    """What of the queue, or of the groups that were named, goes on by its own name alone."""
    groups = {found.name for word in words if (found := find_group(queue, word)) is not None}
    left = [job for job in queue.jobs(states=(JobState.HELD,)) if not words or job.group in groups]
    names = " ".join(job.label for job in left[:SHOWN_LABELS])
    return [f"still held: {name_jobs(left)}; {GO_ON} {names}"] if left else []


def _held_of(queue: Queue, words: Sequence[str]) -> list[QueuedJob]:
    held = queue.jobs(states=(JobState.HELD,))
    if not words:
        return held
    wanted = {job.id for job in queue.find(words)}
    return [job for job in held if job.id in wanted]


def _give_environment(queue: Queue, jobs: Iterable[QueuedJob]) -> list[str]:
    """Give this shell's secrets to the environments of held jobs; sentences about what is still missing."""
    ids = {queue.submission_of(job.id).environment for job in jobs} - {""}
    missing = sorted({name for one in ids for name in refresh_secrets(one, os.environ, directory=queue.directory)})
    return [f"this shell does not have: {', '.join(missing)}; export them and say it again"] if missing else []


def drain(*, wait: bool) -> QueueChange:
    """Let what runs end, start nothing new; with `wait` come back when nothing runs any more."""
    with open_queue() as queue:
        queue.order(build_order(OrderVerb.DRAIN))
        active = queue.active()
        if wait and active:
            wait_idle(queue)
            active = queue.active()
        left = f"{count_jobs(len(active))} still at work: {name_jobs(active)}" if active else "nothing is at work"
        return QueueChange(
            "the queue is being drained: nothing new starts" if active else "the queue is drained",
            notes=(*list_notices(queue), left, "go on: holdfast queue resume"),
            active=len(active),
        )
