"""The roster of a group against what is on disk: what is done, missing, empty, failed, double, unverified (QUEUE-15).

The queue's own word is not believed: each cell that has run is looked at again (`completion.gather`). What is found is
only told; the one command that re-runs what is missing is proposed, never done. Bounded: content is read only when it
is asked for (`deep`).
"""

from __future__ import annotations

import hashlib
import os
import shlex
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ...core.completion import Evidence, Proof, Standing
from ...core.completion import judge as judge_evidence
from ...host import files
from ...model import wire
from ...model.ids import is_run_id
from ...model.queue import ACTIVE_STATES, Cell, CellState
from .completion import gather

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

MOST_RUNS = 20_000
"""Run directories that are looked through for runs of no cell, the newest first."""
MOST_NAMED = 20
"""Cells that a command names; more are asked for by their group."""
MOST_FILES = 50
MOST_NEEDS = 3
SMALLEST_COMPARED = 16
"""Bytes: shorter results ("ok") are the same for good reasons."""
RERUN_STATES = frozenset({CellState.FAILED, CellState.CANCELLED, CellState.HELD, CellState.DONE})


@dataclass(frozen=True, slots=True)
class Item:
    """One cell of the roster as this look found it; `path` is what the words are about."""

    cell: Cell
    standing: Standing
    why: str
    path: str = ""

    @property
    def done(self) -> bool:
        """Whether it is proven done."""
        return self.standing is Standing.DONE


@dataclass(frozen=True, slots=True)
class Remark:
    """Something that is not about one cell alone. `suspicious`: it may have a good reason; nothing is open for it."""

    standing: Standing
    subject: str
    why: str
    path: str
    suspicious: bool = True


@dataclass(frozen=True, slots=True)
class Report:
    """What a look at the roster found. `command` re-runs what is missing; None: `hint` says what comes instead."""

    groups: tuple[str, ...]
    items: tuple[Item, ...]
    remarks: tuple[Remark, ...] = ()
    command: str | None = None
    hint: str = ""

    @property
    def complete(self) -> bool:
        """Whether every cell of the roster is proven done; an empty roster proves nothing."""
        return bool(self.items) and all(item.done for item in self.items)

    @property
    def counts(self) -> dict[Standing, int]:
        """How many cells stand where."""
        found = Counter(item.standing for item in self.items)
        return {standing: found[standing] for standing in Standing if found[standing]}


def reconcile(queue: Any, group: str | None = None, *, deep: bool = False) -> Report:  # noqa: ANN401 - a store.Queue
    """Hold the roster of a group (without one: of every group) against what is on disk.

    Args:
        queue: An open `store.queue.Queue`.
        group: The group's name.
        deep: Read the results whole: their structure, and whether two cells have the same bytes.

    Raises:
        StorageError: the queue cannot be read.
    """
    cells: list[Cell] = queue.cells(group=group)
    known = queue.groups()
    names = (group,) if group is not None else tuple(known)
    looked = [(_name_needs(item, queue), evidence) for item, evidence in (_look(cell, deep=deep) for cell in cells)]
    items, remarks = _find_doubles(looked)
    if deep:
        remarks += list(_find_twins(items))
    remarks += list(_find_extra(cells, queue.settings().queue_id, set(names)))
    command, hint = _propose(items, paused=[name for name in names if name in known and known[name].paused])
    return Report(names, tuple(items), tuple(remarks), command, hint)


def _name_needs(item: Item, queue: Any) -> Item:  # noqa: ANN401 - a store.Queue
    """With what a blocked cell waits for, so that a line says why it has not run."""
    if item.cell.state is not CellState.BLOCKED:
        return item
    needs = [f"{cell.label} ({cell.state.value})" for cell in queue.needs_of(item.cell.id)]
    more = f" and {len(needs) - MOST_NEEDS} more" if len(needs) > MOST_NEEDS else ""
    return replace(item, why=f"{item.why}; needs {', '.join(needs[:MOST_NEEDS])}{more}") if needs else item


def look_at(cell: Cell) -> Item:
    """One cell as it stands by what is on disk now."""
    return _look(cell, deep=False)[0]


