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
from typing import TYPE_CHECKING

from ..ranks.agreement import Action, Wish
from .budget import Budget, StepClock, StopReason, StopSignals, after_signal, earliest_deadline, grace_s

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..cadence import Cadence

REQUEST_EVERY_S = 0.2
"""How often the file that asks for a checkpoint is looked for."""
LONGEST_REASON = 100
WORDS = ("signal", "deadline", "operator", "memory", "user", "nonfinite", "save_failed")
"""What ``why`` in stop.json may be for a run that was asked to leave."""


class Watch:
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

    def wish_to_stop(self, now: float, save_s: float | None) -> Wish | None:
        """Whether to leave; `save_s` is the measured time of a save."""
        if self.reason is None:
            if self.signals.flag:
                number = self.signals.flag
                self.reason = StopReason("signal", signal.Signals(number).name, number)
            elif self._deadline is not None and now > self._deadline_look:
                p99 = self.clock.p99()
                self._deadline_look = now + min(1.0, p99)
                if Budget.must_stop(now, self._deadline, p99, save_s or 0.0):
                    self.reason = StopReason("deadline", self._deadline.source)
        if self.reason is None:
            return None
        return Wish(Action.STOP, f"{self.reason.why}: {self.reason.detail}"[:LONGEST_REASON])

    def wish_to_save(self, step: int, now: float, cadence: Cadence, *, busy: bool) -> Wish | None:
        """Whether to save after `step` complete steps.

        While a save is under way (`busy`): only when somebody asks, or by the count of steps, which is a promise.
        """
        if now - self._looked_at >= REQUEST_EVERY_S:
            self._looked_at = now
            asked = take_request(self._request_path)
            if asked is not None:
                return Wish(Action.SAVE, asked)
        if cadence.due(step, now, self._step_s) and not (busy and cadence.interval_s is not None):
            return Wish(Action.SAVE, "interval")
        return None

    def time_left(self) -> float | None:
        """Seconds until the first of the known ends; None when none is known."""
        ends = [self._deadline]
        if self.signals.flag:
            ends.append(after_signal(self.signals.at, self._grace_s))
        return min((end.at_monotonic - time.monotonic() for end in ends if end is not None), default=None)


def parse_reason(text: str) -> StopReason:
    """The reason that another rank gave, as it came through the agreement."""
    why, _, detail = text.partition(": ")
    return StopReason(why if why in WORDS else "user", detail)


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
