"""Observes one attempt of a drill while it runs, and reads its files afterwards. Reads only.

Three sources, each on its own: the heartbeat (where it is), ``metrics.jsonl`` (what it logged, complete but for the
last second before a KILL), and the directory of checkpoints, looked into often enough to see checkpoints that the run
itself removes again soon.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from holdfast.core.drill.drill import AttemptEnd, AttemptTrail
from holdfast.host import clock
from holdfast.host.files import files
from holdfast.model import step_names, wire
from holdfast.training.storage import checksums, layout, survey

if TYPE_CHECKING:
    from holdfast.agent.view.run_view import RunView

OWN_FIELDS = frozenset({"step", "time"})
MOST_FILES = 100_000
LONGEST_WORDS = 300


class AttemptWatch:
    """The evidence of one attempt.

    Attributes:
        first, last: Steps of the first and the highest heartbeat seen; None before one.
        began_s: When the first heartbeat was seen, monotonic seconds.
        saved: Checkpoints that appeared: (seconds since `began_s`, step).
        beats: Heartbeats: (seconds since `began_s`, step).
    """

    def __init__(self, run_dir: str, attempt: int) -> None:
        """Begin; what is already there is no news of this attempt."""
        self.attempt = attempt
        self.first: int | None = None
        self.last: int | None = None
        self.began_s: float | None = None
        self.saved: list[tuple[float, int]] = []
        self.beats: list[tuple[float, int]] = []
        self.by_library = False
        self._run_dir, self._where = run_dir, f"{run_dir}/{wire.CHECKPOINTS}"
        self._losses: dict[int, dict[str, Any]] = {}
        self._prints: dict[int, dict[str, str]] = {}
        self._known = {(place, step) for place, step in list_steps(self._where)}
        self.durable = max((step for _, step in self._known), default=None)
        self.files = count_files(self._where)
        self._started_s = clock.monotonic_s()

    def look(self, view: RunView) -> None:
        """Take in one look at the run."""
        now = clock.monotonic_s()
        step = wire.as_whole(view.heartbeat.get("step"))
        if step is not None:
            if self.began_s is None:
                self.first, self.began_s = step, now
            if self.last is None or step > self.last:
                self.last = step
                self.beats.append((now - self.began_s, step))
            if "loss" in view.heartbeat:
                self._losses[step] = {"loss": view.heartbeat["loss"]}
        self._look_for_checkpoints(now)

    def _look_for_checkpoints(self, now: float) -> None:
        for place, step in list_steps(self._where):
            if (place, step) in self._known:
                continue
            self._known.add((place, step))
            self.saved.append((now - (self.began_s or self._started_s), step))
            try:
                parts = checksums.digest_parts(survey.survey_entry(f"{place}/{step_names.step_name(step)}"))
            except (OSError, layout.LayoutError):
                # Removed again meanwhile, or not the library's: then there is nothing to compare.
                continue
            inside = os.path.relpath(place, self._where)
            named = parts if inside == "." else {f"{inside}/{name}": value for name, value in parts.items()}
            self._prints.setdefault(step, {}).update(named)

    def has_rows(self) -> bool:
        """Whether values that were logged have reached the file."""
        try:
            return os.stat(self._metrics).st_size > 0
        except OSError:
            return False

    @property
    def _metrics(self) -> str:
        return f"{wire.attempt_dir(self._run_dir, self.attempt)}/{wire.METRICS}"

    def close(self, view: RunView, end: AttemptEnd, seconds: float) -> AttemptTrail:
        """What is known when it is over."""
        self.look(view)
        rows, self.timeline = read_rows(self._metrics)
        self.by_library = bool(rows)
        stop = view.exit.get("stop")
        code = view.status.get("code")
        steps = [step for step in (self.first, min(rows, default=None)) if step is not None]
        reached = [step for step in (self.last, max(rows, default=None), *self._prints) if step is not None]
        if not self.timeline:
            self.timeline = self.beats
        return AttemptTrail(
            attempt=self.attempt,
            end=end,
            first=min(steps, default=None),
            last=max(reached, default=None),
            durable=self.durable,
            files=self.files,
            rows=rows or self._losses,
            prints=self._prints,
            exit_code=code if isinstance(code, int) else view.exit_code,
            stop=stop if isinstance(stop, dict) else {},
            seconds=seconds,
            words=read_last_line(f"{view.attempt_dir}/{wire.OUTPUT}") if end is AttemptEnd.FAILED else "",
        )


def list_steps(directory: str) -> list[tuple[str, int]]:
    """The visible checkpoints of a directory and of the directories in it: (where, step)."""
    found = []
    try:
        with os.scandir(directory) as entries:
            inner = []
            for entry in entries:
                step = step_names.parse_step(entry.name)
                if step is not None:
                    found.append((directory, step))
                elif not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False):
                    inner.append(entry.path)
        for path in inner:
            found += [(path, step) for name in os.listdir(path) if (step := step_names.parse_step(name)) is not None]
    except OSError:
        return found
    return found


def count_files(directory: str) -> int:
    """How many files are below a directory, of whatever kind, but for the lock; at most `MOST_FILES` are counted."""
    count = 0
    for _, _, names in os.walk(directory):
        count += sum(name != layout.LOCK for name in names)
        if count > MOST_FILES:
            break
    return count


def read_rows(path: str) -> tuple[dict[int, dict[str, Any]], list[tuple[float, int]]]:
    """The logged values by step, and when each step was logged: (seconds since the first, step).

    A name that was logged twice in a step is kept twice, the second time with an apostrophe.
    """
    rows: dict[int, dict[str, Any]] = {}
    times: list[tuple[float, int]] = []
    try:
        lines = files.read_last_lines(path)
    except OSError:
        return {}, []
    for line in lines:
        try:
            values = wire.parse_object(line, wire.METRICS)
        except wire.WireError:
            continue
        step, at = wire.as_whole(values.get("step")), values.get("time")
        if step is None:
            continue
        row = rows.setdefault(step, {})
        for name, value in values.items():
            if name not in OWN_FIELDS and not (name == "epoch" and value is None):
                row[f"{name}'" if name in row and name != "epoch" else name] = value
        if isinstance(at, (int, float)):
            times.append((float(at), step))
    begin = times[0][0] if times else 0.0
    return rows, [(at - begin, step) for at, step in times]


def read_last_line(path: str) -> str:
    """The last line of a job's output that says something."""
    lines = files.read_tail(path, 8192).decode("utf-8", "replace").split("\n")
    return next((line.strip()[:LONGEST_WORDS] for line in reversed(lines) if line.strip()), "")
