"""How far the training is, for whoever looks from outside: ``heartbeat.json`` and ``metrics.jsonl`` (LIB-07).

`step` and `log` are called in every step, so they only remember; about once a second one of them also writes. What is
written costs at most about a hundredth of the time: after a write that took long the next one comes later. Nothing here
ends a training: a file that cannot be written is one warning and is tried again, less and less often.

Everything happens in the caller's thread. A second thread would keep a stopped network mount from stopping the loop,
but the same mount holds the job's output and its checkpoints, so the loop would stop there; and a thread that takes the
interpreter's lock costs every step. Files that would make a writer wait (a FIFO, a device) are refused instead.

The number of a tensor on a device is only known when the device has caught up. `log` keeps a copy of it, queued behind
the work that makes it, and reads all of them at the next write: one wait in a second, not one in each step. A tensor in
the computer's own memory is read at once, because the script may change it in place.
"""

from __future__ import annotations

import json
import os
import stat
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.host.files import files
from holdfast.model.record import record

from .scalars import FOREIGN_ERRORS, REFUSED, Value, is_on_device, read_together, to_plain

EVERY_S = 1.0
SPARE = 100
"""A second in which nothing is written pays for 1/`SPARE` of a second of writing: 1 % of the time."""
MOST_CREDIT_S = 0.1
LONGEST_PAUSE_S = 60.0
FIRST_RETRY_S = 5.0
MOST_ROWS = 10_000
"""Rows kept while the file takes none; beyond it the oldest go, and the heartbeat says how many."""
LONGEST_NAME = 100
OWN_NAMES = frozenset({"step", "epoch", "time"})
_encode = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode


@record
class NonFiniteValue:
    """Where a logged value was NaN or infinite; `step` is None when it was logged before the first step."""

    step: int | None
    name: str


def write_stderr(message: str) -> None:
    """One line on standard error; a closed one is no reason to end a training."""
    try:
        sys.stderr.write(f"holdfast: {message}\n")
    except (OSError, ValueError, AttributeError):
        return


class _Sink:
    """One file and its troubles: after a failure it is left alone for a while, longer each time."""

    def __init__(self, path: str | None, what: str, warn: Callable[[str], None]) -> None:
        self.path, self._what, self._warn = path, what, warn
        self._failed = False
        self._pause_s = 0.0
        self._retry_at = float("-inf")

    def write(self, put: Callable[[str], None], now: float, *, force: bool = False) -> bool:
        """Whether `put` wrote the file. False also when there is none, or when it is not time to try again."""
        if self.path is None or (now < self._retry_at and not force):
            return False
        try:
            put(self.path)
        except (OSError, ValueError) as error:
            self._pause_s = min(max(2 * self._pause_s, FIRST_RETRY_S), LONGEST_PAUSE_S)
            self._retry_at = now + self._pause_s
            if not self._failed:
                self._failed = True
                self._warn(
                    f"the {self._what} {self.path} cannot be written: {error}. Training goes on; it is tried again now "
                    "and then. Free space there, or make the directory writable"
                )
            return False
        self._pause_s, self._retry_at = 0.0, float("-inf")
        return True


