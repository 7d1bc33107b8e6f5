"""Changes the limits of a running job on request (LIM-11): from ``limits_wanted.json`` to what holds them.

A request is taken whole or not at all. What was changed is on disk before it is told: the job (``job.json``), what
holds each limit and the deadlines (manifest), so a supervisor that takes over keeps them. The answer is an event with
the request's id; one without is treated by whoever supervises next, and doing it twice does no harm.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.agent.requests import LIMITS_CHANGED, LIMITS_REFUSED
from holdfast.agent.view.time_limits import NAMES
from holdfast.core.job.changes import join_changes, list_changes
from holdfast.core.job.live_limits import change_fields
from holdfast.core.rules.rules import apply_rules
from holdfast.core.run.deadlines import find_deadline, list_limits
from holdfast.host.clock import format_utc, utc_now
from holdfast.host.files import files
from holdfast.host.files.job_change import find_job, read_job_change
from holdfast.model import wire
from holdfast.model.job import JobSpec
from holdfast.model.origin import JobChange
from holdfast.model.run import Running
from holdfast.model.units import format_duration

from .change_limits import LimitsRefused
from .plan import change_limits
from .start.manifest import amend_manifest

if TYPE_CHECKING:
    from holdfast.core.run.events import RunPlan
    from holdfast.model.origin import KeyChange
    from holdfast.model.run import LimitsRequest, State

    from .context import SupervisorContext
    from .job import JobControl
    from .lease.lease import Lease


class LimitsRequests:
    """The requests for other limits of one attempt, as its supervisor treats them."""

    def __init__(self, context: SupervisorContext, job: JobControl, lease: Lease) -> None:
        """Nothing is looked at before `look`."""
        self._context, self._job, self._lease = context, job, lease
        self._seen: LimitsRequest | None = None

    def look(self, state: State, plan: RunPlan, now_s: float) -> RunPlan | None:
        """Do what is wanted, once, or say why not; the plan with other deadlines, None where nothing was changed.

        `now_s` are epoch seconds of the clock that the deadlines are counted by.
        """
        recorder = self._context.recorder
        request = recorder.read_limits_request()
        if request is None or request == self._seen:
            return None
        first, self._seen = self._seen is None, request
        if first and recorder.was_answered(request.id, LIMITS_CHANGED, LIMITS_REFUSED):
            return None
        try:
            return self._change(request, state, plan, now_s)
        except (LimitsRefused, wire.WireError, OSError) as error:
            recorder.event(LIMITS_REFUSED, id=request.id, by=request.by, why=str(error))
            return None

    def _change(self, request: LimitsRequest, state: State, plan: RunPlan, now_s: float) -> RunPlan:
        context = self._context
        if not isinstance(state, Running):
            raise LimitsRefused(f"its job does not run: it is {type(state).__name__.lower()}")
        before, after = context.spec, change_fields(context.spec, request.values)
        changed = list_changes(before, after)
        self._ask_rules(before, after)
        wanted = change_limits(plan, after, context.rules)
        _require_time_left(state, wanted, changed, now_s)
        made = self._build_change(request, changed)
        self._job.change_limits(after, force=request.force)
        context.spec = after
        self._job.watch_limits()
        context.recorder.commit(wire.JOB, wire.to_bytes(made))
        contained = self._job.containment
        held = () if contained is None else contained.plan.limits
        facts = {} if contained is None else {"nice": contained.plan.nice, "cpus": contained.plan.cpus}
        amend_manifest(context, {"plan": wanted, "limits": held, **facts})
        deadline = find_deadline(state, wanted)
        context.recorder.note_deadlines(deadline=deadline)
        self._lease.note_limits()
        until = None if deadline is None else format_utc(deadline)
        context.recorder.event(
            LIMITS_CHANGED, id=request.id, by=request.by, changed=changed, limits=held, deadline=until, **facts
        )
        return wanted

    def _ask_rules(self, before: JobSpec, after: JobSpec) -> None:
        """The box's rules hold for a change as for a start: what they would cut is refused."""
        rules = self._context.rules
        known = {finding.id for finding in apply_rules(before, rules)[1]}
        new = [finding.evidence for finding in apply_rules(after, rules)[1] if finding.id not in known]
        if new:
            raise LimitsRefused("; ".join(new))

    def _build_change(self, request: LimitsRequest, changed: tuple[KeyChange, ...]) -> JobChange:
        """The record of the job from now on, without what only this attempt was given (its placement, its wait).

        Before anything is changed: what cannot be read is a refusal then, and the limits stay as they were.
        """
        context = self._context
        record = wire.parse_object(files.read_bytes(f"{context.run_dir}/{wire.RUN}"), wire.RUN)
        number, found = read_job_change(context.run_dir, context.attempt)
        job = change_fields(wire.decode(JobSpec, find_job(record, found)), request.values)
        earlier = wire.decode(JobChange, found) if found else None
        if earlier is not None and number == context.attempt:
            changed = join_changes(earlier.changed, changed)
        return JobChange(job, changed, request.by, utc_now(), None if earlier is None else earlier.job_file)


def _require_time_left(state: Running, plan: RunPlan, changed: tuple[KeyChange, ...], now_s: float) -> None:
    if not any(change.key.endswith("_s") for change in changed):
        return
    for timer, limit_s, began in list_limits(state, plan):
        if limit_s is not None and began is not None and began + limit_s <= now_s:
            used, asked = format_duration(now_s - began), format_duration(limit_s)
            words = f"{NAMES[timer]}: {used} of {asked} have passed, so it would end at once"
            raise LimitsRefused(f"{words}; holdfast stop does that")
