"""The queue from the desk: opened with what a rebuild needs, its worker looked for and started, its names completed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.cli.render import note

if TYPE_CHECKING:
    from collections.abc import Iterable

    import click
    from click.shell_completion import CompletionItem

    from holdfast.agent.queueing.presence import WorkerFacts
    from holdfast.model.queue import Cell, Order, OrderVerb
    from holdfast.store.queue import Queue

MOST_COMPLETIONS = 50
COMPLETED_CELLS = 2000
"""Cells that are looked through at a TAB: it has to answer at once."""


def open_queue() -> Queue:
    """This account's queue on this box; that it had to be rebuilt is said.

    Raises:
        HoldfastError: it cannot be opened.
    """
    from holdfast.store.queue import Queue

    queue = Queue(find_runs=_find_runs)
    if queue.notice:
        note(queue.notice)
    return queue


def _find_runs(roots: Iterable[str], queue_id: str) -> Iterable[Cell]:
    # Only a rebuild needs it.
    from holdfast.agent.queueing.recovery import find_runs

    return find_runs(roots, queue_id)


def build_order(
    verb: OrderVerb, *, group: str | None = None, cells: Iterable[Cell] = (), values: dict[str, object] | None = None
) -> Order:
    """An order of the caller's, now."""
    from holdfast.host.clock import utc_now
    from holdfast.model.queue import Order

    keys = tuple(cell.key for cell in cells)
    return Order(verb, by=describe_caller(), at=utc_now(), group=group, cells=keys, values=values or {})


def describe_caller() -> str:
    """Who asks, for the record."""
    from holdfast.host.processes import user_name

    return f"{user_name(os.getuid())} (pid {os.getpid()})"


def start_worker(queue: Queue) -> bool:
    """See that a worker looks after what was committed; True when one was started.

    That none can be had loses nothing: what was handed in is on the disk. So it is said and no error.
    """
    from holdfast.agent.queueing.presence import ensure_worker
    from holdfast.model.errors import HoldfastError

    try:
        return ensure_worker(queue.directory, os.environ)
    except (HoldfastError, OSError) as error:
        note(f"no worker could be started: {error}; nothing is lost, any `holdfast queue` command tries again")
        return False


def look_for_worker(queue: Queue) -> tuple[WorkerFacts | None, str]:
    """The worker at work, and a sentence when that could not be looked at."""
    from holdfast.agent.queueing.presence import read_worker
    from holdfast.model.errors import HoldfastError

    try:
        return read_worker(queue.directory), ""
    except HoldfastError as error:
        return None, f"whether a worker is there cannot be told: {error}"


def describe_absence(queue: Queue) -> str:
    """That no worker is there, for people; one that was started a moment ago is not missed yet."""
    from holdfast.agent.queueing.presence import was_just_started

    if was_just_started(queue.directory):
        return "a worker is just being started"
    return "no worker is there to go on; `holdfast queue resume` starts one"


def list_words(queue: Queue, incomplete: str) -> list[tuple[str, str]]:
    """Groups and cells that begin with `incomplete`, as (word, help)."""
    words = {}
    for name, group in queue.groups().items():
        if f"{name}/".startswith(incomplete):
            words[f"{name}/"] = f"the whole group ({group.kind.value})"
    for cell in queue.cells(limit=COMPLETED_CELLS):
        if cell.label.startswith(incomplete):
            words[cell.label] = cell.state.value
    return list(words.items())[:MOST_COMPLETIONS]


def complete_cells(
    ctx: click.Context,  # noqa: ARG001 - click's signature
    param: click.Parameter,  # noqa: ARG001 - click's signature
    incomplete: str,
) -> list[CompletionItem]:
    """Cells and groups of the queue that begin with `incomplete`."""
    from click.shell_completion import CompletionItem

    try:
        return [CompletionItem(word, help=about) for word, about in _look_up(incomplete)]
    except Exception:  # noqa: BLE001 - a TAB must never print an error into somebody's command line
        return []


def complete_groups(
    ctx: click.Context,  # noqa: ARG001 - click's signature
    param: click.Parameter,  # noqa: ARG001 - click's signature
    incomplete: str,
) -> list[CompletionItem]:
    """Groups of the queue that begin with `incomplete`."""
    from click.shell_completion import CompletionItem

    try:
        words = [word.rstrip("/") for word, _ in _look_up(incomplete) if word.endswith("/")]
    except Exception:  # noqa: BLE001 - as above
        return []
    return [CompletionItem(word) for word in words]


def complete_anything(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Cells, groups and runs."""
    from holdfast.cli.completion import complete_runs

    return [*complete_cells(ctx, param, incomplete), *complete_runs(ctx, param, incomplete)]


def _look_up(incomplete: str) -> list[tuple[str, str]]:
    from holdfast.store.queue import Queue, queue_directory

    if not os.path.isdir(queue_directory()):
        return []
    with Queue() as queue:
        return list_words(queue, incomplete)