class Heartbeat:
    """Remembers the last step and values, and writes them about every `every_s` seconds.

    Attributes:
        nonfinite: How many logged values were NaN or infinite so far, among those that have been read.
        first_nonfinite: The one of the lowest step; None as long as there was none.
        last_nonfinite: The one of the highest step; None as long as there was none.
        last: The last value of each name that was read; may be NaN.
    """

    def __init__(
        self,
        path: str | None,
        metrics_path: str | None,
        *,
        every_s: float = EVERY_S,
        clock: Callable[[], float] = time.monotonic,
        warn: Callable[[str], None] = write_stderr,
    ) -> None:
        self._beats = _Sink(path, "heartbeat", warn)
        self._metrics = _Sink(metrics_path, "metrics file", warn)
        self._every_s, self._clock, self._warn = every_s, clock, warn
        self._step: int | None = None
        self._epoch: int | None = None
        self._phase: str | None = None
        self._facts: dict[str, Value] = {}
        self._rows: list[tuple[int | None, int | None, float, dict[str, Value]]] = []
        self._waiting: list[tuple[int | None, str, Any, dict[str, Value]]] = []
        self._dropped = 0
        self._refused: set[str] = set()
        self._window: tuple[int, float] | None = None
        self._rate: float | None = None
        self._due = self._earliest = self._spent_at = clock()
        self._credit_s = MOST_CREDIT_S
        self._closed = False
        self.nonfinite = 0
        self.first_nonfinite: NonFiniteValue | None = None
        self.last_nonfinite: NonFiniteValue | None = None
        self.last: dict[str, Value] = {}

    def step(self, step: int, epoch: int | None = None) -> None:
        """Note where the training is; writes when it is time."""
        self._step = step
        if epoch is not None:
            self._epoch = epoch
        if self._clock() >= self._due:
            self._write()

    def log(self, values: Mapping[str, object]) -> None:
        """Keep the values of this step for the next write.

        Numbers, booleans, short text, and arrays of one element (numpy, torch, jax). Anything else is left out, with
        one warning for each name.
        """
        row: dict[str, Value] = {}
        for name, value in values.items():
            if type(value) is float:
                row[name] = self.last[name] = value
                # The difference of a number and itself is 0, but NaN for NaN and for the infinities.
                if value - value != 0.0:
                    self._note_nonfinite(self._step, name)
            else:
                self._take(name, value, row)
        self._rows.append((self._step, self._epoch, time.time(), row))
        if len(self._rows) > MOST_ROWS:
            if not self._closed:
                self._write()
            self._shed()

    def phase(self, name: str) -> None:
        """Say what the training does (``train``, ``eval``, ``save``): written at once, without waiting for a device.

        A script that changes its phase all the time has it written less often, within the same hundredth.
        """
        if name == self._phase or self._closed:
            return
        self._phase = name[:LONGEST_NAME]
        begun = self._clock()
        if begun < self._earliest:
            self._due = min(self._due, self._earliest)
            return
        self._beats.write(self._put_beat, begun)
        self._spend(begun)

    def note(self, **facts: object) -> None:
        """Add facts to the heartbeat (``save_seconds``, ``last_durable_step``); written with the next step."""
        for name, value in facts.items():
            plain = to_plain(value)
            if plain is REFUSED:
                self._refuse(name, value)
            else:
                self._facts[name] = plain  # type: ignore[assignment]  # not REFUSED, so a value
        if not self._closed:
            self._due = min(self._due, self._earliest)

    def catch_up(self) -> None:
        """Write everything now where the time without writes pays for it, else as soon as it does."""
        if self._closed:
            return
        if self._clock() >= self._earliest:
            self._write()
        else:
            self._due = min(self._due, self._earliest)

    def check_finite(self) -> NonFiniteValue | None:
        """Read every value that still waits for its device; the first one that was not finite, None if all were.

        A value that could not be read has been reported and counts as neither.
        """
        self._settle()
        return self.first_nonfinite

    def flush(self) -> None:
        """Write everything now, also to a file that has just failed."""
        if not self._closed:
            self._write(force=True)

    def close(self) -> None:
        """Write everything; later calls remember, but write nothing."""
        self.flush()
        self._closed = True
        self._due = float("inf")

    # ------------------------------------------------------------------------------------------------ values

    def _take(self, name: str, value: object, row: dict[str, Value]) -> None:
        """Put a value that is no plain float into the row, or into the queue of those that wait for their device."""
        if is_on_device(value):
            try:
                kept = value.detach().clone() if hasattr(value, "detach") else value
            except FOREIGN_ERRORS:
                self._refuse(name, value)
                return
            row[name] = None
            self._waiting.append((self._step, name, kept, row))
            return
        plain = to_plain(value)
        if plain is REFUSED:
            self._refuse(name, value)
        else:
            self._see(self._step, name, plain, row)

    def _see(self, step: int | None, name: str, plain: object, row: dict[str, Value]) -> None:
        row[name] = self.last[name] = plain  # type: ignore[assignment]  # what to_plain gave
        if type(plain) is float and plain - plain != 0.0:
            self._note_nonfinite(step, name)

    def _note_nonfinite(self, step: int | None, name: str) -> None:
        self.nonfinite += 1
        found = NonFiniteValue(step, name)
        first, last = self.first_nonfinite, self.last_nonfinite
        if first is None or (step or 0) < (first.step or 0):
            self.first_nonfinite = found
        if last is None or (step or 0) >= (last.step or 0):
            self.last_nonfinite = found

    def _refuse(self, name: str, value: object) -> None:
        if name not in self._refused and len(self._refused) < MOST_ROWS:
            self._refused.add(name)
            shape = f" of shape {tuple(value.shape)}" if hasattr(value, "shape") else ""
            self._warn(
                f"{name!r} is left out of the metrics: {type(value).__name__}{shape} could not be read as one number, "
                "a boolean or a short text"
            )

    def _settle(self) -> None:
        """Read what waits for its device: one transfer for each device and type."""
        waiting, self._waiting = self._waiting, []
        groups: dict[tuple[object, ...], list[tuple[int | None, str, Any, dict[str, Value]]]] = {}
        for entry in waiting:
            kept = entry[2]
            groups.setdefault(
                (type(kept), str(getattr(kept, "device", "")), str(getattr(kept, "dtype", ""))), []
            ).append(entry)
        for group in groups.values():
            for (step, name, kept, row), plain in zip(group, read_together([e[2] for e in group]), strict=True):
                if plain is REFUSED:
                    self._refuse(name, kept)
                else:
                    self._see(step, name, plain, row)

    # ----------------------------------------------------------------------------------------------- writing

    def _write(self, *, force: bool = False) -> None:
        self._settle()
        begun = self._clock()
        self._measure_rate(begun)
        self._beats.write(self._put_beat, begun, force=force)
        if self._metrics.path is None or self._metrics.write(self._put_rows, begun, force=force):
            self._rows.clear()
        ended = self._spend(begun)
        self._due = max(ended + self._every_s, self._earliest)

    def _spend(self, begun: float) -> float:
        """Pay for a write that has just ended out of the time without writes; answers the time now."""
        ended = self._clock()
        earned = self._credit_s + (begun - self._spent_at) / SPARE
        self._credit_s = min(earned, MOST_CREDIT_S) - (ended - begun)
        self._spent_at = ended
        self._earliest = ended + min(max(-self._credit_s * SPARE, 0.0), LONGEST_PAUSE_S)
        return ended

    def _measure_rate(self, now: float) -> None:
        if self._step is None:
            return
        before, self._window = self._window, (self._step, now)
        if before is None or before[0] > self._step:
            self._rate = None
        elif now - before[1] > self._every_s / 2:
            # A flush right after a write says nothing about the pace.
            self._rate = round((self._step - before[0]) / (now - before[1]), 4)
        else:
            self._window = before

    def _put_beat(self, path: str) -> None:
        _refuse_special(path, replaced=True)
        record: dict[str, object] = {"schema": 1, "step": self._step, "epoch": self._epoch, "phase": self._phase}
        if "loss" in self.last:
            record["loss"] = self.last["loss"]
        record.update(time=round(time.time(), 3), steps_per_s=self._rate, nonfinite=self.nonfinite)
        if self._dropped:
            record["metrics_dropped"] = self._dropped
        record.update(self._facts)
        # NaN stays NaN, as Python's JSON writes it: readers of the heartbeat know it, and a loss may be one.
        files.commit(path, json.dumps(record).encode() + b"\n", durable=False)

    def _put_rows(self, path: str) -> None:
        if not self._rows:
            return
        _refuse_special(path)
        files.append(path, "".join(map(_encode_row, self._rows)).encode())

    def _shed(self) -> None:
        """Bound what is kept while the metrics file takes nothing."""
        surplus = len(self._rows) - MOST_ROWS // 2
        if surplus > 0:
            del self._rows[:surplus]
            self._dropped += surplus


def _encode_row(entry: tuple[int | None, int | None, float, dict[str, Value]]) -> str:
    """One line of strict JSON; NaN and the infinities become the texts ``nan``, ``inf`` and ``-inf``."""
    step, epoch, at, values = entry
    row: dict[str, object] = {"step": step, "epoch": epoch, "time": round(at, 3)}
    for name, value in values.items():
        # Where the training is, is said by `step`; a script's own value of that name keeps a name of its own.
        row[f"logged_{name}" if name in OWN_NAMES else str(name)[:LONGEST_NAME]] = value
    try:
        return _encode(row) + "\n"
    except ValueError:
        finite = {k: str(v) if isinstance(v, float) and v - v != 0.0 else v for k, v in row.items()}
        return _encode(finite) + "\n"


def _refuse_special(path: str, *, replaced: bool = False) -> None:
    """Refuse what would make a writer wait, such as a FIFO that nobody reads.

    A file that is `replaced` is never opened: of what is in the way, only a device must stay.

    Raises:
        OSError: `path` is there and is no regular file.
    """
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    device = stat.S_ISCHR(mode) or stat.S_ISBLK(mode)
    if device or not (replaced or stat.S_ISREG(mode)):
        raise OSError("it is not a regular file")
