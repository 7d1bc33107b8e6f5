"""The time limits of a running job: which there are, what is left of each, and the timers that watch them.

Pure, as `lifecycle` is. Each deadline is counted from its recorded beginning, so whoever takes over watches the rest.
"""

from __future__ import annotations

from holdfast.model.run import Running

from .events import Action, Arm, Disarm, Moment, RunPlan, Timer


def arm_limits(state: Running, now: Moment, plan: RunPlan) -> tuple[Action, ...]:
    """Every deadline of a running job, for a supervisor that starts it as for one that takes over."""
    limits = list_limits(state, plan)
    return tuple(
        Arm(timer, find_remaining_s(now, limit_s, began)) for timer, limit_s, began in limits if limit_s is not None
    )


def list_limits(state: Running, plan: RunPlan) -> tuple[tuple[Timer, float | None, float | None], ...]:
    """The time limits of a running job: which, how many seconds (None: no limit), since when (epoch seconds)."""
    return (
        (Timer.RUN, plan.run_s, state.began),
        (Timer.TOTAL, plan.total_s, plan.created_epoch_s),
        (Timer.MAX_HOLD, plan.max_hold_s if state.devices else None, state.held_from),
    )


def find_deadline(state: Running, plan: RunPlan) -> float | None:
    """When (epoch seconds) a running job will be asked to stop; None where nothing limits it."""
    limits = list_limits(state, plan)
    return min((began + most for _, most, began in limits if most is not None and began is not None), default=None)


def rearm_limits(state: Running, now: Moment, plan: RunPlan) -> tuple[Action, ...]:
    """The same deadlines under a plan that was changed: those that are left are watched anew, the others forgotten."""
    gone = tuple(Disarm(timer) for timer, limit_s, _ in list_limits(state, plan) if limit_s is None)
    return (*gone, *arm_limits(state, now, plan))


def find_remaining_s(now: Moment, limit_s: float, began: float | None) -> float:
    """What is left of a limit that began at an epoch time; an unknown beginning counts as now.

    Never below 0, and never more than the limit, which a clock that was set back would allow.
    """
    return limit_s if began is None else min(limit_s, max(0.0, began + limit_s - now.epoch_s))
