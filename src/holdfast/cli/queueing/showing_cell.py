"""Everything about one cell: what it is, where it stands, why it waits, who holds the cards, and an estimate."""

from __future__ import annotations

import shlex
import time
from typing import TYPE_CHECKING

from holdfast.cli.render import clean, heading, pairs, print_json
from holdfast.core.forecast import Load, Room, Span, forecast
from holdfast.core.redact import redact_argv
from holdfast.model.queue import ACTIVE_STATES, WAITING_STATES, CellState
from holdfast.model.units import format_duration

from .estimating import Cost, find_cost
from .opening import describe_absence, look_for_worker
from .reasons import count_before, explain_cell, needs_a_person, read_situation
from .times import format_moment

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from holdfast.cli.cards import Box
    from holdfast.core.queueing import Reason, Situation
    from holdfast.model.queue import Cell, Submission
    from holdfast.store.queue import Queue

NO_BASIS = ("no cell like it", "it ", "what it needs")
MOST_PLANNED = 2000
"""Waiting cells that a schedule is made of; for a cell behind those there is no estimate."""


def print_cell(queue: Queue, cell: Cell, *, as_json: bool) -> int:
    """Print it; exit code 0."""
    active = queue.active()
    situation = read_situation(queue, active)
    before = count_before(queue, cell)
    reasons = explain_cell(queue, cell, situation, behind=before)
    submission = queue.submission_of(cell.id)
    box = _read_box(cell)
    holders = (
        [] if box is None else describe_holders(box, {other.run_id: other.label for other in active if other.run_id})
    )
    span, basis = _estimate(queue, cell, active, situation, box)
    worker, problem = look_for_worker(queue)
    if as_json:
        print_json(
            {
                "cell": cell,
                "label": cell.label,
                "reasons": [
                    {"why": reason.why.value, "words": reason.words, "until": reason.until, "cells": reason.cells}
                    for reason in reasons
                ],
                "needs_a_person": needs_a_person(reasons),
                "cells_before": before,
                "cards": holders,
                "estimate": {"start_s": span.start_s, "end_s": span.end_s, "basis": basis},
                "worker": worker is not None,
                "run_dir": cell.run_dir,
                "job": {**submission.base, **submission.cells[0].change},
            }
        )
        return 0
    pairs(_list_facts(cell, submission))
    if cell.state in WAITING_STATES:
        heading("why it waits")
        for reason in reasons:
            print(f"  {clean(reason.words)}")
        absence = "" if worker is not None else describe_absence(queue)
        _print_advice(cell, reasons, absence=absence, problem=problem)
    if holders:
        heading("cards of this box")
        for line in holders:
            print(f"  {clean(line)}")
    if cell.state in WAITING_STATES or cell.state in ACTIVE_STATES:
        heading("estimate")
        print(f"  {clean(_say_estimate(cell, span, basis))}")
    return 0


def _list_facts(cell: Cell, submission: Submission) -> Iterator[tuple[str, object]]:
    now = time.time()
    yield "cell", f"{cell.label} (id {cell.id})"
    yield "state", cell.state.value + (f": {cell.note}" if cell.note else "")
    yield "group", cell.group
    yield "command", _command_of(submission)
    if cell.params:
        yield "parameters", ", ".join(f"{name}={value}" for name, value in cell.params.items())
    yield (
        "takes",
        f"{cell.cards} card{'s' if cell.cards > 1 else ''}"
        if cell.cards
        else f"{cell.slots} CPU slot" + ("s" if cell.slots > 1 else ""),
    )
    if cell.priority:
        yield "priority", cell.priority
    if cell.not_before is not None:
        yield "not before", format_moment(cell.not_before, now)
    yield "handed in", f"{submission.at} by {submission.by}, from {submission.cwd}"
    yield "configuration", cell.sha256[:16]
    if cell.run_id is not None:
        # A lean cell has no run directory, only its record and its log.
        yield "run", cell.run_id if cell.lean else f"{cell.run_id}  (holdfast show {cell.run_id})"
        if cell.lean:
            from holdfast.agent.queueing.lean import log_path, record_path

            yield "record", record_path(cell)
            yield "log", log_path(cell)
        yield "attempts", cell.attempts
    if cell.started_at is not None:
        yield "started", format_moment(cell.started_at, now)
    if cell.ended_at is not None and cell.state not in ACTIVE_STATES:
        exit_code = "" if cell.exit_code is None else f", exit {cell.exit_code}"
        yield (
            "ended",
            f"{format_moment(cell.ended_at, now)}: {cell.outcome}{exit_code}"
            + (f", {cell.failure}" if cell.failure else "")
            + (f", after {format_duration(cell.ended_at - cell.started_at)}" if cell.started_at is not None else ""),
        )
    if cell.state is CellState.FAILED and cell.run_id is not None and not cell.lean:
        yield "find out why", f"holdfast diagnose {cell.run_id}    holdfast logs {cell.run_id}"
        yield "try again", f"holdfast queue retry {cell.label}"
    if cell.requeued:
        yield "begun again", f"{cell.requeued} times after it was lost, preempted or out of memory"
    if submission.source is not None:
        yield "from", submission.source


def _command_of(submission: Submission) -> str:
    job = {**submission.base, **submission.cells[0].change}
    command = job.get("command")
    words = tuple(str(word) for word in command) if isinstance(command, (list, tuple)) else ()
    return shlex.join(redact_argv(words)[0])


def _print_advice(cell: Cell, reasons: Sequence[Reason], *, absence: str, problem: str) -> None:
    if needs_a_person(reasons):
        what = f"holdfast queue resume {cell.label}" if cell.state is CellState.HELD else ""
        if cell.state is CellState.HELD and "`holdfast queue " in cell.note:
            # The note has the command, with what it takes for this cell.
            print("  this does not pass by itself")
            return
        if not what:
            ways = (_way_on(cell, reason.why.value) for reason in reasons)
            what = "; ".join(dict.fromkeys(way for way in ways if way))
        print(f"  this does not pass by itself{': ' + clean(what) if what else ''}")
    elif problem:
        print(f"  {clean(problem)}")
    elif absence:
        print(f"  {absence}")


def _way_on(cell: Cell, why: str) -> str:
    ways = {
        "queue_paused": "holdfast queue resume",
        "draining": "holdfast queue resume",
        "group_paused": f"holdfast queue resume {cell.group}",
        "group_held": f"holdfast queue resume {cell.group}",
        "needs_failed": "holdfast queue retry, for the cells that it needs",
        "no_slots": "holdfast queue set --cpu-slots auto",
    }
    return ways.get(why, "")


def _read_box(cell: Cell) -> Box | None:
    """The cards, for a cell that waits for some, or stands in line for them."""
    if not cell.cards or cell.state not in {*WAITING_STATES, *ACTIVE_STATES}:
        return None
    from holdfast.cli.cards import read_box

    return read_box()


def describe_holders(box: Box, labels: Mapping[str, str]) -> list[str]:
    """Who has each card, since when, and what stands in the box's line; one line each. `labels` are cells by run."""
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
    return f"run {run_id}" + (f" (cell {labels[run_id]})" if run_id in labels else "")


def _estimate(
    queue: Queue, cell: Cell, active: Sequence[Cell], situation: Situation, box: Box | None
) -> tuple[Span, str]:
    """When the cell starts and ends, and what that rests on, or why there is no estimate."""
    if cell.state is CellState.HELD or cell.state not in {*WAITING_STATES, *ACTIVE_STATES}:
        return Span(
            None, None
        ), "it starts when somebody lets it go on" if cell.state is CellState.HELD else "it is over"
    costs: dict[tuple[str, float | None], Cost] = {}

    def cost_of(other: Cell) -> Cost:
        key = (other.group, other.expected_s)
        if key not in costs:
            costs[key] = find_cost(queue, other)
        return costs[key]

    now = situation.now
    needs = queue.needs_of(cell.id) if cell.state is CellState.BLOCKED else ()
    if any(need.state not in {CellState.QUEUED, *ACTIVE_STATES} for need in needs):
        return Span(None, None), "what it needs does not go on by itself now"
    running = [Load(str(c.id), c.group, c.cards, c.slots, cost_of(c).left(c, now)) for c in active]
    # Other blocked cells start any time or never: they are left out.
    waiting = [
        other
        for other in queue.cells(states=(CellState.QUEUED, CellState.BLOCKED), limit=MOST_PLANNED)
        if other.state is CellState.QUEUED or other.id == cell.id
    ]
    loads = [_load(other, cost_of(other), now, needs if other.id == cell.id else ()) for other in waiting]
    room = Room(_count_cards(box, active), situation.cpu_slots, _limits(situation))
    span = forecast(running, loads, room).get(str(cell.id), Span(None, None))
    cost = cost_of(cell)
    if cost.seconds is None:
        return span, "no cell like it is done yet, and no expected time was stated (--expected)"
    samples = f"from {cost.samples} done cell{'s' if cost.samples != 1 else ''}"
    return span, samples if cost.samples else "from the expected time that was stated"


def _load(cell: Cell, cost: Cost, now: float, needs: Sequence[Cell]) -> Load:
    ready_s = 0.0 if cell.not_before is None else max(0.0, cell.not_before - now)
    ids = tuple(str(need.id) for need in needs)
    return Load(str(cell.id), cell.group, cell.cards, cell.slots, cost.seconds, ids, ready_s)


def _limits(situation: Situation) -> dict[str, int]:
    """How many cells each group may run; none while it is stopped."""
    limits = {}
    for name, group in situation.groups.items():
        if group.paused or group.held or situation.starts_nothing:
            limits[name] = 0
        elif group.max_parallel is not None:
            limits[name] = group.max_parallel
    return limits


def _count_cards(box: Box | None, active: Sequence[Cell]) -> int | None:
    """Cards that our cells have or could have now: when others give theirs back nobody can tell."""
    if box is None or not box.inventory.complete:
        return None
    runs = {cell.run_id for cell in active if cell.run_id is not None}
    return sum(
        not place.unavailable or (place.lease is not None and place.lease.run_id in runs)
        for place in box.places
        if place.part is None
    )


def _say_estimate(cell: Cell, span: Span, basis: str) -> str:
    if cell.state in ACTIVE_STATES:
        return f"ends in about {format_duration(span.end_s)} ({basis})" if span.end_s is not None else f"none: {basis}"
    if span.start_s is None:
        return f"none: {basis if basis.startswith(NO_BASIS) else 'when what it waits for ends is not known'}"
    start = (
        "starts as soon as the worker looks" if not span.start_s else f"starts in about {format_duration(span.start_s)}"
    )
    if span.end_s is None:
        return f"{start}; how long it takes is not known: {basis}"
    return f"{start}, ends in about {format_duration(span.end_s)} ({basis})"
