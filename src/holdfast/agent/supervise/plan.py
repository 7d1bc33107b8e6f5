"""From a job and the box's rules to the few numbers that the lifecycle table needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.agent.view.retries import read_wait_s
from holdfast.core.run.events import RunPlan
from holdfast.host.clock import epoch_s
from holdfast.model import wire
from holdfast.model.record import replace

if TYPE_CHECKING:
    from holdfast.core.rules.rules import Rules
    from holdfast.model.job import JobSpec

    from .context import SupervisorContext

GRACE_FLOOR_S = 30.0
"""Grace without a measured save: what timeout-minded schedulers give (Slurm KillWait, Kubernetes)."""
GRACE_FACTOR = 2.0
"""Twice the measured save: one may just have begun when the request comes (PROC-07)."""

RECORDS_S = 5.0
"""What the end of a run takes on a busy box, from the job's KILL to the exit record, with a margin."""


def build_plan(context: SupervisorContext, created_epoch_s: float) -> RunPlan:
    """The plan of an attempt; the smaller of the job's and the rules' limits holds.

    A plan that is in the manifest stays in force: rules that change under a running job do not change its deadlines.
    """
    kept = context.recorder.read_manifest().get("plan")
    if isinstance(kept, dict):
        try:
            return wire.decode(RunPlan, kept)
        except wire.WireError as error:
            context.recorder.log(
                f"the plan in {wire.MANIFEST} is damaged ({error}); made anew from the job and the rules"
            )
    spec, rules = context.spec, context.rules
    ceiling = _smaller(spec.grace_max_s, rules.grace_max_s)
    assert ceiling is not None
    wait_s = _smaller(spec.gpu.wait_s, rules.max_wait_s)
    return measure_grace(
        RunPlan(
            wants_cards=spec.gpus.wanted > 0,
            preflight_s=spec.timeouts.preflight_s + find_pause_s(context),
            wait_s=wait_s or 0.0,
            run_s=spec.timeouts.run_s,
            total_s=spec.timeouts.total_s,
            postflight_s=spec.timeouts.postflight_s,
            grace_max_s=ceiling,
            max_hold_s=_smaller(spec.gpu.max_hold_s, rules.max_hold_s),
            created_epoch_s=created_epoch_s,
            copies=spec.results.to is not None,
        ),
        context,
    )


def find_pause_s(context: SupervisorContext) -> float:
    """What is left of the pause before the checks of an attempt that nobody asked for; 0 for any other."""
    if context.why_begun != "retry":
        return 0.0
    wait_s = read_wait_s(context.run_dir, context.attempt)
    if context.reason == "retry":
        return wait_s
    return round(min(wait_s, max(0.0, context.created_epoch_s + wait_s - epoch_s())), 3)


def change_limits(plan: RunPlan, spec: JobSpec, rules: Rules) -> RunPlan:
    """The plan with the time limits of a job that was changed while it runs; the rules' limits hold as before."""
    return replace(
        plan,
        run_s=spec.timeouts.run_s,
        total_s=spec.timeouts.total_s,
        max_hold_s=_smaller(spec.gpu.max_hold_s, rules.max_hold_s),
    )


def measure_grace(plan: RunPlan, context: SupervisorContext) -> RunPlan:
    """The plan with the grace that the last measured checkpoint asks for; an explicit grace wins, the ceiling holds.

    So does that of the place, which kills whether or not we are done.
    """
    most_s = None if context.foreground is None else bound_grace(context.foreground.grace_limit_s)
    if most_s is not None:
        plan = replace(plan, grace_max_s=min(plan.grace_max_s, most_s))
    if context.spec.grace_s is not None:
        return replace(plan, grace_s=min(context.spec.grace_s, plan.grace_max_s))
    measured = context.heartbeat().get("save_seconds")
    grace_s = GRACE_FLOOR_S
    # Not a number (NaN) is not above zero.
    if isinstance(measured, (int, float)) and not isinstance(measured, bool) and measured > 0:
        grace_s = max(GRACE_FLOOR_S, GRACE_FACTOR * measured)
    return replace(plan, grace_s=min(grace_s, plan.grace_max_s))


def bound_grace(limit_s: float | None) -> float | None:
    """How much of a place's time between its signal and its KILL the job may have: the rest is for our records."""
    return None if limit_s is None else max(0.0, limit_s - min(RECORDS_S, limit_s / 2))


def _smaller(first: float | None, second: float | None) -> float | None:
    present = [value for value in (first, second) if value is not None]
    return min(present, default=None)
