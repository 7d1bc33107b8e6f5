"""Detects that a live job makes no progress: learned from its own pace, phase by phase. Pure.

A look tells what the job has done so far (`StallSample.mark` changes with every step), in which phase it is, and how
much it has said. Between two looks time is *watched*: a gap in which the watcher itself did not run (suspended,
stopped, a virtual machine that was paused) counts for a few looks at most, so neither a clock that jumps nor a stopped
watcher makes a stall. Rules that follow from what other watchers got wrong:

- **Learned, not guessed.** The limit is the longest interval seen times 5, the factor and the five exempt first
  intervals of NVIDIA's resiliency extension (nvidia-resiliency-ext, `ft_launcher` time-outs); not below 5 min, not
  above 2 h.
- **By phase.** An evaluation or a save has its own budget, learned from its own turns; its time is no step's time.
- **A phase counts when it ends**, a step when it is done: nothing is learned from a beginning.
- **The first step** (data, compilation) and the first turn of a phase have a limit of their own.
- **Steps count, not looks**: where the job tells how many it has done, all that ended between two looks count.
- **Silence of the output alone is no stall** while steps are seen: output may be buffered.
- **A busy card doubles the limit**: a kernel that runs is work, as far as anybody can see.
- **Told once**, and armed again by the next progress, which also teaches: an interval that ended was no hang.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from holdfast.model.record import record

FACTOR = 5.0
EXEMPT = 5
"""So many intervals of steps must be seen before they make a limit; until then the limit of the first step holds."""
FLOOR_S = 300.0
CEILING_S = 7200.0
STARTUP_S = 7200.0
"""For the first step; DLRover gives 120 min for it, for evaluation and for compilation."""
BUSY_FACTOR = 2.0
MOST_LOOKS = 3
"""A gap between two looks counts as so many periods at most."""
STEPPING = frozenset({"", "train", "training", "fit"})
"""Phases whose progress is steps; any other phase progresses by ending, too."""
MOST_PHASES = 16


class StallClock(str, Enum):
    """Which clock has run out."""

    NO_PROGRESS = "no_progress"
    NO_OUTPUT = "no_output"


@record
class StallRules:
    """The limits in seconds: `no_progress_s` None is learned and 0 off, `no_output_s` 0 is off.

    `period_s` is how often there is a look.
    """

    no_progress_s: float | None = None
    no_output_s: float = 0.0
    startup_s: float = STARTUP_S
    period_s: float = 30.0
    floor_s: float = FLOOR_S


@record
class StallSample:
    """What one look saw.

    `now_s` is by a clock that nobody sets. `mark` is anything that changes with progress, None as long as there is
    none; `beats` whether the job tells its steps (a heartbeat), so that their absence means something; `done` how many
    steps this attempt has done, None: not told. `output` is anything that changes with output, None: not readable.
    `busy`: the cards work; None: not known.
    """

    now_s: float
    mark: object = None
    phase: str = ""
    beats: bool = False
    output: object = None
    busy: bool | None = None
    done: int | None = None


@record
class Stalled:
    """A clock has run out: after `waited_s`, where `limit_s` was the limit."""

    clock: StallClock
    waited_s: float
    limit_s: float
    phase: str
    first: bool
    """Nothing of the kind has been seen to end yet: the limit was that of the first step."""
    busy: bool | None


@record
class Recovered:
    """What had been called stalled goes on, after `waited_s`."""

    clock: StallClock
    waited_s: float


def read_count(value: object) -> int | None:
    """A count that a job told, where it is one that can be."""
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 62 else None


def count_done(beat: Mapping[str, object]) -> int | None:
    """How many steps the attempt that wrote this heartbeat has done; None where it does not tell where it began."""
    step, start = read_count(beat.get("step")), read_count(beat.get("start_step"))
    return None if step is None or start is None else max(0, step - start)


class StallWatch:
    """Keeps the clocks from look to look."""

    def __init__(self, rules: StallRules) -> None:
        """Nothing has been seen."""
        self._rules = rules
        self._last: StallSample | None = None
        self._waited_s = self._silent_s = 0.0
        self._seen: dict[str, tuple[int, float]] = {}
        self._told: set[StallClock] = set()

    def look(self, look: StallSample) -> tuple[Stalled | Recovered, ...]:
        """What follows from this look."""
        last, self._last = self._last, look
        if last is None:
            return ()
        passed_s = min(max(0.0, look.now_s - last.now_s), MOST_LOOKS * self._rules.period_s)
        self._waited_s += passed_s
        self._silent_s += passed_s
        stepped, turned = look.mark != last.mark, look.phase != last.phase
        found: list[Stalled | Recovered] = []
        if stepped or turned:
            self._learn(last, look, passed_s)
            found += self._rearm(StallClock.NO_PROGRESS, self._waited_s)
            self._waited_s = 0.0
        if stepped or turned or look.output != last.output:
            found += self._rearm(StallClock.NO_OUTPUT, self._silent_s)
            self._silent_s = 0.0
        return (*found, *self._judge(look))

    def recall(self, phase: str, intervals: list[float]) -> None:
        """What an earlier watcher of the same job has seen: so many intervals, in seconds."""
        if intervals:
            self._seen[phase] = (len(intervals), max(intervals))

    def _learn(self, before: StallSample, look: StallSample, passed_s: float) -> None:
        """The intervals that have just ended, for the phase in which they were spent."""
        done = 0 if look.done is None else max(0, look.done - (before.done or 0))
        if before.phase not in STEPPING:
            self._add(before.phase, 1, self._waited_s)
            if look.phase in STEPPING:
                # That phase was over before these steps: the first of them is no interval.
                self._add(look.phase, done - 1, passed_s)
            return
        if look.mark == before.mark:
            # A step that was interrupted by another phase is not done.
            return
        # Before the first heartbeat no phase is told: what was done meanwhile is of the one that it tells.
        phase = before.phase or (look.phase if look.phase in STEPPING else "")
        if before.mark is None or (done and not before.done):
            # Until the first step: no step's interval. Those after it came within this look.
            self._add(phase, max(1, done) - 1, passed_s)
        else:
            self._add(phase, max(1, done), self._waited_s)

    def _add(self, phase: str, ended: int, longest_s: float) -> None:
        if ended <= 0 or (phase not in self._seen and len(self._seen) >= MOST_PHASES):
            return
        count, longest = self._seen.get(phase, (0, 0.0))
        self._seen[phase] = (count + ended, max(longest, longest_s))

    def _rearm(self, clock: StallClock, waited_s: float) -> list[Recovered]:
        if clock not in self._told:
            return []
        self._told.discard(clock)
        return [Recovered(clock, waited_s)]

    def _judge(self, look: StallSample) -> list[Stalled]:
        limit_s, first = self.limit(look)
        clocks = (
            (StallClock.NO_PROGRESS, self._waited_s, limit_s, first),
            (StallClock.NO_OUTPUT, self._silent_s, self._rules.no_output_s or None, False),
        )
        found = []
        for clock, waited_s, most_s, is_first in clocks:
            if most_s is not None and waited_s > most_s and clock not in self._told:
                self._told.add(clock)
                found.append(Stalled(clock, waited_s, most_s, look.phase, is_first, look.busy))
        return found

    def limit(self, look: StallSample) -> tuple[float | None, bool]:
        """How long it may last now (None: no limit), and whether that is the limit of a first time."""
        fixed_s = self._rules.no_progress_s
        if fixed_s == 0:
            return None, False
        count, longest_s = self._seen.get(look.phase, (0, 0.0))
        needed = EXEMPT if fixed_s is None and look.phase in STEPPING else 1
        first = count < needed
        if fixed_s is not None and look.phase in STEPPING and look.done:
            first = False  # a stated limit holds from the second step on, whether or not the first was seen to end
        if first:
            if fixed_s is None and not look.beats:
                # Files that appear now and then promise nothing until they have shown a rhythm.
                return None, True
            limit_s = max(self._rules.startup_s, fixed_s or 0.0)
        else:
            learned_s = min(FACTOR * longest_s, CEILING_S)
            if fixed_s is None:
                limit_s = max(learned_s, self._rules.floor_s)
            else:
                limit_s = fixed_s if look.phase in STEPPING else max(fixed_s, learned_s)
        return (limit_s * BUSY_FACTOR if look.busy else limit_s), first
