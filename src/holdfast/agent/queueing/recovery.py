"""What the run directories say about a queue's cells, for a queue whose database had to be made again (docs/queue.md).

The database alone knows which cells have been started; when it is lost, the runs know. Each names its cell in its
``run.json``; where it stands, its own files and the process table say. A run that cannot be read is said to be one, so
that nobody takes "nothing was found" for "nothing has run".
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...host import files
from ...host.clock import parse_utc
from ...model import wire
from ...model.ids import is_run_id, name_of
from ...model.queue import Cell, CellRef, CellState
from ...model.run import Created, Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ...store.queue import Queue
    from ..observe import RunView

UNREADABLE = "run {path} cannot be read ({why}), so whether this cell has run already cannot be told"
_LIVELIEST = (CellState.RUNNING, CellState.CLAIMED, CellState.DONE, CellState.PRODUCED, CellState.HELD)


def open_queue(directory: str | None = None) -> Queue:
    """This account's queue, with what it takes to rebuild it.

    Raises:
        HoldfastError: it cannot be opened.
    """
    from ...store.queue import Queue

    return Queue(directory, find_runs=find_runs)


def find_runs(roots: Iterable[str], queue_id: str) -> list[Cell]:
    """The cells of that queue that have a run under `roots`, each as its run has it; one entry for each cell.

    Each has the cell's `key`, `group`, `name`, and of the run: `run_id`, `attempts`, the end of the last attempt, and
    the state that follows: RUNNING while it has not ended (or another attempt may follow by itself), CLAIMED when it
    was made and never begun, PRODUCED when it succeeded (somebody has still to prove it), else FAILED or CANCELLED; for
    lean cells DONE or FAILED by their record. A run of which it cannot be told whose it is has no `key`, the state
    HELD, the reason as `note`, and as `name` that of its job (empty when even that is not known).
    """
    found: dict[str, Cell] = {}
    suspects: list[Cell] = []
    for root in dict.fromkeys(roots):
        for cell in (*_scan(root, queue_id), *_scan_lean(root, queue_id)):
            if not cell.key:
                suspects.append(cell)
            elif cell.key not in found or _rank(cell) > _rank(found[cell.key]):
                found[cell.key] = cell
    return [*found.values(), *suspects]


def _rank(cell: Cell) -> tuple[int, str]:
    """Of two runs of one cell the one that lives counts, then the one that succeeded, then the newer."""
    place = _LIVELIEST.index(cell.state) if cell.state in _LIVELIEST else len(_LIVELIEST)
    return -place, cell.run_id or ""


def _scan(root: str, queue_id: str) -> Iterator[Cell]:
    try:
        names = sorted(name for name in os.listdir(root) if is_run_id(name))
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


def _suspect(root: str, run_id: str, why: str, *, path: str | None = None) -> Cell:
    note = UNREADABLE.format(path=path or f"{root}/{run_id}", why=why)
    name = name_of(run_id) if run_id else ""
    return Cell(0, "", "", name, CellState.HELD, runs_root=root, run_id=run_id or None, note=note)


def _read_reference(data: bytes) -> CellRef | None:
    """Whose run it is; also of a file that is damaged elsewhere."""
    try:
        return wire.decode(CellRef, wire.parse_object(data, wire.RUN).get("cell"), wire.RUN)
    except wire.WireError:
        pass
    part = re.search(rb'"cell":\s*(\{[^{}]*\})', data)
    if part is None:
        return None
    try:
        return wire.decode(CellRef, wire.parse_object(part[1], wire.RUN), wire.RUN)
    except wire.WireError:
        return None


def _describe(root: str, run_id: str, reference: CellRef) -> Cell:
    from ..observe import observe

    view = observe(f"{root}/{run_id}")
    cell = Cell(
        id=0,
        key=reference.key,
        group=reference.group,
        name=reference.name,
        state=CellState.RUNNING,
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
    return replace(cell, state=state, note=note)


def _judge(view: RunView) -> tuple[CellState, str]:
    from ..observe import UNREADABLE as NO_STATE
    from ..observe import Reach
    from ..retrying import may_be_followed

    if view.attempt == 0:
        return CellState.CLAIMED, ""
    if view.condition == NO_STATE:
        return CellState.HELD, f"{view.run_dir}: {view.note}"
    if not view.ended:
        if view.reach is not Reach.HERE:
            return CellState.HELD, f"its run {view.run_id}: {view.note}"
        untouched = view.state is not None and isinstance(view.state.state, Created) and view.state.supervisor is None
        if untouched and view.attempt == 1:
            return CellState.CLAIMED, ""
        # Also when nothing of it is left: its worker settles it and says what follows.
        return CellState.RUNNING, ""
    outcome = view.end.outcome.value if view.end is not None else _text(view.exit.get("outcome"))
    if outcome == Outcome.SUCCEEDED.value:
        return CellState.PRODUCED, ""
    if outcome in (Outcome.LOST.value, Outcome.PREEMPTED.value) or may_be_followed(view):
        return CellState.RUNNING, ""
    return (CellState.CANCELLED if outcome == Outcome.STOPPED.value else CellState.FAILED), view.note


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _time(value: object) -> float | None:
    try:
        return parse_utc(value) if isinstance(value, str) else None
    except (ValueError, IndexError):
        return None


def _scan_lean(root: str, queue_id: str) -> Iterator[Cell]:
    try:
        os.lstat(f"{root}/lean")
    except FileNotFoundError:
        return
    except OSError:
        # What follows meets it again, and says so.
        pass
    from . import lean

    for record in lean.find_records(root, queue_id):
        try:
            reference = wire.decode(CellRef, record, "lean record")
        except wire.WireError:
            yield _suspect_lean(root, record)
            continue
        yield _describe_lean(root, reference, record)


def _suspect_lean(root: str, record: dict[str, Any]) -> Cell:
    """A marker that cannot be read: the cell of that name may have run; without a name any of its group, or all."""
    path = _text(record.get("unreadable")) or f"{root}/lean/{record.get('group')}/{record.get('name')}.json"
    note = UNREADABLE.format(path=path, why="a marker of lean cells")
    group, name = _text(record.get("group")), _text(record.get("name"))
    return Cell(0, "", group, name, CellState.HELD, runs_root=root, lean=True, note=note)


def _describe_lean(root: str, reference: CellRef, record: dict[str, Any]) -> Cell:
    from . import lean

    cell = Cell(
        id=0,
        key=reference.key,
        group=reference.group,
        name=reference.name,
        state=CellState.CLAIMED,
        run_id=_text(record.get("run_id")) or None,
        runs_root=root,
        lean=True,
        started_at=_time(record.get("started_at")),
        ended_at=_time(record.get("ended_at")),
    )
    cell = replace(cell, attempts=_count_claims(lean.record_path(cell)))
    look = lean.look(cell)
    if look.phase in (lean.Phase.UNBEGUN, lean.Phase.LIVE):
        return cell
    state, facts = lean.judge(look)
    return replace(cell, state=state, **facts)


def _count_claims(path: str) -> int:
    """How often a lean cell was claimed: its record, and what earlier claims left beside it."""
    directory, name = os.path.split(path)
    stem = f"{name.removesuffix('.json')}.lean-"
    try:
        return 1 + sum(1 for other in os.listdir(directory) if other.startswith(stem) and other.endswith(".json"))
    except OSError:
        return 1
