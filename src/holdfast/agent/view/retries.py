"""Tells from files whether a failed attempt is followed by an automatic one.

Reads ``retry.json``; decides nothing (`agent.supervise.end.retry` does).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from holdfast.host.files import fallback, files
from holdfast.model import wire
from holdfast.model.job import Retries
from holdfast.model.requeue import Requeue
from holdfast.model.run import Outcome
from holdfast.model.units import format_duration
from holdfast.model.verdict import NOT_REPEATED, RetryPolicy, Verdict

if TYPE_CHECKING:
    from holdfast.agent.view.run_view import RunView


def count_automatic(run_dir: str, attempt: int) -> int:
    """How many attempts directly before this one, this one included, were begun without a person."""
    used = 0
    for earlier in range(attempt - 1, 0, -1):
        if not read_retry(run_dir, earlier).get("retry"):
            break
        used += 1
    return used


def read_retry(run_dir: str, attempt: int) -> dict[str, Any]:
    """What was decided after an attempt; empty when nothing was, or when it cannot be read."""
    path = f"{wire.attempt_dir(run_dir, attempt)}/{wire.RETRY}"
    try:
        return wire.parse_object(fallback.read(os.path.basename(run_dir), attempt, path), path)
    except (OSError, wire.WireError):
        return {}


def read_objection(view: RunView, verdict: Verdict | None) -> str | None:
    """Why no attempt followed by itself, where one may after an end of this class or the job asked for several.

    None where nothing was decided, and nothing was asked for.
    """
    if verdict is None:
        return None
    if verdict.retry is RetryPolicy.NEVER:
        failed = view.end is not None and view.end.outcome in (Outcome.FAILED, Outcome.TIMED_OUT)
        return f"{verdict.kind.value} {NOT_REPEATED}" if failed and _asks_for_several(view.spec) else None
    decided = read_retry(view.run_dir, view.attempt)
    return decided.get("why") if decided.get("retry") is False else None


def _asks_for_several(spec: Mapping[str, Any]) -> bool:
    """Whether a job allows more attempts than every job does that says nothing of them."""
    told = spec.get("retries")
    return isinstance(told, dict) and (wire.as_whole(told.get("max")) or 0) > Retries().max


def is_followed(run_dir: str, attempt: int) -> bool:
    """Whether an attempt that nobody asked for has begun after this one.

    It begins before the exit record of this one is written, so that of an attempt that is over no other answer comes.
    """
    wanted = bool(read_retry(run_dir, attempt).get("retry"))
    return wanted and os.path.exists(f"{wire.attempt_dir(run_dir, attempt + 1)}/{wire.STATE}")


def read_wait_s(run_dir: str, attempt: int) -> float:
    """How long this attempt waits before its checks: what the attempt before it decided; 0 without that."""
    return wire.as_number(read_retry(run_dir, attempt - 1).get("wait_s")) or 0.0


def describe_follower(run_dir: str, attempt: int) -> str:
    """That an attempt that nobody asked for follows this one, after how long and why; empty where none does."""
    if not is_followed(run_dir, attempt):
        return ""
    decided, wait_s = read_retry(run_dir, attempt), read_wait_s(run_dir, attempt + 1)
    pause = f" after a pause of {format_duration(wait_s)}" if wait_s else ""
    return f"attempt {attempt + 1} begins by itself{pause}: this one ended as {decided.get('class')}"


def read_requeue(run_dir: str, attempt: int) -> Requeue | None:
    """What the queue decided after an attempt; None when it decided nothing, or it cannot be read."""
    path = f"{wire.attempt_dir(run_dir, attempt)}/{wire.REQUEUE}"
    try:
        return wire.decode(Requeue, wire.parse_object(files.read_bytes(path), path))
    except (OSError, wire.WireError):
        return None


def read_reached_step(run_dir: str, attempt: int) -> int | None:
    """How far an attempt got, for another one to go on from: its newest durable step, else its last step."""
    directory = wire.attempt_dir(run_dir, attempt)
    beat = wire.clean_heartbeat(read_or_empty(f"{directory}/{wire.HEARTBEAT}"))
    stop = read_or_empty(f"{directory}/{wire.EXIT}").get("stop")
    told = [beat.get("last_durable_step"), stop.get("checkpoint_step") if isinstance(stop, dict) else None]
    durable = [step for step in told if isinstance(step, int) and not isinstance(step, bool)]
    step = max(durable) if durable else beat.get("step")
    return step if isinstance(step, int) and not isinstance(step, bool) else None


def read_or_empty(path: str) -> dict[str, Any]:
    """The object in a file of JSON; empty where it cannot be read."""
    try:
        return wire.parse_object(files.read_bytes(path), path)
    except (OSError, wire.WireError):
        return {}
