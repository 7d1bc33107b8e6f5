"""What a person may do to a run from outside: stop it, start it again, give it a new supervisor.

Everything goes through the run directory and a supervisor; no process of a job is ever signalled from here. A run
without a supervisor gets one first, and that one does the work, so there is one way to end a tree. Restart and adopt
hold a lock on the run directory from the look to the start: two people who restart at once do not get two trees.

Waiting is on events (`Changes`), bounded by the caller; running out of time changes nothing about the wish, which is
durable.
"""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..host import clock, processes
from ..model import wire
from ..model.errors import NoSuchRun, ResourceBusy, StillAlive, StorageError, UsageError
from ..model.identity import ABANDONED
from ..model.run import (
    Created,
    Desired,
    Ended,
    Finalizing,
    Outcome,
    Preflight,
    Starting,
    Stopping,
    Waiting,
    Wish,
)
from . import launch, observe
from .changes import Changes
from .observe import Presence, Reach

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import TypeGuard

    from .observe import RunView

DEFAULT_GRACE_S = 30.0
"""The least grace of a run that states none (docs/design.md, job file)."""
WAIT_MARGIN_S = 10.0
"""What a stop is waited for beyond its grace: the KILL rung, the results, the records."""
STUCK_WAIT_S = 5.0
"""How long something that survived KILL is waited for before it is reported."""
SETTLE_WAIT_S = 2.0
"""How long a verb that only looks waits for a vanished run to be finished."""
SIGNAL_WAIT_S = 2.0
"""How long a supervisor has to act on a first signal before the second is sent."""
DECISION_WAIT_S = 60.0
"""How long a supervisor may take to decide whether a failed attempt is followed by another: scratch may go first."""
ADOPT_WAIT_S = 10.0
"""How long a new supervisor has to take a run up."""


def grace_of(view: RunView) -> float:
    """Seconds of grace that a stop of this run gives, as far as its files say."""
    plan, job = view.manifest.get("plan"), view.record.get("job")
    measured = view.heartbeat.get("save_seconds")
    stated = job.get("grace_s") if isinstance(job, dict) else None
    if not _is_number(stated) and _is_number(measured):
        return max(DEFAULT_GRACE_S, 2 * float(measured))
    for value in (plan.get("grace_s") if isinstance(plan, dict) else None, stated):
        if _is_number(value):
            return float(value)
    return DEFAULT_GRACE_S


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value == value  # noqa: PLR0124 - NaN


def describe_caller() -> str:
    """Who asks, for the record: account, terminal or not, pid."""
    return f"{processes.user_name(os.getuid())} (pid {os.getpid()})"


def ask_stop(view: RunView, wish: Wish, *, by: str, reason: str = "") -> None:
    """Ask for a stop, durably; a run that nobody supervises gets a supervisor, which finds the wish.

    A directory that takes no file (a full disk) does not keep a run alive: its supervisor is then asked by signal.

    Raises:
        NotPermitted, StorageError: it could not be asked.
    """
    try:
        launch.ask(view.run_dir, view.attempt, Desired(wish, by=by, at=clock.utc_now(), reason=reason))
    except StorageError:
        if not _signal_supervisor(view, wish):
            raise
        return
    if not view.supervised and not view.over and view.reach is Reach.HERE:
        launch.start_supervisor(view.run_dir, view.attempt, environ=os.environ, reason="adopt")


def _signal_supervisor(view: RunView, wish: Wish) -> bool:
    """Ask the run's own supervisor by TERM, or by INT twice for force; False when there is none to ask.

    Two signals of a kind that are pending at once are one: the second waits until the first was acted upon.
    """
    supervisor = view.state.supervisor if view.state is not None else None
    if supervisor is None or not view.supervised:
        return False
    if wish is Wish.STOP:
        return processes.send_signal(supervisor, signal.SIGTERM)
    asked = processes.send_signal(supervisor, signal.SIGINT)
    deadline = clock.monotonic_s() + SIGNAL_WAIT_S
    with Changes(view.attempt_dir) as changes:
        while clock.monotonic_s() < deadline and not _is_stopping(observe.observe(view.run_dir, attempt=view.attempt)):
            changes.wait(0.05)
    return processes.send_signal(supervisor, signal.SIGINT) or asked


def _is_stopping(view: RunView) -> bool:
    return view.state is None or isinstance(view.state.state, (Stopping, Finalizing, Ended))


def stop(
    run_dir: str, wish: Wish, *, by: str, reason: str = "", wait_s: float | None = None, tell: Callable[[RunView], None]
) -> RunView:
    """Stop a run and wait until it is over, or until time is up; answers the last look.

    `wait_s` None is the run's grace and `WAIT_MARGIN_S`. `tell` hears every look on the way. A run that is over stays
    as it is, so that asking again is harmless.

    Raises:
        NoSuchRun: there is no attempt yet.
        StorageError: the run belongs to another host, or its state cannot be read.
    """
    view = observe.observe(run_dir)
    desired = Desired(wish, by=by, at=clock.utc_now(), reason=reason)
    decided_s = DECISION_WAIT_S if wait_s is None else min(wait_s, DECISION_WAIT_S)
    view = _forestall(view, desired, decided_s)
    if view.over:
        return view
    require_actionable(view)
    if not view.ended:
        ask_stop(view, wish, by=by, reason=reason)
    elif view.vanished:
        settle(view)
    limit_s = grace_of(view) + WAIT_MARGIN_S if wait_s is None else wait_s
    last = _forestall(wait_over(run_dir, view.attempt, wait_s=limit_s, tell=tell), desired, decided_s)
    if last.attempt == view.attempt:
        return last
    # It failed by itself before it heard of the wish, and was followed up.
    return stop(run_dir, wish, by=by, reason=reason, wait_s=wait_s, tell=tell)


def _forestall(view: RunView, desired: Desired, within_s: float) -> RunView:
    """Keep an attempt that has failed from being followed by another one of holdfast's own; the last look.

    While that is being decided the wish stands before its supervisor; when it comes too late, the look is at the
    attempt that was begun.
    """
    if view.end is None or view.end.outcome is not Outcome.FAILED:
        return view
    from .retrying import Following, awaits_decision, find_following

    deadline, asked = clock.monotonic_s() + within_s, False
    with Changes(view.attempt_dir) as changes:
        while awaits_decision(view) and (left_s := deadline - clock.monotonic_s()) > 0:
            if not asked:
                asked = True
                launch.ask(view.run_dir, view.attempt, desired)
            watch_processes(changes, view)
            changes.wait(left_s)
            view = observe.observe(view.run_dir, attempt=view.attempt)
    begun = find_following(view.run_dir, view.attempt) is Following.BEGUN
    return observe.observe(view.run_dir) if begun else view


def require_actionable(view: RunView) -> None:
    """Refuse to act on what this box cannot act on.

    Raises:
        NoSuchRun: there is no attempt.
        StorageError: another host's run, or an unreadable state.
    """
    if view.reach is Reach.OTHER_HOST:
        raise StorageError(
            f"{view.run_id} runs on host {view.host}; this is {os.uname().nodename}",
            hint=f"do it there: ssh {view.host} holdfast ...",
        )
    if view.attempt == 0:
        raise NoSuchRun(f"{view.run_id} has no attempt: nothing was ever started", hint=f"holdfast show {view.run_id}")
    if view.state is None and not view.ended:
        what = "; ".join(f"{item.path}: {item.reason}" for item in view.unreadable) or "it has no state.json"
        raise StorageError(
            f"{view.run_id} cannot be acted on: {what}",
            hint=f"holdfast show {view.run_id} tells what can still be read",
        )


def wait_over(run_dir: str, attempt: int, *, wait_s: float, tell: Callable[[RunView], None] | None = None) -> RunView:
    """Wait until an attempt is over, something of it is stuck, or `wait_s` seconds have passed; the last look."""
    deadline = clock.monotonic_s() + wait_s
    settled = False
    with Changes(wire.attempt_dir(run_dir, attempt)) as changes:
        while True:
            view = observe.observe(run_dir, attempt=attempt)
            if tell is not None:
                tell(view)
            if view.over or (view.ended and not view.supervised and not view.vanished):
                return view
            if view.vanished and not settled:
                settled = True
                settle(view)
            if survivors(view):
                deadline = min(deadline, clock.monotonic_s() + STUCK_WAIT_S)
            left_s = deadline - clock.monotonic_s()
            if left_s <= 0:
                return view
            watch_processes(changes, view)
            changes.wait(left_s)


def watch_processes(changes: Changes, view: RunView) -> None:
    """Wake when the supervisor, the keeper or the job of this look ends."""
    if view.state is None or view.reach is not Reach.HERE:
        return
    keeper, job = observe.recorded_processes(view.state.state)
    changes.watch(view.state.supervisor, keeper, job)


def survivors(view: RunView) -> tuple[str, ...]:
    """What survived KILL so far, in words."""
    state = view.state.state if view.state is not None else None
    return state.stuck if isinstance(state, Finalizing) else ()


def settle(view: RunView, *, begin: bool = False) -> bool:
    """Have a run that vanished finished by a new supervisor; False when that could not be begun.

    What was lost and what was proven is the supervisor's to judge. Bounded: only its start is waited for. A run whose
    job had not started yet would begin now, in the environment of whoever looks; so unless `begin` it is called off.
    """
    if not os.access(view.run_dir, os.W_OK) or os.stat(view.run_dir).st_uid != os.geteuid():
        return False
    if not begin and is_unstarted(view) and view.desired is None:
        reason = f"its supervisor died before the job started; holdfast restart {view.run_id} starts it"
        launch.ask(view.run_dir, view.attempt, Desired(Wish.STOP, by="holdfast", at=clock.utc_now(), reason=reason))
    if not observe.observe(view.run_dir).vanished:
        # Somebody else was quicker.
        return False
    launch.start_supervisor(view.run_dir, view.attempt, environ=os.environ, reason="adopt")
    return True


def is_unstarted(view: RunView) -> bool:
    """Whether the word to go was certainly never given to the job."""
    state = view.state.state if view.state is not None else None
    if isinstance(state, Starting):
        return state.job is None or view.status.get("source") == ABANDONED
    return isinstance(state, (Created, Preflight, Waiting))


def settle_and_look(run_dir: str) -> RunView:
    """Look at a run; if it has vanished have it finished, wait a little, and look again (PROC-15)."""
    view = observe.observe(run_dir)
    if not view.vanished or not settle(view):
        return view
    return wait_over(run_dir, view.attempt, wait_s=SETTLE_WAIT_S)


@contextmanager
def hold(run_dir: str, *, what: str) -> Iterator[None]:
    """Hold the run against another restart, adoption or removal while this one is at work.

    Raises:
        ResourceBusy: somebody else is at it.
    """
    import fcntl

    descriptor = os.open(run_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ResourceBusy(
                f"another holdfast is restarting, adopting, retrying or removing {os.path.basename(run_dir)}",
                hint=f"wait for it, then {what} again",
            ) from None
        yield
    finally:
        os.close(descriptor)


def is_held(run_dir: str) -> bool:
    """Whether somebody restarts, adopts, retries or removes the run just now; what stands there may change."""
    try:
        with hold(run_dir, what="look at it"):
            return False
    except ResourceBusy:
        return True
    except OSError:
        return False


def restart(
    run_dir: str, *, environ: Mapping[str, str], by: str, wait_s: float | None, tell: Callable[[RunView], None]
) -> int:
    """Stop, verify that nothing is left, start the same command as the next attempt; answers its number (PROC-27).

    Raises:
        StillAlive: the run is not over, or something of it is left: nothing was started.
        ResourceBusy: another restart is under way.
    """
    from .create import next_attempt

    with hold(run_dir, what="restart"):
        view = stop(run_dir, Wish.STOP, by=by, reason="restart", wait_s=wait_s, tell=tell)
        if not view.over:
            left = "; ".join(survivors(view)) or f"it is still {view.condition}"
            raise StillAlive(f"{view.run_id} was not restarted: {left}", hint=f"holdfast stop --now {view.run_id}")
        members = processes.find_marked(view.run_id)
        if members:
            pids = ", ".join(str(member.pid) for member in members)
            raise StillAlive(
                f"{view.run_id} was not restarted: processes of it live: {pids}", hint="look at them with ps"
            )
        attempt = next_attempt(run_dir, "restart")
        launch.start_supervisor(run_dir, attempt, environ=environ, reason="restart")
        return attempt


def adopt(run_dir: str, *, environ: Mapping[str, str]) -> RunView:
    """Give a run whose supervisor is gone a new one; answers the look that sees it at work.

    Raises:
        UsageError: it has ended, or is supervised.
        StorageError: no supervisor took it up in `ADOPT_WAIT_S`.
    """
    with hold(run_dir, what="adopt"):
        view = observe.observe(run_dir)
        require_actionable(view)
        if view.over:
            raise UsageError(f"{view.run_id} has ended ({view.condition})", hint=f"holdfast restart {view.run_id}")
        if view.supervised and view.state is not None and view.state.supervisor is not None:
            raise UsageError(
                f"{view.run_id} has a supervisor (pid {view.state.supervisor.pid}); one is enough",
                hint=f"holdfast attach {view.run_id}",
            )
        launch.start_supervisor(run_dir, view.attempt, environ=environ, reason="adopt")
        return _wait_adopted(run_dir, view.attempt)


def _wait_adopted(run_dir: str, attempt: int) -> RunView:
    deadline = clock.monotonic_s() + ADOPT_WAIT_S
    with Changes(wire.attempt_dir(run_dir, attempt)) as changes:
        while True:
            view = observe.observe(run_dir, attempt=attempt)
            if view.over or view.supervisor is Presence.ALIVE:
                return view
            left_s = deadline - clock.monotonic_s()
            if left_s <= 0:
                raise StorageError(
                    f"no supervisor took {view.run_id} up within {ADOPT_WAIT_S:.0f} s",
                    hint=f"see {wire.attempt_dir(run_dir, attempt)}/{wire.SUPERVISOR_LOG}",
                )
            changes.wait(left_s)
