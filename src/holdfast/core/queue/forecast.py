"""When waiting jobs will start and end: list scheduling of what is known over the places that there are.

An estimate for people, nothing is decided by it. Jobs take their turn as the queue gives it: in order, those for cards
beside those for CPU slots, one that does not fit keeps the later ones of its kind waiting, one whose group is full does
not. A job whose duration is not known gets no end, and whatever has to wait for its place gets no start: no number is
better than a guess that looks like one.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Mapping, Sequence

from holdfast.model.record import record
from holdfast.model.units import format_duration

NEVER = math.inf


@record
class JobLoad:
    """One job as the schedule sees it: its key, and what it takes.

    `cards`, or `slots` without cards. `seconds` is how long it takes, or for a running one how much longer (None: not
    known). `needs` are keys of jobs that must end first; `ready_s` is how many seconds from now it may start at all.
    """

    key: str
    group: str = ""
    cards: int = 0
    slots: int = 1
    seconds: float | None = None
    needs: tuple[str, ...] = ()
    ready_s: float = 0.0


@record
class Capacity:
    """What there is: `cards` (None: not known) and CPU `slots` in all, and how many jobs each group may run."""

    cards: int | None
    slots: int
    groups: Mapping[str, int]


@record
class JobSpan:
    """Seconds from now at which a job starts and ends; None: not known."""

    start_s: float | None
    end_s: float | None


def forecast_jobs(running: Sequence[JobLoad], waiting: Sequence[JobLoad], room: Capacity) -> dict[str, JobSpan]:
    """The expected span of every job, by key; `waiting` is in the order in which the jobs are to start."""
    schedule = _Schedule(running, waiting, room)
    schedule.run()
    return {load.key: schedule.span_of(load.key) for load in (*running, *waiting)}


class _Schedule:
    """The state of the simulation. Every job starts once and ends once, so it ends."""

    def __init__(self, running: Sequence[JobLoad], waiting: Sequence[JobLoad], room: Capacity) -> None:
        self._loads = list(waiting)
        self._room = room
        self._used = {"cards": 0, "slots": 0}
        self._in_group: dict[str, int] = {}
        self._starts: dict[str, float] = {}
        self._ends: dict[str, float] = {}
        self._ending: list[tuple[float, int, JobLoad]] = []
        self._begun = 0
        self._ready_at: list[tuple[float, int]] = []
        self._lines: dict[tuple[str, str], list[int]] = {}
        known = {load.key for load in (*running, *waiting)}
        self._open = {load.key: sum(need in known for need in set(load.needs)) for load in waiting}
        self._after: dict[str, list[int]] = {}
        for index, load in enumerate(waiting):
            for need in set(load.needs) & known:
                self._after.setdefault(need, []).append(index)
            if not self._open[load.key]:
                heapq.heappush(self._ready_at, (max(0.0, load.ready_s), index))
        for load in running:
            self._start(load, 0.0)

    def run(self) -> None:
        """Go from event to event: a job ends, or its time comes."""
        now = 0.0
        while True:
            self._enter_line(now)
            self._fill(now)
            following = min(
                self._ending[0][0] if self._ending else NEVER, self._ready_at[0][0] if self._ready_at else NEVER
            )
            if following == NEVER:
                return
            now = max(now, following)
            while self._ending and self._ending[0][0] <= now:
                self._end(*heapq.heappop(self._ending)[::2])

    def span_of(self, key: str) -> JobSpan:
        start, end = self._starts.get(key), self._ends.get(key)
        return JobSpan(start, None if end is None or end == NEVER else end)

    def _enter_line(self, now: float) -> None:
        while self._ready_at and self._ready_at[0][0] <= now:
            _, index = heapq.heappop(self._ready_at)
            load = self._loads[index]
            heapq.heappush(self._lines.setdefault((_kind(load), load.group), []), index)

    def _fill(self, now: float) -> None:
        """Start what fits, for each kind of place in order of the jobs."""
        for kind in ("cards", "slots"):
            while (line := self._next_line(kind)) is not None:
                load = self._loads[line[0]]
                total = self._room.cards if kind == "cards" else self._room.slots
                if total is None or self._used[kind] + _size(load) > total:
                    break
                heapq.heappop(line)
                self._start(load, now)

    def _next_line(self, kind: str) -> list[int] | None:
        """The line whose first job comes first, of the groups that have room; None without."""
        best: list[int] | None = None
        for (of_kind, group), line in self._lines.items():
            if of_kind != kind or not line or self._in_group.get(group, 0) >= self._room.groups.get(group, NEVER):
                continue
            if best is None or line[0] < best[0]:
                best = line
        return best

    def _start(self, load: JobLoad, now: float) -> None:
        self._used[_kind(load)] += _size(load)
        self._in_group[load.group] = self._in_group.get(load.group, 0) + 1
        self._starts[load.key] = now
        end = NEVER if load.seconds is None else now + max(0.0, load.seconds)
        self._ends[load.key] = end
        self._begun += 1
        if end != NEVER:
            heapq.heappush(self._ending, (end, self._begun, load))

    def _end(self, now: float, load: JobLoad) -> None:
        self._used[_kind(load)] -= _size(load)
        self._in_group[load.group] -= 1
        for index in self._after.pop(load.key, ()):
            follower = self._loads[index]
            self._open[follower.key] -= 1
            if not self._open[follower.key]:
                heapq.heappush(self._ready_at, (max(now, follower.ready_s), index))


def _kind(load: JobLoad) -> str:
    return "cards" if load.cards else "slots"


def _size(load: JobLoad) -> int:
    return load.cards or load.slots


def expect_seconds(stated_s: float | None, durations: Sequence[float]) -> float | None:
    """How long a job takes: the median of what jobs like it took, else what was stated, else None.

    What was measured goes before what somebody wrote down before the first job had run.
    """
    if durations:
        ordered = sorted(durations)
        middle = len(ordered) // 2
        return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
    return stated_s


def estimate_rest(
    waiting: int, running: Sequence[float], seconds: float | None, parallel: int, ready: Sequence[float] = ()
) -> float | None:
    """Seconds until `waiting` equal jobs and the `running` ones have ended, `parallel` at a time; None if not known.

    `running` has for each how much longer it takes, `ready` for those of `waiting` that may not start now how many
    seconds from now they may. The same as `forecast_jobs` for jobs that are all alike, without
    looking at each of them: a list of ten thousand is told from its counts.
    """
    if not waiting:
        return max(running, default=0.0)
    if seconds is None or parallel < 1:
        return None
    places = [0.0] * max(0, parallel - len(running)) + [max(0.0, left) for left in running]
    heapq.heapify(places)
    for _ in range(len(running) - parallel):
        # More run than may: those must end before anything follows.
        heapq.heappop(places)
    last = max(running, default=0.0)
    later = sorted(ready)[:waiting]
    for ready_s in (*itertools.repeat(0.0, waiting - len(later)), *later):
        end = max(places[0], ready_s) + seconds
        heapq.heapreplace(places, end)
        last = max(last, end)
    return last


def describe_estimate(seconds: float, samples: int, *, stated: bool = False) -> str:
    """An estimate in words, with what it rests on: ``about 3h20m (from 14 done jobs)``."""
    if samples:
        basis = f"from {samples} done job{'s' if samples != 1 else ''}"
    else:
        basis = "from the expected time that was stated" if stated else "from no done job"
    return f"about {format_duration(seconds)} ({basis})"
