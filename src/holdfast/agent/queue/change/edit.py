"""Changing what holds for a job's start, for a group or for the whole queue: place, priority, time, limits."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from holdfast.agent.queue.change.start_worker import start_worker
from holdfast.agent.queue.open import build_order, find_group, list_notices, open_queue
from holdfast.core.moments import format_moment
from holdfast.core.queue.words import count_jobs, name_jobs
from holdfast.model.errors import UsageError
from holdfast.model.queue import ACTIVE_STATES, OrderVerb

from .change import QueueChange, describe_jobs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from holdfast.model.queue import QueuedJob


def move(word: str, *, first: bool, last: bool, before: str | None) -> QueueChange:
    """Put jobs of one priority before or behind others."""
    if first + last + (before is not None) != 1:
        raise UsageError("say exactly one of --first, --last, --before JOB", hint="holdfast queue move JOB --first")
    with open_queue() as queue:
        jobs = queue.find([word])
        values: dict[str, object] = {"to": "first" if first else "last"}
        if before is not None:
            targets = queue.find([before])
            if len(targets) != 1:
                raise UsageError(f"--before: {before!r} is {count_jobs(len(targets))}", hint="name one job")
            values = {"to": "before", "key": targets[0].key}
        moved = queue.order(build_order(OrderVerb.MOVE, jobs=jobs, values=values))
        notes = [*list_notices(queue), *_say_left(jobs, moved)]
        start_worker(queue, notes)
        where = f"before {before}" if before is not None else str(values["to"])
        notes.append("within one priority; `edit --priority` puts it before others")
        return QueueChange(f"moved {where}", jobs=describe_jobs(moved), notes=tuple(notes))


def edit(word: str, values: dict[str, object]) -> QueueChange:
    """Change what holds for a job's start, or for a group."""
    if not values:
        raise UsageError("nothing to change: say what", hint="holdfast queue edit JOB --priority 10")
    with open_queue() as queue:
        group = find_group(queue, word)
        of_group = {"max_parallel", "hold_after"} & values.keys()
        if group is None and of_group:
            names = ", ".join(f"--{name.replace('_', '-')}" for name in sorted(of_group))
            raise UsageError(f"{names}: holds for a group, and {word!r} is none", hint="name the group: GROUP/")
        if group is not None and (word.endswith("/") or of_group):
            named = queue.jobs(group=group.name)
            changed = queue.order(build_order(OrderVerb.EDIT, group=group.name, values=values))
            name: str | None = group.name
        else:
            named = [*queue.find([word])]
            changed = queue.order(build_order(OrderVerb.EDIT, jobs=named, values=values))
            name = None
        notes = list_notices(queue)
        if values.keys() - of_group:
            notes += _say_left(named, changed)
            if not changed and not of_group:
                return QueueChange("nothing to change", group=name, notes=tuple(notes), exit_code=1)
        start_worker(queue, notes)
        words = ", ".join(f"{key.replace('_', '-')} {_say(key, value)}" for key, value in values.items())
        what = f"{'group ' + name if name else 'changed'}: {words}"
        return QueueChange(what, group=name, jobs=describe_jobs(changed), notes=tuple(notes))


def _say_left(named: Sequence[QueuedJob], changed: Sequence[QueuedJob]) -> Iterator[str]:
    """Which of these jobs stay as they are, and of which the change counts later."""
    ids = {job.id for job in changed}
    if left := [job for job in named if job.id not in ids]:
        yield f"left alone: {name_jobs(left)} ({', '.join(sorted({job.state.value for job in left}))})"
    if active := [job for job in changed if job.state in ACTIVE_STATES]:
        yield f"at work: {name_jobs(active)}; it counts when the queue begins that again"


def _say(key: str, value: object) -> str:
    if key == "not_before" and isinstance(value, float):
        return format_moment(value, time.time(), exact=True)
    return "none" if value is None else str(value)


def set_slots(cpu_slots: int | None) -> QueueChange:
    """How many CPU slots there are for jobs without cards."""
    with open_queue() as queue:
        queue.order(build_order(OrderVerb.EDIT, values={"cpu_slots": cpu_slots}))
        notes = list_notices(queue)
        start_worker(queue, notes)
        number = "as many as this account may use CPUs" if cpu_slots is None else str(cpu_slots)
        return QueueChange(f"CPU slots: {number}", notes=tuple(notes), cpu_slots=cpu_slots)
