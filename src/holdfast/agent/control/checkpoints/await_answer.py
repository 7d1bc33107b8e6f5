"""From outside: have a living job save a checkpoint and go on, and see that it has (LIB-17).

A request goes to the supervisor, which passes it on to the job (`saving`). What counts as the answer is a checkpoint
that is durable and not older than the request: by the job's heartbeat (``last_durable_step``), or by a commit record of
the library's format in the run's checkpoint directory that was written since. Waiting is bounded by the caller; a
request that nobody has answered yet stays.
"""

from __future__ import annotations

import os
import re
from enum import Enum
from typing import TYPE_CHECKING

from holdfast.agent import launch
from holdfast.agent.control.act import require_actionable
from holdfast.agent.requests import PASSED_ON, REFUSED, write_checkpoint_request
from holdfast.agent.view import observe
from holdfast.agent.view.changes import ChangeWatch
from holdfast.agent.view.follow import watch_processes
from holdfast.core.recorded_environment import restore_recorded
from holdfast.host import clock
from holdfast.model import wire
from holdfast.model.errors import UsageError
from holdfast.model.pattern import compile_later
from holdfast.model.record import record
from holdfast.model.run import CheckpointRequest, Finalizing, Running, Starting, Stopping

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.agent.view.run_view import RunView

LOOK_AGAIN_S = 1.0
"""How often checkpoints are looked at where no heartbeat tells; a change in the attempt's directory wakes at once."""
MTIME_SLACK_S = 0.05
"""File times come from the kernel's tick, up to 10 ms behind the clock."""
MOST_ENTRIES = 10_000
COMMIT_RECORD = "checkpoint.json"
_STEP = compile_later(r"step-(\d{1,18})", re.ASCII)


class RequestPhase(str, Enum):
    """How far a request has come."""

    ASKED = "asked"
    PASSED_ON = "passed_on"
    TAKEN_UP = "taken_up"
    SAVED = "saved"
    REFUSED = "refused"
    ENDED = "ended"


@record
class PendingCheckpoint:
    """A request, and where the job stood then.

    The step of its heartbeat and its last durable one, None when not told.
    """

    request: CheckpointRequest
    run_dir: str
    attempt: int
    at_epoch_s: float
    step: int | None
    durable: int | None

    def is_answered_by(self, step: int) -> bool:
        """Whether a checkpoint of `step` is newer than the last one before the request and holds all of then."""
        return (self.durable is None or step > self.durable) and (self.step is None or step >= self.step)


@record
class CheckpointProgress:
    """One look at a request: how far it has come, the last look at the run, and the checkpoint that answers it.

    `path` is the checkpoint's directory when it lies in the run's own, else that directory; None before it is saved.
    """

    asked: PendingCheckpoint
    phase: RequestPhase
    view: RunView
    step: int | None = None
    path: str | None = None

    @property
    def over(self) -> bool:
        """Whether no later look can differ."""
        return self.phase in (RequestPhase.SAVED, RequestPhase.REFUSED, RequestPhase.ENDED)


def request_checkpoint(run_dir: str, *, by: str, reason: str = "") -> PendingCheckpoint:
    """Ask for a checkpoint; a living job that nobody supervises gets a supervisor, which passes the request on.

    Raises:
        UsageError: its job does not run, so nothing can save.
        NoSuchRun, StorageError, NotPermitted: it cannot be asked from here.
    """
    view = observe.observe_run(run_dir)
    require_actionable(view)
    _require_running(view)
    request = CheckpointRequest(os.urandom(4).hex(), by=by, at=clock.utc_now(), reason=reason)
    durable = _count(view, "last_durable_step")
    if durable is None:
        durable = max(_find_committed(f"{run_dir}/{wire.CHECKPOINTS}", 0.0), default=None)
    asked = PendingCheckpoint(request, run_dir, view.attempt, clock.epoch_s(), _count(view, "step"), durable)
    write_checkpoint_request(run_dir, view.attempt, request)
    if not view.supervised:
        launch.start_supervisor(
            run_dir, view.attempt, environ=restore_recorded(view.record, os.environ), reason="adopt"
        )
    return asked


def _require_running(view: RunView) -> None:
    state = view.state.state if view.state is not None else None
    # Where its state cannot be read its supervisor still knows, and refuses by itself.
    runs = isinstance(state, Running) or (state is None and view.supervised)
    if runs and (view.job_lives or view.supervised):
        return
    run_id = view.run_id
    if view.over or state is None:
        words, hint = f"has ended ({view.condition}): no job is there to save", f"holdfast show {run_id}"
    elif isinstance(state, (Stopping, Finalizing)):
        words, hint = "is being stopped; a job that saves does so on leaving", f"holdfast attach {run_id}"
    elif isinstance(state, Running):
        words, hint = f"is {view.condition}: no process of it lives", f"holdfast show {run_id}"
    else:
        begun = "is still starting" if isinstance(state, Starting) else f"is {view.condition}"
        words, hint = f"{begun}: its job has not begun yet", f"holdfast attach {run_id}"
    raise UsageError(f"{run_id} {words}", hint=hint)


