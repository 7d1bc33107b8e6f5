"""The life of a run: one pure table, state x event -> state and actions.

Theory
------
A run is in exactly one state (`model.run`), which carries only what is true in it. Whoever drives the table commits the
new state durably *before* it performs the actions, and every action is idempotent; so a driver that is killed anywhere
is replaced by one that reads the state, observes the world, feeds `Resumed`, and goes on.

Every path leads through `finalizing` into `ended`: empty the tree, check the results, give the cards back, write the
exit record. `ended` absorbs everything and is reached only with a tree that was proven empty. An event that a state
does not wait for is stale: it changes nothing. Such pairs are named in the table all the same, so that the table is
total and a test can prove it.

    created -> preflight -> waiting -> starting -> running -> finalizing -> ended
                   |           |          |           |           ^
                   |           |          |           v           |
                   +-----------+----------+------> stopping ------+      (to finalizing directly where no job exists)

Times are epoch seconds in `Moment`, counted from the recorded start of the box (`RunState.boot_epoch_s`); the driver
turns deadlines into monotonic delays when it arms a timer. So a wall clock that jumps moves no deadline, neither of a
living supervisor nor of one that takes over, which arms what is left of each deadline, never more than the whole.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.model.errors import EXIT_TIMED_OUT
from holdfast.model.finding import Finding, Level
from holdfast.model.identity import WaitStatus
from holdfast.model.lease import BusyReason, LeasedDevice, name_labels
from holdfast.model.record import replace
from holdfast.model.run import (
    Created,
    Ended,
    Finalizing,
    Outcome,
    Preflight,
    Refusal,
    Running,
    RunState,
    Starting,
    State,
    StopCause,
    Stopping,
    StopRequest,
    StopRung,
    Waiting,
)

from .deadlines import arm_limits, find_remaining_s
from .events import (
    EVENTS,
    Action,
    Arm,
    ChecksDone,
    Disarm,
    EmptyTree,
    EndCopy,
    Event,
    JobExited,
    JobReported,
    JobStarted,
    JobVanished,
    LeaseBlocked,
    LeaseFailed,
    LeaseGranted,
    Moment,
    ResultsChecked,
    ResultsCopied,
    Resumed,
    RunPlan,
    SimpleAction,
    StartFailed,
    StopWanted,
    Timer,
    TimerFired,
    TreeEmptied,
    TreeStuck,
)
from .outcome import judge_outcome

LEFTOVER_GRACE_S = 5.0
"""How long processes that outlive the job's leader get between TERM and KILL when nobody asked for a stop."""
PROGRESS_STEP_S = 5.0
"""How much longer a job gets at a time while its shutdown still makes progress."""
ASKED_TO_LEAVE = frozenset({129, 130, 143})
"""128 + HUP, INT, TERM: exit codes of a job that a signal ended which asks and does not kill."""
LINE_COUNTS = (
    "its time limit (timeout) counts the wait for cards, too: give it more, or limit the job alone, which "
    "counts from its "
    "start: restart it with --timeout none --timeout-run 8h"
)
STUCK_RETRY_S = 2.0
"""How often a tree that survived KILL is looked at again."""

Step = tuple[State, tuple[Action, ...]]
Handler = Callable[..., "Step | None"]


def decide(run: RunState, event: Event, now: Moment, plan: RunPlan) -> tuple[RunState, tuple[Action, ...]]:
    """The next state of `run` after `event`, and what to do about it once that state is committed.

    Pure and total. A stale event returns the same object and no actions.
    """
    step = TABLE[type(run.state), type(event)](run.state, event, now, plan)
    if step is None:
        return run, ()
    state, actions = step
    if state == run.state:
        return run, actions
    return replace(run, state=state, version=run.version + 1, updated_at=now.utc), actions


def _stale(_state: State, _event: Event, _now: Moment, _plan: RunPlan) -> None:
    """This state does not wait for this event."""


