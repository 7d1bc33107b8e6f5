"""What `holdfast wait` says: what is waited for, how far it is, and in the end what is missing and how to get it."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.cli.render import clean, is_terminal, note, print_json
from holdfast.host.clock import monotonic_s
from holdfast.model.errors import EXIT_TIMED_OUT, NoSuchRun, UsageError
from holdfast.model.ids import is_run_id
from holdfast.model.queue import CLOSED_STATES, CellState
from holdfast.model.units import format_duration, parse_duration

from .opening import open_queue
from .waiting import Look, Roster, wait_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.cli.runs import Found
    from holdfast.model.queue import Cell
    from holdfast.store.queue import Queue

EXIT_INCOMPLETE = 1
MOST_LISTED = 20
TOLD_EVERY_S = 1.0
ESTIMATED_EVERY_S = 10.0


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the words mean: cells of the queue, and runs beside it."""

    roster: Roster | None
    runs: tuple[Found, ...] = ()


def wait_for_names(names: Sequence[str], *, everything: bool, timeout: str | None, quiet: bool, as_json: bool) -> int:
    """Wait for what `names` mean; without any for the whole queue. Answers the exit code.

    Raises:
        NoSuchRun: a name means nothing, or the queue is empty.
        UsageError: the timeout is none.
    """
    deadline = None if timeout is None else monotonic_s() + _parse_timeout(timeout)
    with open_queue() as queue:
        wanted = resolve(queue, () if everything else names)
        teller = Teller(queue, wanted.roster, silent=quiet or as_json)
        try:
            return _wait(queue, wanted, teller, deadline, as_json=as_json)
        except KeyboardInterrupt:
            teller.close()
            if not quiet:
                note("the wait has ended; what was waited for goes on")
            raise


def _parse_timeout(text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise UsageError(f"--timeout: {error}", hint="write it like 90s or 8h") from error


def resolve(queue: Queue, names: Sequence[str]) -> Wanted:
    """What is meant. A run id is a run; everything else is a group or a cell first, then a run.

    Raises:
        NoSuchRun: it is none of them.
    """
    if not names:
        if not any(sum(numbers.values()) for numbers in queue.counts().values()):
            raise NoSuchRun("there is nothing in the queue", hint="holdfast submit hands something in")
        return Wanted(Roster(everything=True))
    known, groups, labels, runs = queue.groups(), set(), [], []
    for name in names:
        if name.rstrip("/") in known and (name.endswith("/") or not _is_cell(queue, name)):
            groups.add(name.rstrip("/"))
            continue
        try:
            if is_run_id(name) or os.path.isabs(name):
                raise UsageError(name)
            labels += [cell.label for cell in queue.find([name])]
        except UsageError as error:
            runs.append(_find_run(name, error))
    roster = Roster(frozenset(groups), tuple(labels)) if groups or labels else None
    return Wanted(roster, tuple(runs))


def _is_cell(queue: Queue, name: str) -> bool:
    try:
        return any(cell.label == name for cell in queue.find([name]))
    except UsageError:
        return False


def _find_run(name: str, not_a_cell: UsageError) -> Found:
    from holdfast.cli.runs import find, require_readable

    try:
        found = find(name)
    except NoSuchRun as error:
        if is_run_id(name) or os.path.isabs(name):
            raise
        hint = not_a_cell.hint or error.hint
        raise NoSuchRun(f"no cell, group or run answers to {name!r}", hint=hint) from error
    if found.notice:
        note(found.notice)
    require_readable(found)
    return found


class Teller:
    """The progress line on a terminal, redrawn in place; nothing elsewhere."""

    def __init__(self, queue: Queue, roster: Roster | None, *, silent: bool) -> None:
        """Begin with nothing said."""
        self._queue = queue
        self._roster = roster
        self._shows = not silent and is_terminal(sys.stderr)
        self._width = 0
        self._told_at = self._estimated_at = float("-inf")
        self._estimate = ""

    def __call__(self, seen: Look) -> None:
        """Hear one look."""
        now = monotonic_s()
        if not self._shows or (now - self._told_at < TOLD_EVERY_S and seen.open):
            return
        self._told_at = now
        if not self._estimate or now - self._estimated_at >= ESTIMATED_EVERY_S:
            self._estimated_at, self._estimate = now, self._find_estimate(seen)
        text = clean(seen.describe() + self._estimate)
        columns = shutil.get_terminal_size().columns
        text = text[: columns - 1]
        sys.stderr.write(f"\r{text.ljust(self._width)}")
        sys.stderr.flush()
        self._width = len(text)

    def _find_estimate(self, seen: Look) -> str:
        from .estimating import estimate_cells

        active = [cell for cell in self._queue.active() if self._roster is None or self._roster.holds(cell)]
        estimate = estimate_cells(self._queue, seen.counts, active)
        return "" if estimate is None else f", {estimate.words}"

    def close(self) -> None:
        """End the line."""
        if self._width:
            sys.stderr.write("\n")
            sys.stderr.flush()
            self._width = 0


def _wait(queue: Queue, wanted: Wanted, teller: Teller, deadline: float | None, *, as_json: bool) -> int:
    codes, facts = [], {}
    if wanted.roster is not None:
        seen, late = wait_for(queue, wanted.roster, deadline=deadline, tell=teller)
        teller.close()
        missing = _list_missing(queue, wanted.roster)
        code = EXIT_TIMED_OUT if late else EXIT_INCOMPLETE if missing or seen.done < seen.total or not seen.total else 0
        codes.append(code)
        facts = _encode(seen, missing, late=late)
        if not as_json:
            _report(seen, missing, late=late)
    runs = []
    for found in wanted.runs:
        from .run_waiting import wait_for_run

        view, code = wait_for_run(found.run_dir, deadline=deadline)
        runs.append({"run_id": view.run_id, "condition": view.condition, "exit_code": code, "note": view.note})
        codes.append(code)
        if not as_json:
            note(f"{view.run_id} {view.condition} (exit {view.exit_code}): {view.note}")
    code = _join(codes, passes=len(runs) == 1 and wanted.roster is None)
    if as_json:
        print_json({**facts, "runs": runs, "exit_code": code})
    return code


def _join(codes: Sequence[int], *, passes: bool) -> int:
    if passes or not any(codes):
        return codes[0] if passes else 0
    return EXIT_TIMED_OUT if EXIT_TIMED_OUT in codes else EXIT_INCOMPLETE


def _list_missing(queue: Queue, roster: Roster) -> list[Cell]:
    """The cells of the roster that are not proven done."""
    states = [state for state in CellState if state is not CellState.DONE]
    return [cell for cell in queue.cells(states=states) if roster.holds(cell)]


def _report(seen: Look, missing: Sequence[Cell], *, late: bool) -> None:
    if not missing and seen.done == seen.total:
        print(f"done: {seen.describe()}")
        return
    print(f"{'not yet done' if late else 'incomplete'}: {seen.describe()}")
    for cell in sorted(missing, key=_gravity)[:MOST_LISTED]:
        print(f"  {clean(describe_cell(cell))}")
    if len(missing) > MOST_LISTED:
        print(f"  and {len(missing) - MOST_LISTED} more: holdfast queue ls")
    if seen.stuck:
        note(f"nothing goes on by itself: {seen.stuck}")
    failed = [cell for cell in missing if cell.state is CellState.FAILED and cell.run_id and not cell.lean]
    if failed:
        note(f"find out why: holdfast diagnose {failed[0].run_id}")
    command = rerun_command(missing)
    if command and not late:
        note(f"try again what is missing: {command}")


def _gravity(cell: Cell) -> int:
    order = [CellState.FAILED, CellState.CANCELLED, CellState.HELD, CellState.BLOCKED]
    return order.index(cell.state) if cell.state in order else len(order)


def describe_cell(cell: Cell) -> str:
    """One cell and how it stands, in a line."""
    words = [cell.state.value]
    if cell.state is CellState.FAILED:
        words += [cell.failure or cell.outcome or ""]
        words += [f"exit {cell.exit_code}"] if cell.exit_code is not None else []
    over = cell.state in CLOSED_STATES and cell.started_at and cell.ended_at
    ended = f" after {format_duration((cell.ended_at or 0) - (cell.started_at or 0))}" if over else ""
    said = f": {cell.note}" if cell.note else ""
    return f"{cell.label}  {', '.join(word for word in words if word)}{ended}{said}"


def rerun_command(missing: Sequence[Cell]) -> str:
    """The command that queues again what has failed or was cancelled; empty when there is nothing of that.

    Many cells of one group are named by the group: ten thousand names are no command. Without cancelled ones that is
    the same cells, except for those of the group that are not waited for.
    """
    again = [cell for cell in missing if cell.state in (CellState.FAILED, CellState.CANCELLED)]
    groups = {cell.group for cell in again}
    if len(again) > MOST_LISTED and len(groups) == 1:
        failed = all(cell.state is CellState.FAILED for cell in again)
        return f"holdfast queue retry {shlex.quote(f'{groups.pop()}/')}" + (" --failed" if failed else "")
    return f"holdfast queue retry {shlex.join(cell.label for cell in again)}" if again else ""


def _encode(seen: Look, missing: Sequence[Cell], *, late: bool) -> dict[str, object]:
    return {
        "done": seen.done,
        "total": seen.total,
        "counts": {state.value: number for state, number in seen.counts.items()},
        "timed_out": late,
        "stuck": seen.stuck,
        "missing": [
            {
                "cell": cell.label,
                "state": cell.state,
                "failure": cell.failure,
                "exit_code": cell.exit_code,
                "note": cell.note,
                "run_id": cell.run_id,
            }
            for cell in missing
        ],
        "rerun": rerun_command(missing),
    }