def _count(view: RunView, name: str) -> int | None:
    value = view.heartbeat.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def wait_saved(
    asked: PendingCheckpoint, *, wait_s: float, tell: Callable[[CheckpointProgress], None]
) -> CheckpointProgress:
    """Wait until a request is answered, cannot be any more, or `wait_s` seconds have passed; the last look."""
    deadline = clock.monotonic_s() + wait_s
    phase = RequestPhase.ASKED
    with ChangeWatch(wire.attempt_dir(asked.run_dir, asked.attempt)) as changes:
        while True:
            found = check_progress(asked, phase)
            phase = found.phase
            tell(found)
            left_s = deadline - clock.monotonic_s()
            if found.over or left_s <= 0:
                return found
            watch_processes(changes, found.view)
            changes.wait(min(left_s, LOOK_AGAIN_S))


def check_progress(asked: PendingCheckpoint, before: RequestPhase = RequestPhase.ASKED) -> CheckpointProgress:
    """How far a request has come; `before` is what the last look saw."""
    view = observe.observe_run(asked.run_dir, attempt=asked.attempt)
    phase = before
    if phase is RequestPhase.ASKED:
        phase = _find_phase(asked)
    if phase is RequestPhase.PASSED_ON and not os.path.lexists(f"{view.attempt_dir}/{wire.CHECKPOINT_REQUEST}"):
        phase = RequestPhase.TAKEN_UP
    step, path = _find_answer(asked, view, taken_up=phase is RequestPhase.TAKEN_UP)
    if step is not None:
        return CheckpointProgress(asked, RequestPhase.SAVED, view, step, path)
    if phase is RequestPhase.REFUSED:
        state = view.state.state if view.state is not None else None
        # It was leaving when it was asked: its last save, which may answer the request, is known when it has left.
        return CheckpointProgress(
            asked, RequestPhase.ASKED if isinstance(state, (Stopping, Finalizing)) else phase, view
        )
    gone = view.over or (view.vanished and not view.job_lives)
    return CheckpointProgress(asked, RequestPhase.ENDED if gone else phase, view)


def _find_phase(asked: PendingCheckpoint) -> RequestPhase:
    """Whether the supervisor has treated the request, by its events."""
    for event in reversed(observe.read_events(asked.run_dir, asked.attempt)):
        data = event.get("data")
        if isinstance(data, dict) and data.get("id") == asked.request.id and event.get("event") in (PASSED_ON, REFUSED):
            return RequestPhase.PASSED_ON if event["event"] == PASSED_ON else RequestPhase.REFUSED
    return RequestPhase.ASKED


def _find_answer(asked: PendingCheckpoint, view: RunView, *, taken_up: bool) -> tuple[int | None, str | None]:
    """The step and the place of a durable checkpoint that answers the request; None without."""
    place = f"{asked.run_dir}/{wire.CHECKPOINTS}"
    committed = _find_committed(place, asked.at_epoch_s - MTIME_SLACK_S)
    steps = [step for step in committed if asked.is_answered_by(step)]
    durable = _count(view, "last_durable_step")
    if durable is not None and (asked.is_answered_by(durable) or (taken_up and _has_nothing_newer(asked, view))):
        steps.append(durable)
    left = view.end.stop if view.end is not None else None
    if left is not None and left.checkpoint_step is not None and asked.is_answered_by(left.checkpoint_step):
        steps.append(left.checkpoint_step)
    if not steps:
        return None, None
    step = max(steps)
    path = f"{place}/step-{step}"
    return step, path if os.path.isdir(path) else place


def _has_nothing_newer(asked: PendingCheckpoint, view: RunView) -> bool:
    """Whether the job, asked, says that its last durable step is where it stands: there was nothing more to save."""
    told = view.heartbeat.get("time")
    is_later = isinstance(told, (int, float)) and told >= asked.at_epoch_s
    return is_later and _count(view, "last_durable_step") == _count(view, "step")


def _find_committed(place: str, since_epoch_s: float) -> list[int]:
    """The steps of the checkpoints whose commit record was written since; they are the library's to verify."""
    found: list[int] = []
    try:
        with os.scandir(place) as entries:
            for number, entry in enumerate(entries):
                match = _STEP.fullmatch(entry.name)
                if match is None or number > MOST_ENTRIES:
                    continue
                try:
                    facts = os.stat(f"{entry.path}/{COMMIT_RECORD}", follow_symlinks=False)
                except OSError:
                    continue
                if facts.st_mtime >= since_epoch_s:
                    found.append(int(match[1]))
    except OSError:
        return []
    return found