def _begin(_state: State, _event: Event, now: Moment, plan: RunPlan) -> Step:
    actions: list[Action] = [Arm(Timer.PREFLIGHT, plan.preflight_s)]
    if plan.total_s is not None:
        actions.append(Arm(Timer.TOTAL, find_remaining_s(now, plan.total_s, plan.created_epoch_s)))
    return Preflight(since=now.utc), (*actions, SimpleAction.RUN_CHECKS)


def _resume_unstarted(state: State, event: Resumed, now: Moment, plan: RunPlan) -> Step:
    """Nothing was started yet, and the locks went with the supervisor that held them: from the top."""
    if event.rebooted:
        return _finalize(state, now)
    return _begin(state, event, now, plan)


def _resume_starting(state: Starting, event: Resumed, now: Moment, plan: RunPlan) -> Step:
    """Without committed ids the word to go was never given, so no job can exist; with them, look."""
    if state.job is None or state.keeper is None:
        return _resume_unstarted(state, event, now, plan)
    if event.job_alive:
        # It exec'd while nobody looked: its time counts from when its cards were taken.
        running = _run(state, state.since, state.began if state.began is not None else now.epoch_s)
        return running, (SimpleAction.WATCH_JOB, *arm_limits(running, now, plan))
    return _finalize(state, now, status=event.status)


def _resume_running(state: Running, event: Resumed, now: Moment, plan: RunPlan) -> Step:
    if event.job_alive:
        return state, (SimpleAction.WATCH_JOB, *arm_limits(state, now, plan))
    return _finalize(state, now, status=event.status)


def _resume_stopping(state: Stopping, event: Resumed, now: Moment, plan: RunPlan) -> Step:
    if event.rebooted or not (event.job_alive or event.members_alive):
        return _finalize(state, now, status=event.status or state.status)
    if state.rung is StopRung.KILL:
        return replace(state, status=event.status or state.status), (SimpleAction.WATCH_JOB, SimpleAction.KILL_TREE)
    return replace(state, status=event.status or state.status), (
        SimpleAction.WATCH_JOB,
        SimpleAction.TERM_TREE,
        Arm(Timer.GRACE, find_remaining_s(now, plan.grace_s, state.began)),
    )


def _resume_finalizing(state: Finalizing, event: Resumed, _now: Moment, plan: RunPlan) -> Step:
    if state.status is None and state.refusal is None:
        state = replace(state, status=event.status)
    if state.emptied and not event.members_alive:
        return state, (Arm(Timer.POSTFLIGHT, plan.postflight_s), SimpleAction.CHECK_RESULTS)
    return replace(state, emptied=False, copying=None), (EmptyTree(LEFTOVER_GRACE_S),)


def _checked(state: Preflight, event: ChecksDone, now: Moment, plan: RunPlan) -> Step:
    failed = tuple(finding for finding in event.findings if finding.level is Level.FAIL)
    if failed:
        words = "; ".join(f"{finding.id}: {finding.subject}: {finding.evidence}" for finding in failed)
        return _finalize(state, now, refusal=Refusal("preflight", 78, words, failed[0].remedy, findings=failed))
    if plan.wants_cards:
        patience = (Arm(Timer.WAIT, plan.wait_s),) if plan.wait_s > 0 else ()
        return Waiting(since=now.utc), (Disarm(Timer.PREFLIGHT), *patience, SimpleAction.TAKE_LEASE)
    return Starting(since=now.utc, began=now.epoch_s), (Disarm(Timer.PREFLIGHT), SimpleAction.START_JOB)


def _blocked(state: Waiting, event: LeaseBlocked, now: Moment, plan: RunPlan) -> Step:
    if event.final or plan.wait_s <= 0:
        return _finalize(
            state, now, refusal=_busy_refusal(event.busy, waited=None, short=event.short, sharing=event.sharing)
        )
    return replace(state, blocked_by=event.busy), ()


