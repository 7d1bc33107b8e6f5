"""What the training library inside the job is told beyond the job file: its place, how often runs end.

Loaded to start only. Nothing here keeps a job from running: a library that cannot be offered is a warning event.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from holdfast.core.job.interruptions import PRIOR_S, mean_time_between
from holdfast.host.clock import parse_utc
from holdfast.host.files import files
from holdfast.host.formats.bundle import find_library as find_bundle
from holdfast.model import wire
from holdfast.model.finding import Finding, Level
from holdfast.model.run import Outcome

if TYPE_CHECKING:
    from holdfast.agent.supervise.context import SupervisorContext
    from holdfast.core.run.events import RunPlan

INTERRUPTED = (Outcome.PREEMPTED.value, Outcome.LOST.value)
MOST_OBSERVED = 50
"""So many earlier attempts are looked at, the newest: older ones say little about this box today."""
SIGNS_OF_LIFE = (wire.HEARTBEAT, wire.HEALTH, wire.OUTPUT)
"""Written while the job lives and not when its end is noticed."""


def find_deadline(plan: RunPlan, now_epoch_s: float, *, holds_cards: bool) -> float | None:
    """When (epoch seconds) a job that starts now will be asked to stop; None without a limit.

    The attempt's limit began when it was created: the time in line for cards has been used up already.
    """
    limits = [
        None if plan.run_s is None else now_epoch_s + plan.run_s,
        None if plan.total_s is None else plan.created_epoch_s + plan.total_s,
        now_epoch_s + plan.max_hold_s if holds_cards and plan.max_hold_s is not None else None,
    ]
    return min((limit for limit in limits if limit is not None), default=None)


def find_library(context: SupervisorContext) -> str | None:
    """The directory for the job's ``PYTHONPATH``, looked for once; None, with an event, when none can be had."""
    if not context.library_sought:
        context.library_sought = True
        try:
            context.library = find_bundle(context.environ)
        except OSError as error:
            seen = f"holdfast.training cannot be offered to the job: {error.filename or 'cache'}: {error.strerror}"
            remedy = "make the cache directory writable (XDG_CACHE_HOME), or install holdfast in the job's environment"
            context.recorder.event("environment", finding=Finding("library", Level.WARN, "PYTHONPATH", seen, remedy))
    return context.library


def find_interruption_time(context: SupervisorContext) -> float | None:
    """Mean seconds between interruptions: what the job states, else what the profile of the place says of it.

    The profile's is corrected by what was observed in this run's earlier attempts; without one that alone counts.
    """
    stated = context.spec.checkpoints.interruptions_s
    of_place = None if context.profile is None else context.profile.interruptions_s
    if stated is not None or context.attempt == 1:
        return of_place if stated is None else stated
    first = max(1, context.attempt - MOST_OBSERVED)
    times = [read_running_time(context.run_dir, attempt) for attempt in range(first, context.attempt)]
    seen = mean_time_between((time for time in times if time is not None), prior_s=of_place or PRIOR_S)
    return of_place if seen is None else seen


def read_running_time(run_dir: str, attempt: int) -> float | None:
    """How long the job of an attempt ran until it was interrupted; None when it was not, or when that is not known.

    Of a lost one nobody saw the end, and it may have been noticed days later: it lived until its last sign of life.
    """
    directory = wire.attempt_dir(run_dir, attempt)
    try:
        record = wire.parse_object(files.read_bytes(f"{directory}/{wire.EXIT}"), wire.EXIT)
    except (OSError, wire.WireError):
        return None
    if record.get("outcome") not in INTERRUPTED or not isinstance(record.get("started_at"), str):
        return None
    if record["outcome"] == Outcome.LOST.value:
        return _measure_until_last_sign(directory, record)
    duration = record.get("duration_s")
    return float(duration) if isinstance(duration, (int, float)) and duration >= 0 else None


def _measure_until_last_sign(directory: str, record: dict[str, Any]) -> float | None:
    try:
        started = parse_utc(record["started_at"])
    except (ValueError, IndexError):
        return None
    signs = []
    for name in SIGNS_OF_LIFE:
        try:
            signs.append(os.stat(f"{directory}/{name}", follow_symlinks=False).st_mtime)
        except OSError:
            continue
    return max(0.0, max(signs) - started) if signs else None
