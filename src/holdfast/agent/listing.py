"""Runs as rows of a list: ended ones from the index, the others from their files, vanished ones finished first.

Reads and, for runs that vanished, has a supervisor finish their record (PROC-15); waits for that only a short time in
all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..store.index import Row

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..store.index import Index
    from .observe import RunView

SETTLED_AT_ONCE = 8
"""How many vanished runs one list has finished: after a restart of the box there may be many."""


def list_runs(index: Index, roots: Iterable[str]) -> list[Row]:
    """Every run, newest first, with the index brought up to date."""
    rows = index.sync(roots, read_row)
    lost = [row for row in rows if not row.ended and _looks_lost(row)]
    if not lost:
        return rows
    from ..host import clock
    from .acting import SETTLE_WAIT_S, settle_and_look

    deadline, changed = clock.monotonic_s() + SETTLE_WAIT_S, False
    for row in lost[:SETTLED_AT_ONCE]:
        if clock.monotonic_s() < deadline:
            changed = settle_and_look(row.run_dir).ended or changed
    return index.sync(roots, read_row) if changed else rows


def _looks_lost(row: Row) -> bool:
    return row.condition == "lost" or row.condition.startswith("finalizing")


def read_row(root: str, run_id: str) -> Row:
    """One run from its files; never raises for what is in them."""
    from . import observe

    return build_row(observe.observe(f"{root}/{run_id}"), root)


def build_row(view: RunView, root: str) -> Row:
    """The row of one look. `ended` holds only when everything about the end is written."""
    state = view.state
    step, loss = view.heartbeat.get("step"), view.heartbeat.get("loss")
    end = view.end
    return Row(
        root=root,
        run_id=view.run_id,
        stamp=0,
        attempt=view.attempt,
        condition=view.condition,
        exit_code=view.exit_code,
        created_at=state.created_at if state is not None else _text(view.record.get("created_at")),
        started_at=end.started_at if end is not None else _started(view),
        ended_at=_ended(view),
        cards=_cards(view),
        step=step if isinstance(step, int) and not isinstance(step, bool) and abs(step) < 1 << 62 else None,
        loss=f"{loss:.6g}" if isinstance(loss, (int, float)) and not isinstance(loss, bool) else None,
        note=view.note,
        failure=_text(view.exit.get("failure_class")),
        ended=view.over,
    )


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _started(view: RunView) -> str | None:
    from ..model.run import Finalizing, Running, Stopping

    state = view.state.state if view.state is not None else None
    if isinstance(state, (Running, Stopping)):
        return state.since
    return state.started_at if isinstance(state, Finalizing) else None


def _ended(view: RunView) -> str | None:
    """When the job ended; for one that never ran, when the run did."""
    end = view.end
    if end is None:
        return None
    return end.status.ended_at if end.status is not None and end.status.ended_at else end.at


def _cards(view: RunView) -> str:
    state = view.state.state if view.state is not None else None
    devices = getattr(state, "devices", ()) if state is not None else ()
    if devices:
        return ",".join(str(device.index) for device in devices)
    for source in (view.exit, view.manifest):
        for key in ("devices", "cards", "gpus"):
            value = source.get(key)
            if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
                return ",".join(str(item.get("index")) for item in value)
    return ""
