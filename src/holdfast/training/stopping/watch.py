"""What one rank would have all ranks do now: leave, save, or go on; asked between two steps.

Reasons to leave: a signal's flag, a deadline before which one more step and a save would not fit, the script's own
word. Reasons to save: somebody asks (the request file), or it is time.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.training.ranks.agreement import Action, RankProposal

from .budget import Budget, StepClock, StopReason, StopSignals, after_signal, earliest_deadline, grace_s

if TYPE_CHECKING:
    from holdfast.training.cadence import Cadence

REQUEST_EVERY_S = 0.2
"""How often the file that asks for a checkpoint is looked for."""
LAST_S = 0.5
"""What leaving itself takes, after the last wait for the writer."""
LONGEST_REASON = 100
DEADLINE_FILE = "deadline.json"
"""Written by the supervisor when a deadline of a live run was moved: that of the run, or its place's own."""
MOVED = {"deadline": "HOLDFAST_DEADLINE", "place_end": "SLURM_JOB_END_TIME"}
WORDS = ("signal", "deadline", "operator", "memory", "user", "nonfinite", "save_failed")
"""What ``why`` in stop.json may be for a run that was asked to leave."""


class StopMonitor:
    """Watches on one rank. `reason` is why to leave, once there is a reason."""

    def __init__(self, request_path: str | None, time_limit_s: float | None, say: Callable[[str], None]) -> None:
        """Read the deadlines from the environment; nothing is installed yet.

        Raises:
            ValueError: `time_limit_s` is no number of seconds above 0.
        """
        self.signals = StopSignals()
        self.clock = StepClock()
        self.reason: StopReason | None = None
        self._request_path = request_path
        self._time_limit_s = time_limit_s
        self._began = time.monotonic()
        self._deadline_mark = 0
        self._looked_at = self._deadline_look = 0.0
        self._step_s = 0.0
        self._last = time.monotonic()
        self._grace_s = grace_s(os.environ)
        self._deadline, problems = earliest_deadline(
            os.environ, time_limit_s=time_limit_s, now_epoch=time.time(), now_monotonic=time.monotonic()
        )
        for problem in problems:
            say(problem)

    def start(self) -> None:
        """A step begins now; what came before is no step's time."""
        self._last = time.monotonic()

    def forgive(self, seconds: float) -> None:
        """Time that the running step did not spend on itself: a save's pause, an evaluation."""
        self._last += seconds

    def add_step(self, now: float) -> None:
        """A step ends at `now` (monotonic seconds)."""
        took = now - self._last
        self._last = now
        self.clock.add(took)
        # A mean that forgets: the median would cost a sort in each step.
        self._step_s = took if self._step_s == 0.0 else self._step_s + 0.1 * (took - self._step_s)

    def ask(self, why: str, detail: str) -> None:
        """Leave at the next boundary; the first reason stands."""
        if self.reason is None:
            self.reason = StopReason(why, detail)

    def propose_stop(self, now: float, save_s: float | None) -> RankProposal | None:
        """Whether to leave; `save_s` is the measured time of a save."""
        if self.reason is None:
            if self.signals.flag:
                number = self.signals.flag
                self.reason = StopReason("signal", signal.Signals(number).name, number)
            elif now > self._deadline_look:
                self._take_moved_deadline()
                p99 = 1.0 if self._deadline is None else self.clock.p99()
                self._deadline_look = now + min(1.0, p99)
                if self._deadline is not None and Budget.must_stop(now, self._deadline, p99, save_s or 0.0):
                    self.reason = StopReason("deadline", self._deadline.source)
        if self.reason is None:
            return None
        return RankProposal(Action.STOP, f"{self.reason.why}: {self.reason.detail}"[:LONGEST_REASON])

    def _take_moved_deadline(self) -> None:
        """Somebody may have moved the run's deadline meanwhile (`holdfast limit`); the others stand as they were."""
        mark = _read_mark(self._request_path)
        if mark == self._deadline_mark:
            return
        self._deadline_mark = mark
        left_s = None if self._time_limit_s is None else self._time_limit_s - (time.monotonic() - self._began)
        self._deadline = earliest_deadline(
            {**os.environ, **read_moved(self._request_path)},
            time_limit_s=None if left_s is None else max(left_s, 0.001),
            now_epoch=time.time(),
            now_monotonic=time.monotonic(),
        )[0]

    def propose_save(self, step: int, now: float, cadence: Cadence, *, busy: bool) -> RankProposal | None:
        """Whether to save after `step` complete steps.

        While a save is under way (`busy`): only when somebody asks, or by the count of steps, which is a promise.
        """
        if now - self._looked_at >= REQUEST_EVERY_S:
            self._looked_at = now
            asked = take_request(self._request_path)
            if asked is not None:
                return RankProposal(Action.SAVE, asked)
        if cadence.due(step, now, self._step_s) and not (busy and cadence.interval_s is not None):
            return RankProposal(Action.SAVE, "interval")
        return None

    def time_left(self) -> float | None:
        """Seconds until the first of the known ends; None when none is known."""
        ends = [self._deadline]
        if self.signals.flag:
            ends.append(after_signal(self.signals.at, self._grace_s))
        return min((end.at_monotonic - time.monotonic() for end in ends if end is not None), default=None)

    def patience(self) -> float | None:
        """Seconds for which a writer may be waited for so that leaving still fits; None when nobody ends us."""
        left = self.time_left()
        return None if left is None else max(left - LAST_S, 0.1)


def parse_reason(text: str) -> StopReason:
    """The reason that another rank gave, as it came through the agreement."""
    why, _, detail = text.partition(": ")
    return StopReason(why if why in WORDS else "user", detail)


def read_moved(request_path: str | None) -> dict[str, str]:
    """The deadlines that were moved, by their variables, beside the file that asks for checkpoints; empty: without one.

    Those that cannot be read are as they were at the start.
    """
    try:
        with open(_beside(request_path), encoding="utf-8") as file:
            content = json.loads(file.read(65536))
        moved = {name: content[key] for key, name in MOVED.items() if key in content}
    except (OSError, ValueError, TypeError):
        return {}
    return {name: "" if value is None else str(value) for name, value in moved.items()}


def _read_mark(request_path: str | None) -> int:
    try:
        return os.stat(_beside(request_path)).st_mtime_ns
    except OSError:
        return 0


def _beside(request_path: str | None) -> str:
    return "" if request_path is None else os.path.join(os.path.dirname(request_path), DEADLINE_FILE)


def take_request(path: str | None) -> str | None:
    """Whether somebody asks for a checkpoint: the reason, and the request is taken away; None without one."""
    if path is None or not os.path.exists(path):
        return None
    reason = "operator"
    try:
        with open(path, encoding="utf-8") as file:
            content = json.loads(file.read(65536))
        os.unlink(path)
        reason = str(content["reason"])[:LONGEST_REASON]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError):
        with contextlib.suppress(OSError):
            os.unlink(path)
    return reason
