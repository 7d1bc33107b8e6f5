"""Stopping a run from outside: the request, who is asked, and waiting until it is over.

Everything goes through the run directory and a supervisor; no process of a job is ever signalled from here. A run
without a supervisor gets one first, and that one does the work, so there is one way to end a tree.

Waiting is on events (`ChangeWatch`), bounded by the caller; running out of time changes nothing about the request,
which is durable. Whether a failed attempt is followed by another one is the supervisor's to say, which reads the
request before.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

from holdfast.agent.caller import describe_caller
from holdfast.agent.requests import write_request
from holdfast.agent.view import observe
from holdfast.agent.view.changes import ChangeWatch
from holdfast.agent.view.grace import grace_of
from holdfast.agent.view.retries import is_followed, read_requeue
from holdfast.agent.view.run_view import RunReach
from holdfast.host import clock
from holdfast.host.process import pidfd
from holdfast.model import wire
from holdfast.model.errors import EXIT_TIMED_OUT, StillAlive, StorageError
from holdfast.model.record import record, replace
from holdfast.model.run import Ended, Finalizing, Outcome, RequestKind, RunRequest, Stopping

from .act import describe_survivors, generation_of, require_actionable, supervise, wait_over
from .scheduled.stop import stop_scheduled
from .settle import settle_run, settle_vanished

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.agent.view.run_view import RunView

WAIT_MARGIN_S = 10.0
"""What a stop is waited for beyond its grace: the KILL rung, the results, the records."""
SIGNAL_WAIT_S = 2.0
"""How long a supervisor has to act on a first signal before the second is sent."""
LADDER = frozenset(
    {
        "stop_requested",
        "term_sent",
        "container_paused",
        "container_stays_paused",
        "kill_sent",
        "timer",
        "leftovers",
        "finalizing",
        "lease_released",
        "ended",
    }
)
"""Events that tell how a run was stopped, rung by rung."""


@record
class StopResult:
    """What became of a stop: where the run stands, whether there was anything to do, and the events since it was asked.

    `condition` and `note` are those of the last look, `run_exit_code` is the run's own; `exit_code` is 0 when it is
    over, 76 when something survived KILL, 124 when it is still stopping. `next_attempt` is the number of an attempt
    that the queue was about to begin and that will be stopped as it begins; 0: none. `withdrawn` is what the run's
    scheduler calls a job that would have begun it again, and that was taken out of its queue; empty: none. `supervised`
    is False where nobody is seen to carry the stop out.
    """

    run_id: str
    attempt: int
    already_ended: bool
    ended: bool
    condition: str
    note: str
    run_exit_code: int | None
    exit_code: int
    survivors: tuple[str, ...]
    ladder: tuple[dict[str, Any], ...]
    next_attempt: int = 0
    withdrawn: str = ""
    supervised: bool = True


def stop_run(
    run_dir: str, *, force: bool, reason: str, wait_s: float | None, tell: Callable[[RunView], None]
) -> StopResult:
    """Stop a run, wait, and say what happened; raises what `stop` raises."""
    before = observe.observe_run(run_dir)
    if before.scheduler:
        return _stop_scheduled(before, force=force, reason=reason, wait_s=wait_s, tell=tell)
    if before.end is None:
        # An end that is not all written may still be followed by an attempt: it is asked to stop first.
        before = settle_vanished(run_dir)
    request = RequestKind.STOP_NOW if force else RequestKind.STOP
    if before.over and not is_followed(run_dir, before.attempt):
        return (
            _stop_requeue(before, request, reason) if _may_be_requeued(before) else describe_stop(before, already=True)
        )
    seen = len(observe.read_events(run_dir, before.attempt))
    view = stop(run_dir, request, by=describe_caller(), reason=reason, wait_s=wait_s, tell=tell)
    if before.over and view.attempt == before.attempt:
        return describe_stop(view, already=True)
    seen = seen if view.attempt == before.attempt else 0
    events = observe.read_events(run_dir, view.attempt)[seen:]
    return describe_stop(view, already=False, ladder=tuple(event for event in events if event.get("event") in LADDER))


def _stop_scheduled(
    before: RunView, *, force: bool, reason: str, wait_s: float | None, tell: Callable[[RunView], None]
) -> StopResult:
    """The same of a run whose attempts a scheduler starts."""
    seen = len(observe.read_events(before.run_dir, before.attempt))
    request = RequestKind.STOP_NOW if force else RequestKind.STOP
    view, withdrawn = stop_scheduled(before.run_dir, request, reason=reason, wait_s=wait_s, tell=tell)
    events = observe.read_events(before.run_dir, view.attempt)[seen if view.attempt == before.attempt else 0 :]
    ladder = tuple(event for event in events if event.get("event") in LADDER)
    return replace(describe_stop(view, already=before.over, ladder=ladder), withdrawn=withdrawn)


def _may_be_requeued(view: RunView) -> bool:
    """Whether this attempt has ended and the queue may begin another one of the same run."""
    if not view.over or view.record.get("queued") is None or view.exit.get("outcome") == Outcome.SUCCEEDED.value:
        return False
    return not os.path.exists(f"{wire.attempt_dir(view.run_dir, view.attempt + 1)}/{wire.STATE}")


def _stop_requeue(view: RunView, request: RequestKind, reason: str) -> StopResult:
    """Leave the stop for the attempt that the queue may begin: it is of the same generation."""
    decided = read_requeue(view.run_dir, view.attempt)
    waits = decided is not None and decided.again
    try:
        ask_stop(view, request, by=describe_caller(), reason=reason)
    except StorageError:
        if waits:
            raise
    return replace(describe_stop(view, already=True), next_attempt=view.attempt + 1 if waits else 0)


def describe_stop(view: RunView, *, already: bool, ladder: tuple[dict[str, Any], ...] = ()) -> StopResult:
    """Where a run stands after a stop; `already`: it had ended before."""
    left = describe_survivors(view)
    return StopResult(
        run_id=view.run_id,
        attempt=view.attempt,
        already_ended=already,
        ended=view.over,
        condition=view.condition,
        note=view.note,
        run_exit_code=view.exit_code,
        exit_code=0 if view.over else StillAlive.exit_code if left else EXIT_TIMED_OUT,
        survivors=left,
        ladder=ladder,
        supervised=view.supervised or bool(view.scheduler),
    )


def ask_stop(view: RunView, request: RequestKind, *, by: str, reason: str = "") -> None:
    """Ask for a stop, durably; a run that nobody supervises gets a supervisor, which finds the request.

    A directory that takes no file (a full disk) does not keep a run alive: its supervisor is then asked by signal.

    Raises:
        NotPermitted, StorageError: it could not be asked.
    """
    try:
        write_request(view.run_dir, RunRequest(request, by, clock.utc_now(), reason, generation_of(view)))
    except StorageError:
        if not _signal_supervisor(view, request):
            raise
        return
    if not view.supervised and not view.over and view.reach is RunReach.HERE:
        supervise(view)


def _signal_supervisor(view: RunView, request: RequestKind) -> bool:
    """Ask the run's own supervisor by TERM, or by INT twice for force; False when there is none to ask.

    Two signals of a kind that are pending at once are one: the second waits until the first was acted upon.
    """
    supervisor = view.supervisor_process
    if supervisor is None or not view.supervised:
        return False
    if request is RequestKind.STOP:
        return pidfd.send_signal(supervisor, signal.SIGTERM)
    asked = pidfd.send_signal(supervisor, signal.SIGINT)
    deadline = clock.monotonic_s() + SIGNAL_WAIT_S
    with ChangeWatch(view.attempt_dir) as changes:
        while clock.monotonic_s() < deadline and not _is_stopping(
            observe.observe_run(view.run_dir, attempt=view.attempt)
        ):
            changes.wait(0.05)
    return pidfd.send_signal(supervisor, signal.SIGINT) or asked


def _is_stopping(view: RunView) -> bool:
    return view.state is None or isinstance(view.state.state, (Stopping, Finalizing, Ended))


def stop(
    run_dir: str,
    request: RequestKind,
    *,
    by: str,
    reason: str = "",
    wait_s: float | None = None,
    tell: Callable[[RunView], None],
) -> RunView:
    """Stop a run and wait until it is over, or until time is up; answers the last look.

    `wait_s` None is the run's grace and `WAIT_MARGIN_S`. `tell` hears every look on the way. A run that is over stays
    as it is, so that asking again is harmless.

    Raises:
        NoSuchRun: there is no attempt yet.
        StorageError: the run belongs to another box, or its state cannot be read.
    """
    view = observe.observe_run(run_dir)
    if view.over and not is_followed(run_dir, view.attempt):
        return view
    require_actionable(view)
    if view.end is not None or not (view.vanished and settle_run(view)):
        # An end that is not all written may still be followed by another attempt.
        # Also where somebody gave it a supervisor a moment ago: that one is to hear of it.
        ask_stop(view, request, by=by, reason=reason)
    limit_s = grace_of(view) + WAIT_MARGIN_S if wait_s is None else wait_s
    deadline = clock.monotonic_s() + limit_s
    view = wait_over(run_dir, view.attempt, wait_s=limit_s, tell=tell, while_supervised=True)
    if view.over or view.supervised or view.reach is not RunReach.HERE or clock.monotonic_s() >= deadline:
        return view
    # Its supervisor died after it was asked: the request is kept, and the next one finds it.
    supervise(view)
    return wait_over(run_dir, view.attempt, wait_s=deadline - clock.monotonic_s(), tell=tell)
