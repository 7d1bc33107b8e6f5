"""Cells added to a sweep while it runs: over the job, the settings and the layers that it was handed in with.

The record of the sweep holds its text, so an edit of the file since then changes nothing here. What it only names, the
job file's configuration and overlays, must be what it was: else the new cells could not be compared with the old ones.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from holdfast.cli.queueing.submitting import Wishes
from holdfast.core.cells import find_collisions
from holdfast.host import files
from holdfast.model import wire
from holdfast.model.errors import StorageError, UsageError
from holdfast.model.job import JobSpec

from .handing import RECORDS, build, read_axes
from .sweepfile import SweepFile, parse_sweep
from .tables import load_cells

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.store.queue import Queue

    from .handing import Plan

MOST_COMPARED = 2000
"""Cells that are there already and whose output paths are compared with those of the new ones."""


def plan_more(queue: Queue, name: str, *, axes: Sequence[str], table: str | None, accept_changes: bool) -> Plan:
    """The further cells of a sweep that is in the queue.

    Raises:
        UsageError: there is no such sweep, nothing to add, its files have changed, or two cells would collide.
        JobFileError: the table has mistakes.
    """
    record = read_record(queue.directory, name)
    if not axes and table is None:
        raise UsageError("nothing to add", hint=f"holdfast sweep add {name} --grid lr=1e-2, or --cells more.csv")
    if not accept_changes:
        _refuse_changes(record["files"])
    sweep = _restore(record)
    sweep.axes = read_axes(axes)
    sweep.cells = load_cells(table) if table is not None else []
    spec = wire.decode(JobSpec, record["base"])
    wishes = Wishes(
        group=name,
        priority=sweep.priority,
        needs=sweep.after,
        claims=record["claims"],
        named=True,
        shared=sweep.shared,
    )
    made = build(sweep, spec, wishes, all_cells=False)
    _refuse_collisions(queue, made)
    return made


def read_record(directory: str, name: str) -> dict[str, Any]:
    """What a sweep was made from.

    Raises:
        UsageError: no sweep of this name was handed in here.
        StorageError: it cannot be read.
    """
    path = f"{directory}/{RECORDS}/{name.rstrip('/')}.json"
    try:
        return wire.parse_object(files.read_bytes(path), path)
    except FileNotFoundError:
        raise UsageError(
            f"there is no sweep {name!r} in this queue", hint="`holdfast queue ls` lists the groups; hand the sweep in"
        ) from None
    except (OSError, wire.WireError) as error:
        raise StorageError(f"{path} cannot be read: {error}", hint="hand the sweep file in again") from error


def _restore(record: dict[str, Any]) -> SweepFile:
    """The sweep as it was handed in."""
    path = str(record["path"])
    sweep = parse_sweep(record["text"], path) if record["text"] else SweepFile(path, os.path.dirname(path))
    sweep.job_file = record["job_file"]
    sweep.settings = dict(record["settings"])
    sweep.arguments = tuple(record["arguments"])
    sweep.shared = tuple(record["shared"])
    sweep.after, sweep.priority = tuple(record["after"]), int(record["priority"])
    sweep.exclude = []
    return sweep


def _refuse_changes(known: dict[str, str]) -> None:
    import hashlib

    changed = []
    for path, sha256 in known.items():
        try:
            now = hashlib.sha256(files.read_bytes(path)).hexdigest()
        except OSError:
            now = ""
        if now != sha256 or not now:
            changed.append(path)
    if changed:
        raise UsageError(
            f"changed since the sweep was handed in: {', '.join(changed)}; new cells would differ from the old ones",
            hint="say --accept-changes if that is meant, or hand the sweep in under another --name",
        )


def _refuse_collisions(queue: Queue, made: Plan) -> None:
    """Compare the new cells' output paths with those of the cells that are there."""
    new = {cell.name for cell in made.built.cells}
    jobs = [{**made.built.base, **cell.change} for cell in made.built.cells]
    names = [cell.name for cell in made.built.cells]
    for cell in queue.cells(group=made.group)[:MOST_COMPARED]:
        if cell.name not in new:
            known = queue.submission_of(cell.id)
            jobs.append({**known.base, **known.cells[0].change})
            names.append(cell.name)
    problems = find_collisions(jobs, names, shared=made.sweep.shared)
    if problems:
        raise UsageError("\n".join(problems[:10]), hint="nothing was added; give each its own place with {cell}")
