"""What ``holdfast queue show`` says of one job."""

from __future__ import annotations

import shlex
import time
from typing import TYPE_CHECKING

from holdfast.core.job.redact import redact_argv
from holdfast.core.moments import format_moment
from holdfast.core.queue.words import SAME_AGAIN
from holdfast.model.queue import ACTIVE_STATES, WAITING_STATES, JobState
from holdfast.model.run import Outcome
from holdfast.model.units import format_count, format_duration

from . import clean, heading, note, pairs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.agent.queue.view.job import JobView

NO_BASIS = ("no job like it", "it ", "what it needs")
HASH_DIGITS = 16


def print_job(seen: JobView) -> None:
    """Everything about it, with every reason why it waits and an estimate."""
    job = seen.job
    for text in seen.notes:
        note(text)
    pairs(_list_facts(seen))
    if job.state in WAITING_STATES or seen.reasons:
        heading("why it waits")
        for reason in seen.reasons:
            print(f"  {clean(reason.words)}")
        _print_advice(seen)
    if seen.cards:
        heading("cards of this box")
        for line in seen.cards:
            print(f"  {clean(line)}")
    if job.state in WAITING_STATES or job.state in ACTIVE_STATES:
        heading("estimate")
        print(f"  {clean(_say_estimate(seen))}")


def _list_facts(seen: JobView) -> Iterator[tuple[str, object]]:
    job, handed_in, now = seen.job, seen.handed_in, time.time()
    yield "job", f"{job.label} (id {job.id})"
    yield "state", (seen.condition or job.state.value) + (f": {job.note}" if job.note else "")
    yield "group", job.group
    yield "command", _command_of(seen)
    if job.params:
        yield "parameters", ", ".join(f"{name}={value}" for name, value in job.params.items())
    yield (
        "takes",
        f"{job.cards} card{'s' if job.cards > 1 else ''}"
        if job.cards
        else f"{job.slots} CPU slot" + ("s" if job.slots > 1 else ""),
    )
    if job.priority:
        yield "priority", job.priority
    if job.not_before is not None:
        yield "not before", format_moment(job.not_before, now, exact=True)
    yield "handed in", f"{handed_in.at} by {handed_in.by}, from {handed_in.cwd}"
    yield "configuration", job.sha256[:HASH_DIGITS]
    if job.run_id is not None:
        yield "run", f"{job.run_id}  ({'not there any more' if seen.run_gone else f'holdfast show {job.run_id}'})"
        yield "attempts", job.attempts
    if begun := _say_start(seen, now):
        yield begun
    if job.ended_at is not None and job.state not in ACTIVE_STATES:
        exit_code = "" if job.exit_code is None else f", exit {job.exit_code}"
        yield (
            "ended",
            f"{format_moment(job.ended_at, now)}: {job.outcome}{exit_code}"
            + (f", {job.failure}" if job.failure else "")
            + (f", after {format_duration(job.ended_at - job.started_at)}" if job.started_at is not None else ""),
        )
    yield from _list_ways_on(seen)
    if job.requeued:
        yield "begun again", f"{format_count(job.requeued, 'time')} after it was lost, preempted or out of memory"
    if handed_in.source is not None:
        yield "from", handed_in.source


def _list_ways_on(seen: JobView) -> Iterator[tuple[str, object]]:
    """What to do about one that has failed."""
    job = seen.job
    if job.state is not JobState.FAILED or job.run_id is None:
        return
    if not seen.run_gone:
        yield "find out why", f"holdfast diagnose {job.run_id}    holdfast logs {job.run_id}"
    mended = " (once its cause is mended)" if job.failure in SAME_AGAIN else ""
    yield "try again", f"holdfast queue retry {job.label}{mended}"
    if not seen.run_gone:
        yield "or changed", f"holdfast restart {job.run_id} -- COMMAND (or --job FILE)"
    if job.outcome == Outcome.SUCCEEDED.value and job.failure:
        yield "take it as done", f"holdfast queue accept {job.label}"


def _say_start(seen: JobView, now: float) -> tuple[str, object] | None:
    """When the job started; of one whose run checks or stands in line, when that was made."""
    made, began = seen.job.started_at, seen.began_at
    if began is None and made is not None and seen.job.state in ACTIVE_STATES:
        return "run made", f"{format_moment(made, now)}; the job itself has not started"
    begun = made if began is None else began
    return None if begun is None else ("started", format_moment(begun, now))


def _command_of(seen: JobView) -> str:
    command = seen.spec.get("command")
    words = tuple(str(word) for word in command) if isinstance(command, (list, tuple)) else ()
    return shlex.join(redact_argv(words)[0])


def _print_advice(seen: JobView) -> None:
    if not seen.needs_a_person:
        if seen.worker_problem:
            print(f"  {clean(seen.worker_problem)}")
        return
    what = "; ".join(dict.fromkeys(reason.way for reason in seen.reasons if reason.way))
    print(f"  this does not pass by itself{': ' + clean(what) if what else ''}")


def _say_estimate(seen: JobView) -> str:
    span, basis = seen.estimate, seen.estimate.basis
    if seen.job.state in ACTIVE_STATES:
        return f"ends in about {format_duration(span.end_s)} ({basis})" if span.end_s is not None else f"none: {basis}"
    if span.start_s is None:
        return f"none: {basis if basis.startswith(NO_BASIS) else 'when what it waits for ends is not known'}"
    start = (
        "starts as soon as the worker looks" if not span.start_s else f"starts in about {format_duration(span.start_s)}"
    )
    if span.end_s is None:
        return f"{start}; how long it takes is not known: {basis}"
    return f"{start}, ends in about {format_duration(span.end_s)} ({basis})"
