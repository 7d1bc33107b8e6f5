"""How often to save: often enough that an interruption costs little, seldom enough that saving costs little (CKPT-09).

Theory. A save costs C seconds, and interruptions come at random, every mu seconds on average. Saving every T seconds
loses C/T of the time to saving and, at each interruption, T/2 on average to work that is done again. The sum is least
at T = sqrt(2 mu C) (Young, 1974), and it is flat there: half or twice that T costs a quarter more of a small number. N
machines that fail independently of each other are interrupted N times as often, so mu is divided by N.

Pure: times come in as arguments, in seconds, from a clock that never jumps.
"""

from __future__ import annotations

import math
import operator
import re
from enum import Enum
from typing import SupportsIndex

from holdfast.model.record import record

DEFAULT_INTERRUPTION_S = 3 * 3600.0
"""The mean time between interruptions when nothing is known."""
FIRST_SAVE_S = 60.0
"""Until a save was measured, the first comes this soon: it is the measure, and something to go on from."""
LONGEST_INTERVAL_S = 3600.0
LEAST_INTERVAL_S = 1.0
PAUSE_FACTOR = 10
"""The training is not paused for more than a tenth of its time."""
KEPT_MEASURES = 5
LONGEST_TIME_S = 10 * 365 * 86400.0

_UNITS_S = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86400.0),
}
_PART = r"(\d+(?:\.\d+)?)\s*([a-z]+)\s*"
_COUNT = r"(\d+)\s*(?:steps?)?"
_EXPECTED = 'write every="auto", a number of steps (500 or "500 steps"), a time ("10m", "2h", "1h30m"), or None'

# Bytes of optimizer state for each parameter. Adam and its kin keep two moments, momentum and RMSprop one, in fp32 also
# beside 16-bit weights (Apex, DeepSpeed, Megatron); torch.optim keeps them in the type of the weights and needs less.
_STATE_BYTES = {
    **dict.fromkeys(("adam", "adamw", "nadam", "radam", "adamax", "lamb"), 8.0),
    **dict.fromkeys(("momentum", "rmsprop", "adagrad", "lion", "lars", "muon"), 4.0),
    **dict.fromkeys(("adam8bit", "adamw8bit"), 2.0),
    **dict.fromkeys(("sgd", "adafactor", "none"), 0.0),
}


class CadenceKind(str, Enum):
    """What decides when to save."""

    AUTO = "auto"
    TIME = "time"
    STEPS = "steps"
    NEVER = "never"


@record
class SaveInterval:
    """How often to save; `amount` is seconds for TIME, steps for STEPS, 0 otherwise."""

    kind: CadenceKind
    amount: float = 0.0


def young_interval_s(save_s: float, mean_time_between_interruptions_s: float, workers: int = 1) -> float:
    """Seconds between saves that lose the least time: sqrt(2 mu C).

    Args:
        save_s: C, seconds from the start of a save until it is durable.
        mean_time_between_interruptions_s: mu of one machine, in seconds.
        workers: Machines of which each one's interruption stops all.

    Raises:
        ValueError: a time is not a positive number, or `workers` is below 1.
    """
    for what, value in (("save time", save_s), ("mean time between interruptions", mean_time_between_interruptions_s)):
        if not 0 < value < math.inf:
            raise ValueError(f"a {what} of {value!r} s is not a positive number of seconds")
    if workers < 1:
        raise ValueError(f"{workers!r} workers: there is at least 1")
    return math.sqrt(2 * mean_time_between_interruptions_s / workers * save_s)


def steps_per_interval(interval_s: float, step_s: float) -> int:
    """Whole steps that fit into the interval, rounded down, at least 1."""
    if not 0 < step_s < math.inf or not interval_s < math.inf:
        return 1
    return max(1, int(interval_s / step_s))


def checkpoint_bytes(
    parameters: int, *, dtype_bytes: int = 4, optimizer: str = "adam", master_weights: bool = False
) -> int:
    """The size of a checkpoint with its optimizer state; weights alone are a third to a seventh of it (CKPT-16, B-53).

    Args:
        parameters: How many.
        dtype_bytes: Bytes of one weight: 4 for fp32, 2 for fp16 and bf16.
        optimizer: Its name; see `_STATE_BYTES`.
        master_weights: Whether an fp32 copy of the weights is kept beside 16-bit ones.

    Raises:
        ValueError: the optimizer is not known, or a number is out of range.
    """
    name = optimizer.lower().replace("_", "").replace("-", "")
    if name not in _STATE_BYTES:
        raise ValueError(
            f"the size of the state of {optimizer!r} is not known; known: {', '.join(sorted(_STATE_BYTES))}"
        )
    if parameters < 0 or dtype_bytes < 1:
        raise ValueError(f"{parameters!r} parameters of {dtype_bytes!r} bytes: give counts of 0 and 1 or more")
    return int(parameters * (dtype_bytes + _STATE_BYTES[name] + (4 if master_weights else 0)))


def parse_every(value: object) -> SaveInterval:
    """How often to save, from what people write: ``"auto"``, ``500``, ``"500 steps"``, ``"10m"``, None (never).

    Raises:
        ValueError: it is none of these; the message says what was expected.
    """
    if isinstance(value, SaveInterval):
        return value
    if value is None:
        return SaveInterval(CadenceKind.NEVER)
    if isinstance(value, str):
        return _parse_text(value)
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        hint = ' (a plain number is a number of steps; 90 seconds are "90s")' if type(value) is float else ""
        # One error for every wrong value: whoever reads a setting catches ValueError.
        raise ValueError(f"every={value!r:.60} says neither steps nor a time{hint}: {_EXPECTED}")  # noqa: TRY004
    return _count_steps(operator.index(value), value)


def _parse_text(text: str) -> SaveInterval:
    cleaned = text.strip().lower()
    if cleaned in ("auto", "never"):
        return SaveInterval(CadenceKind(cleaned))
    if (count := re.fullmatch(_COUNT, cleaned, re.ASCII)) is not None:
        return _count_steps(int(count[1][:20]), text)
    seconds, position = 0.0, 0
    pattern = re.compile(_PART, re.ASCII)
    while (part := pattern.match(cleaned, position)) is not None and part[2] in _UNITS_S:
        seconds += float(part[1]) * _UNITS_S[part[2]]
        position = part.end()
    if not cleaned or position != len(cleaned):
        raise ValueError(f"every={text[:60]!r} says neither steps nor a time: {_EXPECTED}")
    if not 0 < seconds <= LONGEST_TIME_S:
        raise ValueError(f"every={text[:60]!r} is out of range: a time above 0 and up to 10 years, or None for never")
    return SaveInterval(CadenceKind.TIME, seconds)


def _count_steps(count: int, given: object) -> SaveInterval:
    if not 1 <= count <= 1 << 53:
        raise ValueError(f"every={given!r:.60} is out of range: save after 1 step or more, or None for never")
    return SaveInterval(CadenceKind.STEPS, float(count))


class Cadence:
    """Decides at each step boundary whether it is time to save.

    It is told when the training begins (`begin`), when a save begins (`saving`), and how that ended (`note_save`,
    `note_failure`). While a save is in flight none is due by time: the next one is late rather than a second pause. A
    count of steps is kept to: whoever asks for every 500 steps finds those.

    Times are cut to a step boundary: a save is due when the boundary after this one would be past the interval, so 402
    steps of 2 s for 804.98 s. Counts are multiples of the count: every 500 steps means 500, 1000, 1500, also after a
    resume from 730.
    """

    def __init__(
        self, every: SaveInterval, *, interruption_s: float = DEFAULT_INTERRUPTION_S, workers: int = 1
    ) -> None:
        # Wrong values are refused here, not in the middle of a training.
        young_interval_s(1.0, interruption_s, workers)
        self.every, self.interruption_s, self.workers = every, interruption_s, workers
        self._step, self._at = 0, -math.inf
        self._step_s = 0.0
        self._in_flight = False
        self._failures = 0
        self._durable: list[float] = []
        self._paused: list[float] = []

    def begin(self, step: int, now: float) -> None:
        """The training starts, or goes on, after `step` steps: intervals count from here."""
        self._step, self._at, self._in_flight = step, now, False

    def saving(self, step: int, now: float) -> None:
        """A save of the state after `step` steps begins; none is due until its end is noted."""
        self._step, self._at, self._in_flight = step, now, True

    def note_save(self, durable_s: float, paused_s: float) -> None:
        """A save is durable: seconds from its start until then, and seconds for which the loop stood still.

        A time that an earlier attempt measured may be noted too, before the first save.
        """
        self._in_flight, self._failures = False, 0
        for measures, value in ((self._durable, durable_s), (self._paused, paused_s)):
            if 0 <= value < math.inf:
                measures.append(value)
                del measures[:-KEPT_MEASURES]

    def note_failure(self) -> None:
        """A save has failed: the next one comes after a minute, then two, ..., at most after the usual interval."""
        self._in_flight = False
        self._failures += 1

    def due(self, step: int, now: float, step_s: float) -> bool:
        """Whether to save at this boundary, `step` steps done, `step_s` the typical seconds of a step (0: unknown)."""
        if 0 < step_s < math.inf:
            self._step_s = step_s
        if step <= self._step or self.every.kind is CadenceKind.NEVER:
            return False
        if self.every.kind is CadenceKind.STEPS:
            count = int(self.every.amount)
            return step // count > self._step // count
        if self._in_flight:
            return False
        return now - self._at + self._step_s > self._wait_s()

    @property
    def next_step(self) -> float:
        """The step after which a save is due by the count of steps; infinity where steps are not counted."""
        if self.every.kind is not CadenceKind.STEPS:
            return math.inf
        count = int(self.every.amount)
        return (self._step // count + 1) * count

    @property
    def interval_s(self) -> float | None:
        """Seconds between saves, as far as they are decided by time; None otherwise."""
        if self.every.kind is CadenceKind.TIME:
            return self.every.amount
        return self._auto_s() if self.every.kind is CadenceKind.AUTO else None

    def describe(self) -> str:
        """In words, for people: ``every 402 steps (about 13 m 25 s): sqrt(2 x 3 h x 30 s)``."""
        if self.every.kind is CadenceKind.NEVER:
            return "only at the end and when asked"
        if self.every.kind is CadenceKind.STEPS:
            return "every step" if self.every.amount == 1 else f"every {int(self.every.amount)} steps"
        interval_s = self._auto_s() if self.every.kind is CadenceKind.AUTO else self.every.amount
        about = f"about every {_say(interval_s)}"
        if self._step_s > 0:
            steps = steps_per_interval(interval_s, self._step_s)
            about = f"{'every step' if steps == 1 else f'every {steps} steps'} (about {_say(interval_s)})"
        return about if self.every.kind is CadenceKind.TIME else f"{about}: {self._explain()}"

    def _wait_s(self) -> float:
        interval_s = self.interval_s
        assert interval_s is not None, "only asked where time decides"
        if self._failures:
            # The last valid state grows old: sooner than usual, but a full disk is not tried at every step.
            return min(interval_s, FIRST_SAVE_S * float(1 << min(self._failures - 1, 10)))
        return interval_s

    def _auto_s(self) -> float:
        if not self._durable:
            return FIRST_SAVE_S
        save_s = _median(self._durable)
        wanted_s = young_interval_s(save_s, self.interruption_s, self.workers) if save_s > 0 else LEAST_INTERVAL_S
        return max(min(wanted_s, LONGEST_INTERVAL_S), self._least_s())

    def _least_s(self) -> float:
        return max(PAUSE_FACTOR * _median(self._paused or [0.0]), _median(self._durable), LEAST_INTERVAL_S)

    def _explain(self) -> str:
        if not self._durable:
            return "the first save, to measure how long one takes"
        by = f" / {self.workers}" if self.workers > 1 else ""
        save_s = _median(self._durable)
        formula = f"sqrt(2 x {_say(self.interruption_s)}{by} x {_say(save_s)})"
        if self._auto_s() == self._least_s():
            return f"{formula}, but no more often than {PAUSE_FACTOR} x the pause and the time that a save takes"
        return f"{formula}, but at least once an hour" if self._auto_s() == LONGEST_INTERVAL_S else formula


def _median(values: list[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2]


def _say(seconds: float) -> str:
    """A time in at most two units: ``0.03 s``, ``30 s``, ``13 m 25 s``, ``3 h``, ``2 h 05 m``."""
    if seconds < 10:
        return f"{seconds:.2g} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    large, small, names = (whole // 60, whole % 60, "ms") if whole < 3600 else (whole // 3600, whole % 3600 // 60, "hm")
    return f"{large} {names[0]} {small:02d} {names[1]}" if small else f"{large} {names[0]}"
