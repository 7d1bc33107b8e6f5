"""The grace that a stop of a run gives, as far as its files say."""

from __future__ import annotations

from holdfast.model.wire import as_number

from .run_view import RunView

DEFAULT_GRACE_S = 30.0
"""The least grace of a run that states none (docs/design.md, job file)."""


def grace_of(view: RunView) -> float:
    """Seconds of grace that a stop of this run gives, as far as its files say."""
    plan, job = view.manifest.get("plan"), view.spec
    measured = as_number(view.heartbeat.get("save_seconds"))
    stated = as_number(job.get("grace_s"))
    if stated is None and measured is not None:
        return max(DEFAULT_GRACE_S, 2 * measured)
    planned = as_number(plan.get("grace_s")) if isinstance(plan, dict) else None
    return next((value for value in (planned, stated) if value is not None), DEFAULT_GRACE_S)