def _name_holders(busy: tuple[BusyReason, ...]) -> str:
    held: dict[str, list[str]] = {}
    for item in busy:
        held.setdefault(item.holder + (f" since {item.since}" if item.since else ""), []).append(item.label)
    return "; ".join(f"{name_labels(labels)}: {holder}" for holder, labels in held.items())


def _busy_refusal(busy: tuple[BusyReason, ...], waited: float | None, short: str = "", sharing: str = "") -> Refusal:
    names = _name_holders(busy)
    message = ": ".join(filter(None, (short, names))) or "no card is free"
    if waited is not None:
        # Nobody was named: the first look, which takes as long as the idle window, was not over yet.
        message = names or "the cards were still being watched for idleness (gpu.idle_window); wait longer than that"
        message = f"gave up after waiting {waited:.0f} s: {message}"
    hint = "wait for it (run --wait 1h, restart --gpu-wait 1h), ask for other cards, or look at `holdfast gpus`"
    hint = "; ".join(filter(None, (hint, sharing)))
    return Refusal("busy", 75, message, hint, busy=busy)


def _granted(_state: Waiting, event: LeaseGranted, now: Moment, plan: RunPlan) -> Step:
    actions: tuple[Action, ...] = (Disarm(Timer.WAIT), SimpleAction.START_JOB)
    if plan.max_hold_s is not None:
        actions = (*actions, Arm(Timer.MAX_HOLD, plan.max_hold_s))
    return Starting(since=now.utc, devices=event.devices, began=now.epoch_s), actions


def _lease_failed(state: Waiting, event: LeaseFailed, now: Moment, _plan: RunPlan) -> Step:
    return _finalize(state, now, refusal=event.refusal)


def _reported(state: Starting, event: JobReported, _now: Moment, _plan: RunPlan) -> Step:
    return replace(state, keeper=event.keeper, job=event.job), (SimpleAction.LET_GO,)


def _started(state: Starting, event: JobStarted, now: Moment, plan: RunPlan) -> Step | None:
    if state.keeper is None or state.job is None:
        return None
    running = _run(state, event.let_go, now.epoch_s)
    return running, (SimpleAction.WATCH_JOB, *arm_limits(running, now, plan))


def _run(state: Starting, since: str, began: float) -> Running:
    assert state.keeper is not None
    assert state.job is not None
    return Running(
        since=since, devices=state.devices, keeper=state.keeper, job=state.job, began=began, held_from=state.began
    )


def _start_failed(state: Starting | Running, event: StartFailed, now: Moment, _plan: RunPlan) -> Step:
    """Of a run that was taken over, too: a container's leader lives before its command may begin."""
    return _finalize(state, now, refusal=event.refusal)


def _exited(state: Starting | Running, event: JobExited, now: Moment, _plan: RunPlan) -> Step:
    return _finalize(state, now, status=event.status)


def _exited_late(state: Finalizing, event: JobExited, _now: Moment, _plan: RunPlan) -> Step | None:
    """The leader outlived KILL for a while (it hung in the kernel), or its status was written last."""
    if state.status is not None or state.refusal is not None:
        return None
    return replace(state, status=event.status), ()


def _exited_stopping(state: Stopping, event: JobExited, _now: Moment, _plan: RunPlan) -> Step:
    """The leader obeyed; the rest of the tree may still be saving and keeps its grace."""
    return replace(state, status=event.status), ()


def _vanished(state: Starting | Running | Stopping, _event: JobVanished, now: Moment, _plan: RunPlan) -> Step:
    return _finalize(state, now, status=state.status if isinstance(state, Stopping) else None)


def _emptied_early(state: Running | Stopping, event: TreeEmptied, now: Moment, plan: RunPlan) -> Step:
    status = state.status if isinstance(state, Stopping) else None
    final, _ = _finalize(state, now, status=status)
    assert isinstance(final, Finalizing)
    return replace(final, emptied=True, stop=event.stop), _check_results(plan)


def _emptied(state: Finalizing, event: TreeEmptied, _now: Moment, plan: RunPlan) -> Step | None:
    if state.emptied:
        return None
    return replace(state, emptied=True, stuck=(), stop=event.stop), _check_results(plan)


