"""The list of runs for people."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from holdfast.core.moments import format_moment
from holdfast.host.clock import find_age, find_begin
from holdfast.model.units import format_count, format_duration

from . import is_terminal, note, table, terminal_width
from .layout import measure

if TYPE_CHECKING:
    from holdfast.agent.control.remove import RemovableRun
    from holdfast.agent.view.runs.listing import LiveUsers, RunFilter, RunLine, RunList
    from holdfast.desk.runs.listing import PlacedRun


COLUMNS = ("user", "run", "state", "start", "time", "left", "cards", "step", "loss", "exit")
OPTIONAL = frozenset({"user", "left"})
"""Shown where a run of the list has it."""
RIGHT = frozenset({"time", "left", "step", "loss", "exit", "seen"})
SPARED = ("start", "loss", "cards", "step", "exit", "left")
"""Left out in this order where a terminal is too narrow; `holdfast show` and ``--json`` have them."""


def print_runs(found: RunList, wanted: RunFilter) -> None:
    """A row for each run; in a note what is not shown."""
    if found.runs:
        now = time.time()
        rows = [_describe(row, now) for row in found.runs]
        print_columns(COLUMNS, rows, [name for name in OPTIONAL if not any(row[name] for row in rows)])
    if len(found.runs) < found.total:
        note(f"{found.total - len(found.runs)} older runs are not shown; --all shows them")
    elif not found.runs:
        none = f"none of {format_count(found.known, 'run')} {wanted.describe()}"
        note(none if found.known else "no runs yet; holdfast run starts one")


def print_users(found: LiveUsers) -> None:
    """A note for each run that executes from the path."""
    for user in found.users:
        files = ", ".join(user.files) or "its processes could not be looked at"
        note(f"{user.run_id} executes from {found.path}: {files}")
    if not found.users:
        note(f"no live run executes from {found.path}")


def print_columns(columns: Sequence[str], rows: Sequence[dict[str, str | None]], empty: Collection[str]) -> None:
    """A row for each run, with the columns of `choose_columns`."""
    shown = choose_columns(columns, rows, empty, terminal_width() if is_terminal(sys.stdout) else None)
    right = [number for number, name in enumerate(shown) if name in RIGHT]
    table(shown, [[row[name] for name in shown] for row in rows], right=right)


def choose_columns(
    columns: Sequence[str], rows: Sequence[dict[str, str | None]], empty: Collection[str], width: int | None
) -> list[str]:
    """The columns without the `empty` ones that fit into `width` (None: any); `SPARED` ones go first."""
    shown = [name for name in columns if name not in empty]
    widths = {name: max(len(name), *(measure(row[name] or "-") for row in rows)) for name in shown}
    for name in SPARED:
        if width is None or sum(widths[each] + 2 for each in shown) - 2 <= width:
            break
        if name in shown:
            shown.remove(name)
    return shown


def describe_step(step: int | None, planned: int | None) -> str | None:
    """``1895``, and ``1895 (38 %)`` where it is known how many there are to be."""
    if step is None:
        return None
    return f"{step} ({100 * step // planned} %)" if planned and 0 <= step <= planned else str(step)


def describe_condition(row: RunLine | PlacedRun | RemovableRun) -> str:
    """How a run stands or ended, with the class of its failure: ``failed: bug``."""
    return f"{row.condition}: {row.failure}" if row.failure not in ("", row.condition) else row.condition


def _describe(row: RunLine, now: float) -> dict[str, str | None]:
    return {
        "user": row.user,
        "run": row.run_id,
        "state": describe_state(row),
        "start": describe_begin(row, now),
        "time": _elapsed(row, now),
        "left": None if row.left_s is None else format_duration(row.left_s),
        "cards": row.cards or None,
        "step": describe_step(row.step, row.planned_steps),
        "loss": row.loss,
        "exit": None if row.exit_code is None else str(row.exit_code),
    }


def describe_state(row: RunLine | PlacedRun) -> str:
    """Its condition, with the class of a failure, or for how long a running job has done no step."""
    if row.standstill_s is not None:
        return f"{row.condition}: no step for {format_duration(row.standstill_s)}"
    return describe_condition(row)


def describe_begin(row: RunLine | PlacedRun, now: float) -> str | None:
    """When a run's newest attempt began, by the clock of who reads it; of one that has not begun when it was made."""
    begin_s = find_begin(row.run_id, row.started_at, row.created_at)
    return None if begin_s is None else format_moment(begin_s, now)


def describe_age(at: str | None, now_s: float) -> str:
    """``now``, ``40 s ago``, ``12 min ago``, ``3 h ago``, ``5 d ago``; empty when it is not known."""
    age_s = find_age(at, now_s)
    if age_s is None:
        return ""
    for unit_s, most_s, unit in ((1, 60, "s"), (60, 3600, "min"), (3600, 48 * 3600, "h"), (86400, float("inf"), "d")):
        if age_s < most_s:
            return f"{int(age_s / unit_s)} {unit} ago" if age_s >= 1 else "now"
    return ""


def _elapsed(row: RunLine, now: float) -> str | None:
    """How long the job ran or has been running; for one that never started, its age or how long it was tried."""
    begin = _epoch(row.started_at or row.created_at)
    end = _epoch(row.ended_at) if row.ended_at else now
    return None if begin is None or end is None else format_duration(end - begin)


def _epoch(text: str | None) -> float | None:
    # datetime is loaded by sqlite3 already; time.strptime would load five modules more.
    try:
        return datetime.fromisoformat(text.rstrip("Z") + "+00:00").timestamp() if text else None
    except ValueError:
        return None
