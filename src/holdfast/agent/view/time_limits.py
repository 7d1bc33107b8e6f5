"""The time limits of a run, as they are in force: which, how long, until when."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.core.run.deadlines import find_deadline, list_limits
from holdfast.core.run.events import RunPlan, Timer
from holdfast.host.clock import format_utc
from holdfast.model import wire
from holdfast.model.record import record
from holdfast.model.run import Running

if TYPE_CHECKING:
    from .run_view import RunView

NAMES = {Timer.TOTAL: "timeout", Timer.RUN: "timeouts.run", Timer.MAX_HOLD: "gpu.max_hold"}
FIELDS = (
    ("timeout", "timeouts", "total_s"),
    ("timeouts.run", "timeouts", "run_s"),
    ("gpu.max_hold", "gpu", "max_hold_s"),
)


@record
class TimeLimit:
    """One time limit by its key in a job file, in seconds; `until` is when it ends a running job (ISO UTC)."""

    name: str
    seconds: float
    until: str | None = None


def list_time_limits(view: RunView) -> tuple[TimeLimit, ...]:
    """The limits of the attempt's plan, else those of its job; none without."""
    state = None if view.state is None else view.state.state
    try:
        plan = wire.decode(RunPlan, view.manifest.get("plan"))
    except wire.WireError:
        return _list_asked(view)
    if not isinstance(state, Running):
        found = ((Timer.TOTAL, plan.total_s), (Timer.RUN, plan.run_s), (Timer.MAX_HOLD, plan.max_hold_s))
        return tuple(TimeLimit(NAMES[timer], limit) for timer, limit in found if limit is not None)
    return tuple(
        TimeLimit(NAMES[timer], limit_s, None if began is None else format_utc(began + limit_s))
        for timer, limit_s, began in list_limits(state, plan)
        if limit_s is not None
    )


def find_time_left(view: RunView, now_s: float) -> float | None:
    """Seconds until a time limit ends a running job; None where none does."""
    state = None if view.state is None else view.state.state
    if not isinstance(state, Running):
        return None
    try:
        deadline = find_deadline(state, wire.decode(RunPlan, view.manifest.get("plan")))
    except wire.WireError:
        return None
    return None if deadline is None else max(0.0, deadline - now_s)


def _list_asked(view: RunView) -> tuple[TimeLimit, ...]:
    found = []
    for name, group, leaf in FIELDS:
        values = view.spec.get(group)
        limit = wire.as_number(values.get(leaf)) if isinstance(values, dict) else None
        found += [] if limit is None else [TimeLimit(name, limit)]
    return tuple(found)