def _check_results(plan: RunPlan) -> tuple[Action, ...]:
    return (
        *(Disarm(timer) for timer in (Timer.GRACE, Timer.RUN, Timer.TOTAL, Timer.STUCK)),
        Arm(Timer.POSTFLIGHT, plan.postflight_s),
        SimpleAction.CHECK_RESULTS,
    )


def _stuck(state: Finalizing | Stopping, event: TreeStuck, now: Moment, _plan: RunPlan) -> Step | None:
    if isinstance(state, Finalizing) and state.emptied:
        return None
    if isinstance(state, Stopping):
        final, _ = _finalize(state, now, status=state.status)
        assert isinstance(final, Finalizing)
        state = final
    return replace(state, stuck=event.survivors), (Arm(Timer.STUCK, STUCK_RETRY_S),)


def _stop_before_job(state: State, event: StopWanted, now: Moment, _plan: RunPlan) -> Step:
    return _finalize(state, now, request=event.request)


def _stop_job(state: Starting | Running, event: StopWanted, now: Moment, plan: RunPlan) -> Step:
    if state.job is None or state.keeper is None:
        return _finalize(state, now, request=event.request)
    rung = StopRung.KILL if event.request.force else StopRung.TERM
    stopping = Stopping(
        since=state.since,
        devices=state.devices,
        keeper=state.keeper,
        job=state.job,
        request=event.request,
        rung=rung,
        began=now.epoch_s,
    )
    quiet = (Disarm(Timer.RUN), Disarm(Timer.TOTAL))
    if rung is StopRung.KILL:
        return stopping, (*quiet, SimpleAction.WATCH_JOB, SimpleAction.KILL_TREE)
    return stopping, (*quiet, SimpleAction.WATCH_JOB, SimpleAction.TERM_TREE, Arm(Timer.GRACE, plan.grace_s))


def _stop_harder(state: Stopping, event: StopWanted, _now: Moment, _plan: RunPlan) -> Step | None:
    """Asking twice changes nothing, asking for force does; who asks after a warning of the place is on record."""
    request = _heed_person(state.request, event.request)
    if not event.request.force or state.rung is StopRung.KILL:
        return None if request is state.request else (replace(state, request=request), ())
    request = replace(request, force=True, detail=f"forced by {event.request.by}")
    return replace(state, rung=StopRung.KILL, request=request), (Disarm(Timer.GRACE), SimpleAction.KILL_TREE)


def _heed_person(request: StopRequest, then: StopRequest) -> StopRequest:
    """The request in force. A warning alone has the run go on later: whoever wants it ended after that is heeded."""
    wants_end = not then.warned and then.cause in (StopCause.SIGNAL, StopCause.OPERATOR)
    return then if request.warned and wants_end else request


def _stop_leftovers(state: Finalizing, event: StopWanted, _now: Moment, _plan: RunPlan) -> Step | None:
    """Force hurries what is left. One signal to all of a run (a logout, a box going down) may reach the job first."""
    if state.copying is not None and state.emptied:
        # A place that will end us says by when (Timer.POSTFLIGHT): until then the copy goes on.
        given = event.request.cause in (StopCause.PREEMPTION, StopCause.DEADLINE) and not event.request.force
        return None if given else (state, (EndCopy(event.request.words),))
    hurry = (EmptyTree(0.0),) if event.request.force and not state.emptied else ()
    ended_by_signal = state.status is not None and state.status.exit_code in ASKED_TO_LEAVE
    request = state.request
    if request is not None:
        request = _heed_person(request, event.request)
    elif event.request.cause is StopCause.SIGNAL and ended_by_signal:
        request = event.request
    if request is not state.request:
        return replace(state, request=request), hurry
    return (state, hurry) if hurry else None


