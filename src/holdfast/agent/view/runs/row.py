"""One run as a row of a list, from its files. A run that vanished is shown as such and left as it is."""

from __future__ import annotations

from holdfast.agent.view import observe
from holdfast.agent.view.run_view import RunView
from holdfast.agent.view.time_limits import find_time_left
from holdfast.core.run.progress import estimate_left, find_standstill
from holdfast.core.run.stall import read_count
from holdfast.host.clock import epoch_s
from holdfast.model import wire
from holdfast.model.run import Finalizing, Running, Stopping
from holdfast.store.index import IndexRow


def read_row(root: str, run_id: str) -> IndexRow:
    """One run from its files; never raises for what is in them."""
    return build_row(observe.observe_run(f"{root}/{run_id}"), root)


def build_row(view: RunView, root: str) -> IndexRow:
    """The row of one look. `ended` holds only when everything about the end is written."""
    state = view.state
    planned = read_count(view.heartbeat.get("planned_steps"))
    step, loss = view.heartbeat.get("step"), view.heartbeat.get("loss")
    end = view.end
    standstill_s = _find_standstill(view)
    return IndexRow(
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
        step=read_count(step),
        loss=f"{loss:.6g}" if isinstance(loss, (int, float)) and not isinstance(loss, bool) else None,
        note=view.note,
        failure=_text(view.exit.get("failure_class")),
        ended=view.over,
        planned_steps=planned,
        left_s=None if end is not None or standstill_s is not None else _find_left(view),
        standstill_s=standstill_s,
    )


def _find_left(view: RunView) -> float | None:
    """Seconds until its steps are done, or a time limit ends it sooner; None where it tells no steps."""
    now_s = epoch_s()
    steps_s = estimate_left(view.heartbeat, now_s)
    limit_s = None if steps_s is None else find_time_left(view, now_s)
    return steps_s if steps_s is None or limit_s is None else min(steps_s, limit_s)


def _find_standstill(view: RunView) -> float | None:
    """For how long a running job has told of no step, where that is too long; None while it is not."""
    state = view.state.state if view.state is not None else None
    if not isinstance(state, Running):
        return None
    stall = view.spec.get("stall")
    stated = stall if isinstance(stall, dict) else {}
    return find_standstill(
        view.heartbeat,
        epoch_s(),
        stated_s=wire.as_number(stated.get("no_progress_s")),
        startup_s=wire.as_number(stated.get("startup_s")),
        has_cards=bool(state.devices),
    )


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _started(view: RunView) -> str | None:
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
