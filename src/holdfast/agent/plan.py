"""From a job and the box's rules to the few numbers that the lifecycle table needs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ..core.events import Plan
from ..model import wire

if TYPE_CHECKING:
    from .context import Context

GRACE_FLOOR_S = 30.0
"""Grace without a measured save: what timeout-minded schedulers give (Slurm KillWait, Kubernetes)."""
GRACE_FACTOR = 2.0
"""Twice the measured save: one may just have begun when the request comes (PROC-07)."""


def build_plan(context: Context, created_epoch_s: float) -> Plan:
    """The plan of an attempt; the smaller of the job's and the rules' limits holds.

    A plan that is in the manifest stays in force: rules that change under a running job do not change its deadlines.
    """
    kept = context.recorder.read_manifest().get("plan")
    if isinstance(kept, dict):
        try:
            return wire.decode(Plan, kept)
        except wire.WireError as error:
            context.recorder.log(
                f"the plan in {wire.MANIFEST} is damaged ({error}); made anew from the job and the rules"
            )
    spec, rules = context.spec, context.rules
    ceiling = _smaller(spec.grace_max_s, rules.grace_max_s)
    assert ceiling is not None
    wait_s = _smaller(spec.gpu.wait_s, rules.max_wait_s)
    return measure_grace(
        Plan(
            wants_cards=spec.gpus.wanted > 0,
            preflight_s=spec.timeouts.preflight_s,
            wait_s=wait_s or 0.0,
            run_s=spec.timeouts.run_s,
            total_s=spec.timeouts.total_s,
            postflight_s=spec.timeouts.postflight_s,
            grace_max_s=ceiling,
            max_hold_s=_smaller(spec.gpu.max_hold_s, rules.max_hold_s),
            created_epoch_s=created_epoch_s,
        ),
        context,
    )


def measure_grace(plan: Plan, context: Context) -> Plan:
    """The plan with the grace that the last measured checkpoint asks for; an explicit grace wins, the ceiling holds."""
    if context.spec.grace_s is not None:
        return replace(plan, grace_s=min(context.spec.grace_s, plan.grace_max_s))
    measured = context.heartbeat().get("save_seconds")
    grace_s = GRACE_FLOOR_S
    # Not a number (NaN) is not above zero.
    if isinstance(measured, (int, float)) and not isinstance(measured, bool) and measured > 0:
        grace_s = max(GRACE_FLOOR_S, GRACE_FACTOR * measured)
    return replace(plan, grace_s=min(grace_s, plan.grace_max_s))


def _smaller(first: float | None, second: float | None) -> float | None:
    present = [value for value in (first, second) if value is not None]
    return min(present, default=None)
