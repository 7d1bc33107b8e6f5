"""Stall clocks of a running job: no progress, no output (MON-07). Acts on what `core.run.stall` judges.

Progress is the step of the heartbeat; of a job that writes none, the newest change among its declared artifacts and its
checkpoints. When a clock runs out the stacks are taken first; then comes the report, and only where the job file says
so the end of the job. A stall that is only reported is diagnosed first (`stall_look`).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.core.run.events import StopWanted
from holdfast.core.run.stall import (
    STARTUP_S,
    Recovered,
    StallClock,
    Stalled,
    StallRules,
    StallSample,
    StallWatch,
    count_done,
)
from holdfast.host.clock import monotonic_s, parse_utc
from holdfast.host.files import files
from holdfast.model import wire
from holdfast.model.job import StallAction
from holdfast.model.run import Running, State, StopCause, StopRequest
from holdfast.model.units import format_duration

from .stall import StallDiagnosis

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from holdfast.agent.supervise.context import SupervisorContext
    from holdfast.agent.supervise.job import JobControl
    from holdfast.agent.supervise.lease.lease import Lease
    from holdfast.model.job import JobSpec


SLOWEST_LOOK_S = 30.0
QUICKEST_LOOK_S = 0.2
LOOKS_PER_LIMIT = 5
BUSY_PCT = 5
"""A card that is used more than this works. Idle cards show 0; a display or a monitor, a few percent."""
COUNTS = ("step", "epoch", "last_durable_step")
"""What of a heartbeat counts as progress."""
MOST_FILES = 200
TIMER = "stall"
HISTORY_BYTES = 256 * 1024
LONGEST_INTERVAL_S = 86400.0


def build_rules(spec: JobSpec) -> StallRules:
    """The limits of a job, and how often they make it necessary to look."""
    stall = spec.stall
    limits = [limit for limit in (stall.no_progress_s, stall.no_output_s, stall.startup_s) if limit]
    period_s = min([SLOWEST_LOOK_S, *(limit / LOOKS_PER_LIMIT for limit in limits)])
    startup_s = STARTUP_S if stall.startup_s is None else stall.startup_s
    return StallRules(stall.no_progress_s, stall.no_output_s, startup_s, max(QUICKEST_LOOK_S, period_s))


class StallClocks:
    """Looks at the running job until its timer is disarmed."""

    def __init__(self, context: SupervisorContext, job: JobControl, lease: Lease, capture: Capturing) -> None:
        """Nothing is looked at before `begin`. `capture` takes the stacks, then calls what it was given."""
        self._context, self._job, self._lease, self._capture = context, job, lease, capture
        self._rules = build_rules(context.spec)
        self._watch = StallWatch(self._rules)
        self._phase = ""
        self._diagnosis: StallDiagnosis | None = None

    def begin(self, state: State) -> None:
        """Look from now on, unless every clock is off."""
        if isinstance(state, Running) and (self._rules.no_progress_s != 0 or self._rules.no_output_s > 0):
            for phase, intervals in read_intervals(self._context.recorder.path(wire.HEALTH)).items():
                self._watch.recall(phase, intervals)
            self._look()

    def end(self) -> None:
        """No more looks."""
        self._context.loop.timers.disarm(TIMER)
        if self._diagnosis is not None:
            self._diagnosis.end()

    def _look(self) -> None:
        self._context.loop.timers.arm(TIMER, self._rules.period_s, self._look)
        if self._context.recorder.degraded:
            # The run's disk takes nothing, so no heartbeat either: nothing can be said, and nobody is stopped for it.
            return
        beat = self._context.heartbeat()
        for found in self._watch.look(self._see(beat)):
            if isinstance(found, Recovered):
                data = {"clock": found.clock.value, "after_s": round(found.waited_s, 1), "step": beat.get("step")}
                self._context.recorder.event("recovered", **data)
            else:
                self._on_stalled(found, beat.get("step"))

    def _see(self, beat: dict[str, object]) -> StallSample:
        phase = beat.get("phase")
        beats, mark = read_mark(beat)
        if not beats:
            mark = self._find_newest()
        return StallSample(
            now_s=monotonic_s(),
            mark=mark,
            phase=phase if isinstance(phase, str) else "",
            beats=beats,
            output=self._read_output(),
            busy=self._are_cards_busy(),
            done=count_done(beat),
        )

    def _read_output(self) -> object:
        """What changes with each write: a log that is cut at its limit does not only grow."""
        if self._job.is_alone:
            return object()  # what it prints is kept by nobody
        try:
            facts = os.stat(self._context.recorder.path(wire.OUTPUT), follow_symlinks=False)
        except FileNotFoundError:
            return None
        except OSError:
            # Not readable is not silent: something new each time.
            return object()
        return facts.st_size, facts.st_mtime_ns

    def _find_newest(self) -> object:
        """The newest change among the results that the job was to write; None before the first."""
        newest = [stamp for path in self._list_results() if (stamp := _changed_at(path)) is not None]
        return max(newest, default=None)

    def _list_results(self) -> Iterator[str]:
        for name in self._context.spec.artifacts:
            yield self._context.shared(name)
        left = MOST_FILES
        for name in (wire.CHECKPOINTS, wire.ARTIFACTS):
            try:
                with os.scandir(self._context.shared(name)) as entries:
                    for entry in entries:
                        left -= 1
                        if left < 0:
                            return
                        yield entry.path
            except OSError:
                continue

    def _are_cards_busy(self) -> bool | None:
        """Whether a leased card worked when it was last read; None without cards, or where none tells."""
        leased = self._lease.leased_cards
        if not leased:
            return None
        used = [card.utilisation_pct for card in self._lease.inventory.cards if card.uuid in leased]
        if any(share is not None and share > BUSY_PCT for share in used):
            return True
        return False if used and None not in used else None

    def _on_stalled(self, found: Stalled, step: object) -> None:
        words = _describe(found)

        def tell(stacks: dict[str, object]) -> None:
            data = {
                "clock": found.clock.value,
                "waited_s": round(found.waited_s, 1),
                "limit_s": round(found.limit_s, 1),
                "first": found.first,
                "phase": found.phase,
                "step": step,
                "cards_busy": found.busy,
                "stacks": stacks,
            }
            self._context.recorder.event("stalled", what=words, **data)
            if self._context.spec.stall.action is StallAction.STOP:
                self._context.notify("stalled", reason=words, stopped=True)
                self._context.emit(StopWanted(StopRequest(StopCause.STALLED, "holdfast", detail=words)))
                return
            # Some seconds later, but with what it is about: nobody acts within seconds on a message.
            self._diagnose(
                found.limit_s if found.clock is StallClock.NO_PROGRESS else float("inf"),
                lambda told: self._context.notify(
                    "stalled", reason=words, stopped=False, diagnosis=told, **_head(told)
                ),
            )

        self._capture(words, tell)

    def _diagnose(self, limit_s: float, then: Callable[[dict[str, object]], None]) -> None:
        if self._diagnosis is None:
            self._diagnosis = StallDiagnosis(self._context, self._job, self._lease)
        self._diagnosis.begin(limit_s, then)


def _head(diagnosis: dict[str, object]) -> dict[str, object]:
    """What a message says of a diagnosis."""
    return {name: diagnosis[name] for name in ("class", "confidence", "action") if name in diagnosis}


def _describe(found: Stalled) -> str:
    waited, limit = format_duration(found.waited_s), format_duration(found.limit_s)
    if found.clock.value == "no_output":
        return f"no output for {waited}, the limit is {limit}"
    where = f" in phase {found.phase}" if found.phase else ""
    kind = "the limit before the first is" if found.first else "the limit is"
    cards = {True: "; its cards work, so it may be a long step", False: "; its cards are idle", None: ""}[found.busy]
    return f"no step for {waited}{where}, {kind} {limit}{cards}"


def read_mark(beat: dict[str, object]) -> tuple[bool, object]:
    """Whether a heartbeat tells how far the job is, and what changes with it; None before the first step.

    All of its fields are optional: one that has a loss and no count of anything shows no progress, so nothing follows
    from it. A count that is null will be told later.
    """
    told = [beat.get(name) for name in COUNTS]
    return any(name in beat for name in COUNTS), (None if told == [None] * len(COUNTS) else tuple(told))


def read_intervals(path: str) -> dict[str, list[float]]:
    """Seconds between changes of the step in this attempt's samples so far, by phase: a supervisor before us took them.

    As coarse as the samples are; a clock that was set between two of them gives no interval.
    """
    found: dict[str, list[float]] = {}
    last: tuple[object, float, str] | None = None
    for line in files.read_tail(path, HISTORY_BYTES).splitlines():
        try:
            sample = wire.parse_object(line, wire.HEALTH)
            step, phase, at = sample.get("step"), str(sample.get("phase") or ""), parse_utc(sample["utc"])
        except (ValueError, KeyError, TypeError):
            continue
        if step is None or (last is not None and last[0] == step):
            continue
        if last is not None and last[2] == phase and 0 < at - last[1] < LONGEST_INTERVAL_S:
            found.setdefault(phase, []).append(at - last[1])
        last = (step, at, phase)
    return found


def _changed_at(path: str) -> int | None:
    try:
        return os.stat(path, follow_symlinks=False).st_mtime_ns
    except OSError:
        return None


if TYPE_CHECKING:
    Capturing = Callable[[str, Callable[[dict[str, object]], None]], None]
