"""From outside: have a live job's limits changed by its supervisor, and see what is in force then (LIM-11)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from holdfast.agent.control.act import require_actionable, supervise
from holdfast.agent.control.run_lock import hold_run_lock
from holdfast.agent.requests import LIMITS_CHANGED, LIMITS_REFUSED, write_limits_request
from holdfast.agent.view import observe
from holdfast.agent.view.changes import ChangeWatch
from holdfast.agent.view.follow import watch_processes
from holdfast.agent.view.page.run_group import read_run_memory
from holdfast.agent.view.time_limits import list_time_limits
from holdfast.core.job.live_limits import LIVE_FIELDS, describe_excess, find_new_memory
from holdfast.host import clock
from holdfast.model.errors import PreflightFailed, ResourceBusy, UsageError
from holdfast.model.record import record
from holdfast.model.run import LimitsRequest, Running, say_condition

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.agent.view.run_view import RunView
    from holdfast.model.job import JobSpec
    from holdfast.model.origin import KeyChange

Facts = dict[str, Any]
LOOK_AGAIN_S = 1.0


@record
class LimitsAnswer:
    """What became of other limits for a live job. `limits` are those in force now, each with what holds it.

    `deadline` is when the job will be asked to stop (ISO UTC), None without one. `why` says why nothing was changed;
    empty when it was. `exit_code` 0: changed. 78: refused. 75: its supervisor has not answered in the time to wait, and
    changes them when it does: the request stays until then, or until another one takes its place.
    """

    run_id: str
    attempt: int
    changed: tuple[KeyChange, ...]
    limits: tuple[Facts, ...] = ()
    deadline: str | None = None
    why: str = ""
    exit_code: int = 0


def change_limits(
    run_dir: str, find: Callable[[], Sequence[KeyChange]], *, force: bool, by: str, wait_s: float, dry_run: bool = False
) -> LimitsAnswer:
    """Ask the supervisor of a live run for other limits, and wait for its answer.

    With `dry_run`, and where all is as it is wanted already, nobody is asked, and what is in force is said.

    `find` compares what is wanted with what is recorded; it is asked again once nobody else can change the run, so two
    who add an hour at once add two.

    Raises:
        UsageError: its job does not run, or one of the values cannot be changed while it does.
        ResourceBusy: somebody restarts or removes it.
        NotPermitted, StorageError: it cannot be asked.
    """
    view = _require_running(run_dir)
    changes = find()
    for change in changes:
        if change.key not in LIVE_FIELDS:
            raise UsageError(f"{change.key} cannot be changed while the job runs", hint="holdfast restart changes it")
    if dry_run or not changes:
        return _tell(view, changes)
    with hold_run_lock(run_dir, what="change its limits"), ChangeWatch(view.attempt_dir) as changed:
        view, changes = _require_running(run_dir), find()
        if not changes:
            return _tell(view, changes)
        values = {item.key: item.after for item in changes}
        request = LimitsRequest(os.urandom(4).hex(), by, clock.utc_now(), values, force)
        write_limits_request(run_dir, view.attempt, request)
        if not view.supervised:
            supervise(view)
        return _wait_answered(view, request, tuple(changes), changed, wait_s)


def _tell(view: RunView, changes: Sequence[KeyChange]) -> LimitsAnswer:
    """What would change, and what is in force."""
    until = min((limit.until for limit in list_time_limits(view) if limit.until is not None), default=None)
    return LimitsAnswer(view.run_id, view.attempt, tuple(changes), tuple(_read_limits(view.manifest)), until)


def refuse_low_memory(run_dir: str, before: JobSpec, after: JobSpec) -> None:
    """Refuse to stop a live job for less memory than it uses now: the next attempt would be killed for it.

    Raises:
        PreflightFailed: so it is.
    """
    wanted = find_new_memory(before.limits, after.limits)
    if wanted is None:
        return
    view = observe.observe_run(run_dir)
    state = None if view.state is None else view.state.state
    if isinstance(state, Running) and view.job_lives and (words := describe_excess(read_run_memory(view), wanted)):
        hint = f"nothing was stopped; ask for more, or where it will need less, first: holdfast stop {view.run_id}"
        raise PreflightFailed(f"{view.run_id}: {words}", hint=hint)


def _require_running(run_dir: str) -> RunView:
    view = observe.observe_run(run_dir)
    require_actionable(view)
    state = None if view.state is None else view.state.state
    # Where its state cannot be read its supervisor still knows, and refuses by itself.
    runs = isinstance(state, Running) or (state is None and view.supervised)
    if runs and (view.job_lives or view.supervised):
        return view
    words = f"{view.run_id} {say_condition(view.condition)}: only a running job has limits that can be changed"
    raise UsageError(
        words, hint=f"holdfast restart {view.run_id} starts it again with others: --limit-memory, --timeout, ..."
    )


def _wait_answered(
    view: RunView, request: LimitsRequest, changes: tuple[KeyChange, ...], changed: ChangeWatch, wait_s: float
) -> LimitsAnswer:
    deadline = clock.monotonic_s() + wait_s
    while True:
        event = _find_answer(view.run_dir, view.attempt, request.id)
        view = observe.observe_run(view.run_dir, attempt=view.attempt)
        if event is not None:
            return _read_answer(view, changes, event)
        left_s = deadline - clock.monotonic_s()
        if view.over or left_s <= 0:
            late = (
                f"its supervisor has not answered within {wait_s:g} s; what was asked stays, and is done once it does"
            )
            why = "it has ended" if view.over else late
            return LimitsAnswer(view.run_id, view.attempt, changes, why=why, exit_code=ResourceBusy.exit_code)
        watch_processes(changed, view)
        changed.wait(min(left_s, LOOK_AGAIN_S))


def _find_answer(run_dir: str, attempt: int, request_id: str) -> Facts | None:
    for event in reversed(observe.read_events(run_dir, attempt)):
        data = event.get("data") if event.get("event") in (LIMITS_CHANGED, LIMITS_REFUSED) else None
        if isinstance(data, dict) and data.get("id") == request_id:
            return {"event": event["event"], **data}
    return None


def _read_answer(view: RunView, changes: tuple[KeyChange, ...], event: Facts) -> LimitsAnswer:
    limits = tuple(_read_limits(view.manifest))
    if event["event"] == LIMITS_REFUSED:
        why = str(event.get("why"))
        return LimitsAnswer(view.run_id, view.attempt, changes, limits, why=why, exit_code=PreflightFailed.exit_code)
    until = event.get("deadline")
    return LimitsAnswer(view.run_id, view.attempt, changes, limits, until if isinstance(until, str) else None)


def _read_limits(manifest: Facts) -> list[Facts]:
    found = manifest.get("limits")
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []
