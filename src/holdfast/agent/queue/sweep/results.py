"""What the jobs of a sweep have come to, read from the files that they wrote.

Numbers come from three places: the end of the newest ``metrics.jsonl``, ``heartbeat.json`` of the newest attempt, and
the JSON results (declared artifacts, ``artifacts/metrics.json``). Everything here is read from files that jobs write,
so it is bounded, and what cannot be read is named.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from holdfast.agent.queue.arrays.choose import choose_sweep
from holdfast.agent.queue.arrays.look import look_at_jobs, require_sweep
from holdfast.agent.queue.open import look_at_queue, require_group
from holdfast.agent.view.live.metrics import read_last_values
from holdfast.core.control_characters import clean
from holdfast.core.queue.results import REMOVED, ResultRow
from holdfast.host.files import files
from holdfast.model import wire
from holdfast.model.queue import CLOSED_STATES, JobState
from holdfast.model.record import record

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from holdfast.model.queue import QueuedJob
    from holdfast.store.queue.queue import Queue

MAX_METRICS_BYTES = 1 << 20
MOST_NUMBERS = 200
MOST_DEPTH = 4
MOST_ATTEMPTS = 100
LONGEST_NAME = 100
METRICS = "artifacts/metrics.json"
_NOT_METRICS = frozenset(
    {"schema", "time", "save_seconds", "last_durable_step", "dropped", "pid", "nonfinite", "seed", "start_step"}
)


@record
class Rows:
    """The jobs of a sweep, with their numbers."""

    group: str
    rows: Sequence[ResultRow]


def read_rows(name: str) -> Rows:
    """The jobs of a sweep.

    Raises:
        UsageError: there is no group of this name.
    """
    sweep = choose_sweep(name)
    if sweep is not None:
        content = require_sweep(sweep)
        return Rows(content.name, collect_rows(look.job for look in look_at_jobs(sweep, content)))
    with look_at_queue() as queue:
        group = require_group(queue, name).name
        return Rows(group, collect_results(queue, group))


def collect_results(queue: Queue, group: str) -> list[ResultRow]:
    """Every job of a group in the order in which it was handed in."""
    return collect_rows(sorted(queue.jobs(group=group), key=lambda job: job.id))


def collect_rows(jobs: Iterable[QueuedJob]) -> list[ResultRow]:
    """The row of each of these jobs."""
    declared: dict[str, tuple[str, ...]] = {}
    rows = []
    for job in jobs:
        if job.run_dir is None:
            rows.append(ResultRow(job))
            continue
        if job.state in CLOSED_STATES and not os.path.isdir(job.run_dir):
            rows.append(ResultRow(job, problems=(f"{job.run_dir}: {REMOVED}",), removed=True))
            continue
        rows.append(read_row(job, job.run_dir, _list_artifacts(job.run_dir, declared)))
    return rows


def _list_artifacts(run_dir: str, known: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    """The JSON files that may hold numbers: those declared, and the usual one."""
    if run_dir not in known:
        try:
            record = wire.parse_object(files.read_bytes(f"{run_dir}/{wire.RUN}"), wire.RUN)
            names = record.get("job", {}).get("artifacts") or []
        except (OSError, wire.WireError, AttributeError):
            names = []
        found = [str(name) for name in names if str(name).endswith(".json") and ".." not in str(name).split("/")]
        known[run_dir] = tuple(dict.fromkeys([*(name for name in found if not os.path.isabs(name)), METRICS]))
    return known[run_dir]


def read_row(job: QueuedJob, run_dir: str, artifacts: Iterable[str]) -> ResultRow:
    """The numbers of one run; results stand over what its heartbeat says, and that over what was last logged."""
    problems: list[str] = []
    attempt = _find_attempt(run_dir)
    beat = _read(f"{wire.attempt_dir(run_dir, attempt)}/{wire.HEARTBEAT}", problems) if attempt else {}
    told = {name: value for name, value in _numbers(wire.clean_heartbeat(beat)).items() if name not in _NOT_METRICS}
    metrics = {**told, **_read_logged(run_dir, attempt, problems), **told}
    for name in artifacts:
        metrics.update(_numbers(_read(f"{run_dir}/{name}", problems)))
    return ResultRow(
        job, metrics, final=job.state is JobState.DONE, problems=tuple(problems), seconds=_add_up(run_dir, attempt)
    )


def _read_logged(run_dir: str, newest: int, problems: list[str]) -> dict[str, float]:
    """What was logged last, in the newest attempt that has logged anything."""
    for attempt in range(newest, max(0, newest - MOST_ATTEMPTS), -1):
        path = f"{wire.attempt_dir(run_dir, attempt)}/{wire.METRICS}"
        try:
            values = read_last_values(path)
        except OSError as error:
            problems.append(f"{path}: {error}")
            continue
        if values:
            values.pop("time", None)
            return _numbers(values)
    return {}


def _add_up(run_dir: str, newest: int) -> float | None:
    """How long the run's job ran in the attempts that have ended, by their exit records; None when none tells."""
    found = []
    for attempt in range(max(1, newest - MOST_ATTEMPTS + 1), newest + 1):
        took = wire.as_number(_read(f"{wire.attempt_dir(run_dir, attempt)}/{wire.EXIT}", []).get("duration_s"))
        found += [] if took is None else [took]
    return round(sum(found), 3) if found else None


def _find_attempt(run_dir: str) -> int:
    try:
        names = os.listdir(f"{run_dir}/{wire.ATTEMPTS}")
    except OSError:
        return 0
    return max((int(name) for name in names if name.isascii() and name.isdigit()), default=0)


def _read(path: str, problems: list[str]) -> dict[str, Any]:
    """A JSON object that a job wrote; absent is empty, unreadable is said."""
    try:
        return wire.parse_object(files.read_bytes(path, limit=MAX_METRICS_BYTES), path)
    except FileNotFoundError:
        return {}
    except (OSError, wire.WireError) as error:
        problems.append(f"{path}: {error}")
        return {}


def _numbers(values: dict[str, Any], prefix: str = "", depth: int = 1) -> dict[str, float]:
    """Dotted names to the numbers in a JSON object; truth values are none."""
    found: dict[str, float] = {}
    for key, value in values.items():
        if len(found) >= MOST_NUMBERS:
            break
        name = clean(f"{prefix}{key}"[:LONGEST_NAME])
        if isinstance(value, dict) and depth < MOST_DEPTH:
            found.update(_numbers(value, f"{name}.", depth + 1))
        elif isinstance(value, float) or (
            isinstance(value, int) and not isinstance(value, bool) and abs(value) < wire.LARGEST_HEARTBEAT_NUMBER
        ):
            found[name] = value
    return found