def _timer_early(state: Created | Preflight, event: TimerFired, now: Moment, plan: RunPlan) -> Step | None:
    if event.timer not in (Timer.PREFLIGHT, Timer.TOTAL):
        return None
    limit = plan.preflight_s if event.timer is Timer.PREFLIGHT else plan.total_s
    words = f"preflight was not done within the {event.timer.value} limit of {limit} s"
    return _finalize(state, now, refusal=Refusal("timed_out", EXIT_TIMED_OUT, words))


def _timer_waiting(state: Waiting, event: TimerFired, now: Moment, plan: RunPlan) -> Step | None:
    if event.timer is Timer.TOTAL:
        held = _name_holders(state.blocked_by)
        watched = "the cards were being watched for idleness (gpu.idle_window)"
        what = f"waiting for cards: {held}" if held else watched
        words = f"the total limit of {plan.total_s} s passed while {what}"
        return _finalize(state, now, refusal=Refusal("timed_out", EXIT_TIMED_OUT, words, LINE_COUNTS))
    if event.timer is not Timer.WAIT or plan.wait_s <= 0:
        return None
    return _finalize(state, now, refusal=_busy_refusal(state.blocked_by, waited=plan.wait_s))


def _timer_live(state: Starting | Running, event: TimerFired, now: Moment, plan: RunPlan) -> Step | None:
    limits = {Timer.RUN: plan.run_s, Timer.TOTAL: plan.total_s, Timer.MAX_HOLD: plan.max_hold_s}
    if event.timer not in limits:
        return None
    cause = StopCause.MAX_HOLD if event.timer is Timer.MAX_HOLD else StopCause.DEADLINE
    request = StopRequest(cause, "holdfast", detail=f"{event.timer.value} limit of {limits[event.timer]} s")
    return _stop_job(state, StopWanted(request), now, plan)


def _timer_stopping(state: Stopping, event: TimerFired, now: Moment, plan: RunPlan) -> Step | None:
    if event.timer is not Timer.GRACE or state.rung is StopRung.KILL:
        return None
    left_s = state.began + plan.grace_max_s - now.epoch_s
    if event.progressing and left_s > 0:
        return state, (Arm(Timer.GRACE, min(PROGRESS_STEP_S, left_s)),)
    return replace(state, rung=StopRung.KILL), (SimpleAction.KILL_TREE,)


def _timer_final(state: Finalizing, event: TimerFired, now: Moment, plan: RunPlan) -> Step | None:
    if event.timer is Timer.STUCK and not state.emptied:
        return state, (EmptyTree(0.0),)
    if event.timer is Timer.POSTFLIGHT and state.copying is not None and state.emptied:
        return state, (EndCopy("not done in the time that there was"),)
    if event.timer is Timer.POSTFLIGHT and state.emptied:
        words = f"not done within {plan.postflight_s} s"
        late = Finding("postflight", Level.UNKNOWN, "postflight", words, "look at supervisor.log and the run's disks")
        return _end(state, ResultsChecked((late,)), now, plan)
    return None


def _finalize(
    state: State,
    now: Moment,
    *,
    status: WaitStatus | None = None,
    refusal: Refusal | None = None,
    request: StopRequest | None = None,
) -> Step:
    """Into the one exit path, from anywhere."""
    devices: tuple[LeasedDevice, ...] = ()
    keeper, job, started_at = None, None, None
    gentle_s = LEFTOVER_GRACE_S
    if isinstance(state, (Starting, Running, Stopping)):
        devices, keeper, job = state.devices, state.keeper, state.job
    if isinstance(state, (Running, Stopping)):
        started_at = state.since
    elif isinstance(state, Starting) and state.job is not None and refusal is None:
        # It may have run while nobody looked, and its status may still come: its time counts from that of its cards.
        started_at = state.since
    if isinstance(state, Stopping):
        request = state.request
        gentle_s = 0.0
    final = Finalizing(
        since=now.utc,
        devices=devices,
        keeper=keeper,
        job=job,
        started_at=started_at,
        status=status,
        refusal=refusal,
        request=request,
    )
    early = (Disarm(Timer.PREFLIGHT), Disarm(Timer.WAIT), Disarm(Timer.GRACE), Disarm(Timer.RUN), Disarm(Timer.TOTAL))
    return final, (*early, EmptyTree(gentle_s))


