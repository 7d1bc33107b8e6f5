"""Orders to the queue: what is asked of cells, groups and the whole queue, and what it came to, in words."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import click

from holdfast.cli.render import note, print_json
from holdfast.model.errors import UsageError
from holdfast.model.queue import ACTIVE_STATES, WAITING_STATES, CellState, OrderVerb

from .opening import build_order, open_queue, start_worker
from .times import format_moment

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from holdfast.model.queue import Cell, Group
    from holdfast.store.queue import Queue

SHOWN_LABELS = 5
MOST_SLOTS = 4096
RETRIED = frozenset({CellState.FAILED, CellState.CANCELLED, CellState.HELD})


@dataclass(frozen=True, slots=True)
class Change:
    """What an order did: the word for it, its cells, sentences beside it, and the exit code."""

    did: str
    cells: tuple[Cell, ...] = ()
    group: str | None = None
    notes: tuple[str, ...] = ()
    exit_code: int = 0
    facts: dict[str, object] = field(default_factory=dict)

    @property
    def named(self) -> bool:
        """Whether the words name the cells already."""
        return all(cell.label in self.did.replace(",", " ").split() for cell in self.cells)


def name_cells(cells: Sequence[Cell]) -> str:
    """``a, b, c and 7 more``."""
    shown = ", ".join(cell.label for cell in cells[:SHOWN_LABELS])
    return f"{shown} and {len(cells) - SHOWN_LABELS} more" if len(cells) > SHOWN_LABELS else shown


def count_cells(number: int) -> str:
    """``1 cell``, ``2 cells``."""
    return f"{number} cell{'' if number == 1 else 's'}"


def report(change: Change, *, as_json: bool) -> int:
    """Say what was done, and to what."""
    if as_json:
        cells = [{"id": cell.id, "cell": cell.label, "state": cell.state, "note": cell.note} for cell in change.cells]
        print_json({"did": change.did, "group": change.group, "cells": cells, "notes": change.notes, **change.facts})
        return change.exit_code
    if change.cells and not change.named:
        print(f"{change.did}: {name_cells(change.cells)}")
    else:
        print(change.did)
    for text in change.notes:
        note(text)
    return change.exit_code


def find_group(queue: Queue, word: str) -> Group | None:
    """The group that is called so, with or without a slash at the end; None without."""
    return queue.groups().get(word.rstrip("/"))


def require_group(queue: Queue, word: str) -> Group:
    """The group that is called so.

    Raises:
        UsageError: there is none; near names are proposed.
    """
    found = find_group(queue, word)
    if found is not None:
        return found
    import difflib

    names = list(queue.groups())
    near = difflib.get_close_matches(word.rstrip("/"), names, n=1)
    hint = f"did you mean {near[0]}?" if near else f"groups: {', '.join(names[:10]) or 'none yet'}"
    raise UsageError(f"there is no group {word!r} in the queue", hint=hint)


def pause(group: str | None) -> Change:
    """Start nothing more of a group, or of the whole queue; what runs goes on."""
    with open_queue() as queue:
        name = None if group is None else require_group(queue, group).name
        queue.order(build_order(OrderVerb.PAUSE, group=name))
        active = [cell for cell in queue.active() if name is None or cell.group == name]
        what = "the queue is paused: nothing new starts" if name is None else f"group {name} is paused"
        notes = [f"{count_cells(len(active))} still at work: {name_cells(active)}"] if active else []
        notes.append(f"go on: holdfast queue resume{'' if name is None else f' {name}'}")
        return Change(what, group=name, notes=tuple(notes), facts={"active": len(active)})


def resume(words: Sequence[str], *, accept_changes: bool, with_environment: bool) -> Change:
    """Let a group, cells or the whole queue go on."""
    with open_queue() as queue:
        values: dict[str, object] = {"accept_changes": True} if accept_changes else {}
        notes = _give_environment(queue, _held_of(queue, words)) if with_environment else []
        if not words:
            cells = queue.order(build_order(OrderVerb.RESUME, values=values))
            what = "the queue goes on"
        else:
            cells, what = _resume_some(queue, words, values)
        if start_worker(queue):
            notes.append("a worker was started")
        return Change(what, cells, notes=tuple(notes))


def _resume_some(queue: Queue, words: Sequence[str], values: dict[str, object]) -> tuple[tuple[Cell, ...], str]:
    changed: list[Cell] = []
    groups = [found.name for word in words if (found := find_group(queue, word)) is not None]
    for name in groups:
        changed += queue.order(build_order(OrderVerb.RESUME, group=name, values=values))
    others = [word for word in words if find_group(queue, word) is None]
    if others:
        held = [cell for cell in queue.find(others) if cell.state is CellState.HELD]
        if not held:
            raise UsageError(f"{', '.join(others)}: not held", hint="`holdfast queue show CELL` says why it waits")
        changed += queue.order(build_order(OrderVerb.RESUME, cells=held, values=values))
    what = ", ".join([*(f"group {name}" for name in groups), *others])
    return tuple(changed), f"{what} {'goes' if len(words) == 1 else 'go'} on"


def _held_of(queue: Queue, words: Sequence[str]) -> list[Cell]:
    held = queue.cells(states=(CellState.HELD,))
    if not words:
        return held
    wanted = {cell.id for cell in queue.find(words)}
    return [cell for cell in held if cell.id in wanted]


def _give_environment(queue: Queue, cells: Iterable[Cell]) -> list[str]:
    """Give this shell's secrets to the environments of held cells; sentences about what is still missing."""
    from holdfast.agent.queueing.environment import refresh

    ids = {queue.submission_of(cell.id).environment for cell in cells} - {""}
    missing = sorted({name for one in ids for name in refresh(one, os.environ, directory=queue.directory)})
    return [f"this shell does not have: {', '.join(missing)}; export them and say it again"] if missing else []


