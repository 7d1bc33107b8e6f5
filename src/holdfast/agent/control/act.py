"""Shared by stop, restart and adopt: can this box act on a run, a supervisor for it, waiting for its end.

No process of a job is signalled from here, and no request is written.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.agent import launch
from holdfast.agent.view.follow import GONE_S, RunFollower
from holdfast.agent.view.retries import count_automatic, is_followed
from holdfast.agent.view.run_view import Presence, RunReach, build_unbegun_error
from holdfast.core.recorded_environment import restore_recorded
from holdfast.host import clock
from holdfast.host.process import processes
from holdfast.model import wire
from holdfast.model.errors import StorageError
from holdfast.model.run import Finalizing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from holdfast.agent.view.run_view import RunView

PUT_BACK = "put that file back, from a backup or a copy of the run, and repeat this"
"""What to do about a damaged record of which holdfast has no second one."""
STUCK_WAIT_S = 5.0
"""How long something that survived KILL is waited for before it is reported."""


def generation_of(view: RunView) -> int:
    """The generation that a request about this attempt belongs to."""
    if view.state is not None:
        return view.state.generation
    return view.attempt - count_automatic(view.run_dir, view.attempt)


def require_actionable(view: RunView) -> None:
    """Refuse to act on what this box cannot act on.

    Raises:
        NoSuchRun: there is no attempt.
        StorageError: a run of another box, a state that cannot be read while nobody is seen to supervise it, or one
            that was removed while its job lives.
    """
    if view.reach is RunReach.ELSEWHERE and view.scheduler:
        raise StorageError(
            f"{view.run_id} cannot be acted on from here: its processes are on {view.host}, where {view.scheduler} "
            "has put them",
            hint=f"holdfast stop {view.run_id}, then holdfast restart {view.run_id} with what is to be otherwise",
        )
    if view.outside:
        words = f"{view.run_id} cannot be acted on from here: {view.note}"
        raise StorageError(words, hint="type it outside of this container or job")
    if view.reach is RunReach.ELSEWHERE:
        there = "where it was begun" if view.host == os.uname().nodename else f"there: ssh {view.host} holdfast ..."
        gone = f"if that place is gone for good: holdfast adopt --gone REASON {view.run_id}"
        raise StorageError(f"{view.run_id} cannot be acted on from here: {view.note}", hint=f"do it {there}; {gone}")
    if view.attempt == 0:
        if members := processes.find_marked(view.run_id):
            pids = ", ".join(str(member.pid) for member in members)
            raise StorageError(
                f"{view.run_id}: the records of its attempts are gone, and processes of it live: {pids}",
                hint="look at them with ps and end them with kill: without its records holdfast signals nothing",
            )
        raise build_unbegun_error(view)
    # A living supervisor hears a request whatever stands in its state.
    if view.state is None and not view.over and not view.supervised:
        what = "; ".join(item.words for item in view.unreadable) or "it has no state.json"
        pids = " ".join(str(member.pid) for member in view.members)
        raise StorageError(
            f"{view.run_id} cannot be acted on: {what}",
            hint=f"holdfast show {view.run_id} tells what can still be read"
            + (f"; what lives of it ends by: kill {pids}" if pids else ""),
        )


def require_job(view: RunView) -> None:
    """Refuse where what a run is to run cannot be read.

    Raises:
        StorageError: a record of its job is damaged, closed or gone.
    """
    broken = view.find_unreadable(wire.RUN) or view.find_unreadable(wire.JOB)
    if broken is not None:
        stops = f"; holdfast stop {view.run_id} works without it" if view.supervised else ""
        raise StorageError(f"the job of {view.run_id} is not known: {broken.words}", hint=PUT_BACK + stops)


def supervise(view: RunView, environ: Mapping[str, str] | None = None) -> None:
    """Give an attempt a supervisor; `environ` is what a job is made from, without it what is recorded with the run.

    Raises:
        StorageError: what a supervisor has to know of the run cannot be read, so that none could take it up.
    """
    if broken := view.find_unreadable(wire.RUN):
        raise StorageError(
            f"no supervisor can take {view.run_id} up: {broken.words}",
            hint=f"{PUT_BACK}. What lives of the run goes on: holdfast show "
            f"{view.run_dir} has its pids; without that file holdfast signals nothing, end them with kill",
        )
    environ = restore_recorded(view.record, os.environ) if environ is None else environ
    launch.start_supervisor(view.run_dir, view.attempt, environ=environ, reason="adopt")


def wait_over(
    run_dir: str,
    attempt: int,
    *,
    wait_s: float,
    tell: Callable[[RunView], None] | None = None,
    while_supervised: bool = False,
) -> RunView:
    """Wait until an attempt, and any that follows it by itself, is over; the last look.

    Also until nobody is left who could end it, something of it is stuck, or `wait_s` seconds have passed; with
    `while_supervised` until it has had no supervisor for `GONE_S`, also while its job lives.
    """
    deadline = clock.monotonic_s() + wait_s
    alone_since: float | None = None
    with RunFollower(run_dir, attempt) as follow:
        while True:
            view = follow.look()
            if tell is not None:
                tell(view)
            if view.over and not is_followed(run_dir, view.attempt):
                return view
            if follow.is_gone():
                return view
            if describe_survivors(view):
                deadline = min(deadline, clock.monotonic_s() + STUCK_WAIT_S)
            now = clock.monotonic_s()
            left_s = deadline - now
            alone = while_supervised and view.reach is RunReach.HERE and view.supervisor is Presence.GONE
            alone_since = (alone_since or now) if alone else None
            if alone_since is not None:
                left_s = min(left_s, alone_since + GONE_S - now)
            if left_s <= 0:
                return view
            follow.rest(left_s)


def describe_survivors(view: RunView) -> tuple[str, ...]:
    """What survived KILL so far, in words."""
    state = view.state.state if view.state is not None else None
    return state.stuck if isinstance(state, Finalizing) else ()