def _look(cell: Cell, *, deep: bool) -> tuple[Item, Evidence]:
    nothing = Evidence(exists=False)
    if cell.state in ACTIVE_STATES:
        return Item(cell, Standing.OPEN, f"{cell.state.value}: {cell.note or 'under way'}"), nothing
    if cell.state is CellState.ELSEWHERE:
        return Item(cell, Standing.OPEN, cell.note or "another box has it"), nothing
    if cell.state is CellState.DONE and cell.claims is not None and cell.run_id is None:
        return Item(cell, Standing.DONE, cell.note or "proven by another box"), nothing
    if cell.lean and cell.state in (CellState.DONE, CellState.FAILED):
        return _look_lean(cell), nothing
    if cell.run_dir is None:
        note = f": {cell.note}" if cell.note else ""
        return Item(cell, Standing.MISSING, f"has not run, {cell.state.value}{note}"), nothing
    if cell.state not in (CellState.DONE, CellState.FAILED):
        note = f": {cell.note}" if cell.note else ""
        taken_out = cell.state is CellState.CANCELLED
        words = cell.state.value if taken_out else f"{cell.state.value} for another attempt"
        return Item(cell, Standing.FAILED if taken_out else Standing.OPEN, f"{words}{note}", cell.run_dir), nothing
    evidence = gather(cell, cell.run_dir, expected_sha=cell.sha256, deep=deep)
    proof = judge_evidence(evidence)
    if cell.state is CellState.FAILED and proof.standing in (Standing.DONE, Standing.OPEN):
        # What failed it was seen when it ended, and is not undone by what is there now.
        proof = Proof(Standing.FAILED, cell.note or cell.failure or "ended without success")
    return Item(cell, proof.standing, proof.why, proof.path or cell.run_dir), evidence


def _look_lean(cell: Cell) -> Item:
    """A lean cell has one record and no run directory."""
    from ...model.errors import StorageError
    from . import lean

    try:
        path = lean.record_path(cell)
    except StorageError as error:
        return Item(cell, Standing.UNVERIFIED, str(error))
    if cell.run_id is None:
        return Item(cell, Standing.MISSING, f"has not run, {cell.state.value}", path)
    if not os.path.lexists(path):
        return Item(cell, Standing.MISSING, "its record is not there", path)
    found = lean.look(cell)
    if found.phase is not lean.Phase.ENDED:
        return Item(cell, Standing.UNVERIFIED, found.why or f"its record says {found.phase.value}", path)
    state, facts = lean.judge(found)
    if CellState.DONE is state is cell.state:
        return Item(cell, Standing.DONE, "lean: rests on its exit status", path)
    return Item(cell, Standing.FAILED, str(facts.get("note") or cell.note or "ended without success"), path)


def _find_doubles(looked: Sequence[tuple[Item, Evidence]]) -> tuple[list[Item], list[Remark]]:
    """Cells that rest on one run, one path or one file stand as doubles: it can be the result of one of them only."""
    owners: dict[tuple[object, ...], list[int]] = {}
    for index, (item, evidence) in enumerate(looked):
        if not item.done:
            continue
        run_id = None if item.cell.lean else item.cell.run_id
        marks: set[tuple[object, ...]] = {("run", run_id)} if run_id else set()
        for artifact in evidence.artifacts:
            marks.add(("path", os.path.realpath(artifact.path)))
            if artifact.inode:
                marks.add(("file", artifact.device, artifact.inode))
        for mark in marks:
            owners.setdefault(mark, []).append(index)
    items = [item for item, _ in looked]
    remarks = []
    told: set[tuple[int, ...]] = set()
    for mark, indexes in sorted(owners.items(), key=lambda pair: pair[1]):
        if len(indexes) < 2 or tuple(indexes) in told:
            continue
        told.add(tuple(indexes))
        labels = ", ".join(items[index].cell.label for index in indexes[:MOST_NAMED])
        paths = [artifact.path for artifact in looked[indexes[0]][1].artifacts]
        path = next((path for path in paths if mark == ("path", os.path.realpath(path))), None)
        path = path or (paths[0] if paths and mark[0] == "file" else items[indexes[0]].path)
        words = "one run" if mark[0] == "run" else "one file"
        remarks.append(Remark(Standing.DUPLICATE, labels, f"rest on {words}", path, suspicious=False))
        for index in indexes:
            items[index] = replace(
                items[index], standing=Standing.DUPLICATE, why=f"rests on {words} with {labels}", path=path
            )
    return items, remarks