def drain(*, wait: bool) -> Change:
    """Let what runs end, start nothing new; with `wait` come back when nothing runs any more."""
    with open_queue() as queue:
        queue.order(build_order(OrderVerb.DRAIN))
        active = queue.active()
        if wait and active:
            from .waiting import wait_idle

            wait_idle(queue)
            active = queue.active()
        left = f"{count_cells(len(active))} still at work: {name_cells(active)}" if active else "nothing is at work"
        return Change(
            "the queue is being drained: nothing new starts" if active else "the queue is drained",
            notes=(left, "go on: holdfast queue resume"),
            facts={"active": len(active)},
        )


def cancel(words: Sequence[str], *, running: bool, now: bool, yes: bool, as_json: bool) -> Change:
    """Take cells out of the queue; those at work only with `running`, and then their runs are stopped."""
    with open_queue() as queue:
        found = queue.find(words)
        waiting = [cell for cell in found if cell.state in WAITING_STATES or cell.state is CellState.ELSEWHERE]
        active = [cell for cell in found if cell.state in ACTIVE_STATES]
        closed = len(found) - len(waiting) - len(active)
        chosen = [*waiting, *active] if running else waiting
        notes = [f"left alone, ended before: {count_cells(closed)}"] if closed else []
        if active and not running:
            notes.append(f"left at work: {name_cells(active)}; to stop them too: --running")
        if not chosen:
            return Change("nothing was cancelled", notes=tuple(notes), exit_code=1)
        if (running and active) or len(chosen) > 1 or len(words) > 1:
            _confirm(chosen, active if running else [], yes=yes, as_json=as_json)
        queue.order(build_order(OrderVerb.CANCEL, cells=chosen))
        if running:
            notes += _stop_runs(active, now=now)
        after = queue.find([cell.label for cell in chosen])
        stopping = [cell for cell in after if cell.state in ACTIVE_STATES]
        if stopping:
            notes.append(f"asked to stop, with their grace: {name_cells(stopping)}; `holdfast queue ls` shows them")
        # More than a few are named as they were here, which also tries those of them again that failed.
        names = [cell.label for cell in chosen] if len(chosen) <= SHOWN_LABELS else words
        notes.append(f"take {'it' if len(chosen) == 1 else 'them'} back: holdfast queue retry {' '.join(names)}")
        return Change("cancelled", after, notes=tuple(notes))


def _confirm(chosen: Sequence[Cell], active: Sequence[Cell], *, yes: bool, as_json: bool) -> None:
    if yes:
        return
    runs = f"; {count_cells(len(active))} of them run and will be stopped" if active else ""
    question = f"Cancel {count_cells(len(chosen))} ({name_cells(chosen)}){runs}?"
    if as_json or sys.stdin is None or not sys.stdin.isatty():
        message = f"nothing was cancelled, {count_cells(len(chosen))} would be{runs}: there is no terminal to ask on"
        raise UsageError(message, hint="say --yes")
    click.confirm(question, abort=True)


def _stop_runs(active: Sequence[Cell], *, now: bool) -> list[str]:
    """Ask the runs to stop; the worker notes their end. What cannot be asked is said and hides nothing else."""
    from holdfast.agent import acting, observe
    from holdfast.model.errors import HoldfastError
    from holdfast.model.run import Wish

    said = []
    for cell in active:
        if cell.run_dir is None:
            continue
        try:
            if cell.lean:
                from holdfast.agent.queueing import lean

                lean.stop(cell)
                continue
            view = observe.observe(cell.run_dir)
            if view.attempt and not view.over:
                acting.ask_stop(
                    view, Wish.STOP_NOW if now else Wish.STOP, by=acting.describe_caller(), reason="cell cancelled"
                )
        except (HoldfastError, OSError) as error:
            said.append(f"{cell.label}: its run could not be asked to stop: {error}; holdfast stop {cell.run_id}")
    return said