def _end(state: Finalizing, event: ResultsChecked, now: Moment, plan: RunPlan) -> Step | None:
    """Over, but for a success whose results are copied first, without its cards."""
    if not state.emptied:
        return None
    if plan.copies and judge_outcome(state, event.findings, now.utc).outcome is Outcome.SUCCEEDED:
        copying = replace(state, copying=state.copying or now.utc, devices=())
        return copying, (Arm(Timer.POSTFLIGHT, plan.copy_s), SimpleAction.RELEASE_LEASE, SimpleAction.COPY_RESULTS)
    return _conclude(state, event.findings, now)


def _copied(state: Finalizing, event: ResultsCopied, now: Moment, _plan: RunPlan) -> Step | None:
    return _conclude(state, event.findings, now) if state.copying is not None and state.emptied else None


def _conclude(state: Finalizing, findings: tuple[Finding, ...], now: Moment) -> Step:
    ended: Ended = judge_outcome(state, findings, now.utc)
    return ended, (Disarm(Timer.POSTFLIGHT), SimpleAction.RELEASE_LEASE, SimpleAction.WRITE_EXIT, SimpleAction.LEAVE)


def _finish_again(state: Ended, _event: Event, _now: Moment, _plan: RunPlan) -> Step:
    """A supervisor died between committing the end and acting on it: do the rest once more."""
    return state, (SimpleAction.RELEASE_LEASE, SimpleAction.WRITE_EXIT, SimpleAction.LEAVE)


def _row(state: type, **handlers: Handler) -> dict[tuple[type, type], Handler]:
    known = {event.__name__ for event in EVENTS}
    assert handlers.keys() <= known, handlers.keys() - known
    return {(state, event): handlers.get(event.__name__, _stale) for event in EVENTS}


TABLE: dict[tuple[type, type], Handler] = {
    **_row(Created, Began=_begin, Resumed=_resume_unstarted, StopWanted=_stop_before_job, TimerFired=_timer_early),
    **_row(
        Preflight,
        Resumed=_resume_unstarted,
        ChecksDone=_checked,
        StopWanted=_stop_before_job,
        TimerFired=_timer_early,
    ),
    **_row(
        Waiting,
        Resumed=_resume_unstarted,
        LeaseBlocked=_blocked,
        LeaseGranted=_granted,
        LeaseFailed=_lease_failed,
        StopWanted=_stop_before_job,
        TimerFired=_timer_waiting,
    ),
    **_row(
        Starting,
        Resumed=_resume_starting,
        JobReported=_reported,
        JobStarted=_started,
        StartFailed=_start_failed,
        JobExited=_exited,
        JobVanished=_vanished,
        StopWanted=_stop_job,
        TimerFired=_timer_live,
    ),
    **_row(
        Running,
        Resumed=_resume_running,
        StartFailed=_start_failed,
        JobExited=_exited,
        JobVanished=_vanished,
        TreeEmptied=_emptied_early,
        StopWanted=_stop_job,
        TimerFired=_timer_live,
    ),
    **_row(
        Stopping,
        Resumed=_resume_stopping,
        JobExited=_exited_stopping,
        JobVanished=_vanished,
        TreeEmptied=_emptied_early,
        TreeStuck=_stuck,
        StopWanted=_stop_harder,
        TimerFired=_timer_stopping,
    ),
    **_row(
        Finalizing,
        Resumed=_resume_finalizing,
        JobExited=_exited_late,
        TreeEmptied=_emptied,
        TreeStuck=_stuck,
        StopWanted=_stop_leftovers,
        TimerFired=_timer_final,
        ResultsChecked=_end,
        ResultsCopied=_copied,
    ),
    **_row(Ended, Resumed=_finish_again),
}