def _find_twins(items: Iterable[Item]) -> Iterator[Remark]:
    """Results of different configurations with the same bytes; only files of one size are read."""
    by_size: dict[int, list[tuple[Cell, str]]] = {}
    for item in items:
        for path, size in _list_results(item) if item.done else ():
            by_size.setdefault(size, []).append((item.cell, path))
    for same in by_size.values():
        if len({cell.key for cell, _ in same}) < 2:
            continue
        by_hash: dict[str, list[tuple[Cell, str]]] = {}
        for cell, path in same:
            if digest := _hash(path):
                by_hash.setdefault(digest, []).append((cell, path))
        for twins in by_hash.values():
            if len({cell.sha256 for cell, _ in twins}) > 1:
                labels = ", ".join(dict.fromkeys(cell.label for cell, _ in twins[:MOST_NAMED]))
                why = f"have the same bytes in {os.path.basename(twins[0][1])}, with different configurations"
                yield Remark(Standing.DUPLICATE, labels, why, twins[0][1])


def _list_results(item: Item) -> Iterator[tuple[str, int]]:
    """Files with content that a run left, in its own directories, two levels deep."""
    count = 0
    for name in (wire.ARTIFACTS, wire.CHECKPOINTS):
        for directory, below, names in os.walk(f"{item.cell.run_dir}/{name}"):
            if directory.count("/") - f"{item.cell.run_dir}/{name}".count("/") >= 1:
                below.clear()
            for entry in sorted(names):
                try:
                    facts = os.lstat(f"{directory}/{entry}")
                except OSError:
                    continue
                if facts.st_size >= SMALLEST_COMPARED and count < MOST_FILES:
                    count += 1
                    yield f"{directory}/{entry}", facts.st_size


def _hash(path: str) -> str:
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    except OSError:
        return ""
    return digest.hexdigest()


def _find_extra(cells: Sequence[Cell], queue_id: str, groups: set[str]) -> Iterator[Remark]:
    """Runs that say they are of these groups and are no cell's: taken out of the roster, or a second run of a cell."""
    runs = {cell.run_id for cell in cells}
    by_key = {cell.key: cell for cell in cells}
    for root in sorted({cell.runs_root for cell in cells if cell.runs_root}):
        try:
            names = sorted((name for name in os.listdir(root) if is_run_id(name)), reverse=True)
        except OSError as error:
            yield Remark(Standing.UNVERIFIED, root, f"cannot be looked through: {error.strerror}", root)
            continue
        if len(names) > MOST_RUNS:
            why = f"holds {len(names)} runs; only the newest {MOST_RUNS} were looked through for runs of no cell"
            yield Remark(Standing.UNVERIFIED, root, why, root)
        for name in names[:MOST_RUNS]:
            ref = _read_cell(f"{root}/{name}/{wire.RUN}") if name not in runs else {}
            if ref.get("queue") != queue_id or ref.get("group") not in groups:
                continue
            cell = by_key.get(str(ref.get("key")))
            if cell is None:
                why = f"is of {ref.get('group')}/{ref.get('name')}, which is not on the roster"
                yield Remark(Standing.EXTRA, name, why, f"{root}/{name}")
            else:
                yield Remark(Standing.DUPLICATE, name, f"is a second run of {cell.label}", f"{root}/{name}")


def _read_cell(path: str) -> dict[str, Any]:
    try:
        ref = wire.parse_object(files.read_bytes(path), path).get("cell")
    except (OSError, wire.WireError):
        return {}
    return ref if isinstance(ref, dict) else {}


def _propose(items: Sequence[Item], *, paused: Sequence[str]) -> tuple[str | None, str]:
    """The one command that re-runs what is missing; else what has to happen instead, in words."""
    left = [item for item in items if not item.done]
    if not left:
        return None, "" if items else "there are no cells: nothing is proven"
    again = [item.cell for item in left if item.cell.state in RERUN_STATES and item.standing is not Standing.DUPLICATE]
    if again:
        return _write_command(again, items), ""
    if paused:
        return shlex.join(["holdfast", "queue", "resume", paused[0]]), "its group is paused"
    if any(item.standing is Standing.DUPLICATE for item in left):
        return None, "give each cell a path of its own ({cell} in the command, or a path in the run directory)"
    if any(item.cell.state is CellState.ELSEWHERE for item in left):
        return None, "another box has claimed what is left"
    return None, "what is left waits or runs; `holdfast wait` waits for it"


def _write_command(again: Sequence[Cell], items: Sequence[Item]) -> str:
    words = [cell.label for cell in again]
    groups = {cell.group for cell in again}
    failed = [item.cell for item in items if item.cell.state is CellState.FAILED]
    if len(words) > MOST_NAMED and len(groups) == 1 and len(failed) == len(again):
        words = [f"{again[0].group}/", "--failed"]
    return shlex.join(["holdfast", "queue", "retry", *words])