def move(word: str, *, first: bool, last: bool, before: str | None) -> Change:
    """Put cells of one priority before or behind others."""
    if first + last + (before is not None) != 1:
        raise UsageError("say exactly one of --first, --last, --before CELL", hint="holdfast queue move CELL --first")
    with open_queue() as queue:
        cells = queue.find([word])
        values: dict[str, object] = {"to": "first" if first else "last"}
        if before is not None:
            targets = queue.find([before])
            if len(targets) != 1:
                raise UsageError(f"--before: {before!r} is {count_cells(len(targets))}", hint="name one cell")
            values = {"to": "before", "key": targets[0].key}
        moved = queue.order(build_order(OrderVerb.MOVE, cells=cells, values=values))
        start_worker(queue)
        where = f"before {before}" if before is not None else str(values["to"])
        return Change(f"moved {where}", moved, notes=("within one priority; `edit --priority` puts it before others",))


def edit(word: str, values: dict[str, object]) -> Change:
    """Change what holds for a cell's start, or for a group."""
    if not values:
        raise UsageError("nothing to change: say what", hint="holdfast queue edit CELL --priority 10")
    with open_queue() as queue:
        group = find_group(queue, word)
        of_group = {"max_parallel", "hold_after"} & values.keys()
        if group is None and of_group:
            names = ", ".join(f"--{name.replace('_', '-')}" for name in sorted(of_group))
            raise UsageError(f"{names}: holds for a group, and {word!r} is none", hint="name the group: GROUP/")
        if group is not None and (word.endswith("/") or of_group):
            changed = queue.order(build_order(OrderVerb.EDIT, group=group.name, values=values))
            name: str | None = group.name
        else:
            changed = queue.order(build_order(OrderVerb.EDIT, cells=queue.find([word]), values=values))
            name = None
        start_worker(queue)
        words = ", ".join(f"{key.replace('_', '-')} {_say(key, value)}" for key, value in values.items())
        return Change(f"{'group ' + name if name else 'changed'}: {words}", changed, name)


def _say(key: str, value: object) -> str:
    if key == "not_before" and isinstance(value, float):
        return format_moment(value, time.time())
    return "none" if value is None else str(value)


def set_slots(cpu_slots: int | None) -> Change:
    """How many CPU slots there are for cells without cards."""
    with open_queue() as queue:
        queue.order(build_order(OrderVerb.EDIT, values={"cpu_slots": cpu_slots}))
        start_worker(queue)
        number = "as many as this account may use CPUs" if cpu_slots is None else str(cpu_slots)
        return Change(f"CPU slots: {number}", facts={"cpu_slots": cpu_slots})


def read_slots(text: str) -> int | None:
    """A number of CPU slots; None for ``auto``.

    Raises:
        UsageError: it is neither.
    """
    if text.strip().lower() == "auto":
        return None
    if not (text.isascii() and text.isdigit()) or not 0 <= int(text) <= MOST_SLOTS:
        raise UsageError(f"--cpu-slots: {text[:20]!r} is no number of slots", hint="0 to 4096, or auto")
    return int(text)


def retry(words: Sequence[str], *, failed: bool) -> Change:
    """Queue failed, cancelled and held cells again; each goes on with the next attempt of its run.

    A cell that was done and is proven so no more (`queue check`) counts as failed when it is named.
    """
    from .checking import find_unproven

    if not words and not failed:
        raise UsageError("say which cells: CELL, GROUP/, or --failed for every failed one", hint="holdfast queue ls")
    with open_queue() as queue:
        found: Sequence[Cell] = queue.find(words) if words else queue.cells(states=(CellState.FAILED,))
        states = {CellState.FAILED} if failed else RETRIED
        unproven = [] if failed else find_unproven(found, words)
        ids = {cell.id for cell in found if cell.state in states} | {cell.id for cell in unproven}
        chosen, left = [cell for cell in found if cell.id in ids], [cell for cell in found if cell.id not in ids]
        notes = [f"left alone: {name_cells(left)} ({_say_states(left)})"] if left else []
        if not chosen:
            return Change("nothing to try again", notes=tuple(notes), exit_code=0 if not left else 1)
        again = queue.order(build_order(OrderVerb.RETRY, cells=chosen, values={"done": True} if unproven else {}))
        if start_worker(queue):
            notes.append("a worker was started")
        return Change("queued again", again, notes=tuple(notes))


def _say_states(cells: Sequence[Cell]) -> str:
    return ", ".join(sorted({cell.state.value for cell in cells}))


def clear(words: Sequence[str]) -> Change:
    """Take closed groups out of the list; their runs stay, the environments that nothing needs any more do not."""
    from holdfast.agent.queueing.environment import forget_all_but

    from .submitting import one_at_a_time

    with open_queue() as queue:
        before = queue.counts()
        if not words:
            queue.order(build_order(OrderVerb.CLEAR))
        for word in words:
            queue.order(build_order(OrderVerb.CLEAR, group=require_group(queue, word).name))
        with one_at_a_time(queue.directory):
            forget_all_but(queue.environments(), directory=queue.directory)
        after = queue.counts()
        names = [name for name, numbers in before.items() if _sum(after.get(name, {})) < _sum(numbers)]
        what = f"taken out of the list: {', '.join(names)}" if names else "nothing to clear: no group is closed"
        return Change(what, notes=("their runs stay: holdfast ls",) if names else (), facts={"groups": names})


def _sum(counts: dict[CellState, int]) -> int:
    return sum(counts.values())
