"""After a failed attempt: prune, set a card aside, begin the next attempt; or say why not (FAIL-02, FAIL-03, FAIL-07).

Done by the supervisor that saw the end, as its last act, never by one that found a run vanished: what nobody saw is
not repeated. What is decided is on disk (``retry.json`` of the attempt that failed) before it is done, so that it is
done once, whoever comes after a crash.
"""

from __future__ import annotations

import os
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING, Any

from ..core.retrying import AUTOMATIC, Decision, Facts, Step, decide_retry
from ..host import files
from ..host.clock import utc_now
from ..model import wire
from ..model.finding import Level
from ..model.origin import RunOrigin
from ..model.run import Outcome

if TYPE_CHECKING:
    from ..model.run import Ended
    from ..model.verdict import Verdict
    from .context import Context

PRUNE_WITHIN_S = 30.0
LOOK_WITHIN_S = 10.0


def follow_up(context: Context, ended: Ended, verdict: Verdict) -> None:
    """Decide, record, act. Never raises for what goes wrong here: the attempt's own end is on record already."""
    from ..model.verdict import FailureClass

    if ended.outcome is not Outcome.FAILED or not isinstance(verdict.kind, FailureClass) or context.reason == "adopt":
        return
    if verdict.kind not in AUTOMATIC or os.path.exists(context.recorder.path(wire.RETRY)):
        return
    facts = Facts(
        kind=verdict.kind,
        confidence=verdict.confidence,
        used=count_automatic(context.run_dir, context.attempt),
        allowed=context.spec.retries.max,
        changed=find_change(context.run_dir),
        stop_wanted=context.recorder.read_desired() is not None,
        names_cards=bool(context.spec.gpus.devices),
    )
    decision = decide_retry(facts, context.spec.retries.wait_s)
    done: dict[str, Any] = {}
    if verdict.kind is FailureClass.HARDWARE:
        # Whether or not it runs again: nobody should be given this card next.
        done["set_aside"] = _set_aside(context, verdict)
    if decision.step is Step.PRUNE_FIRST:
        decision, done["pruned"] = _make_room(context, decision)
    _record(context, verdict, decision, done)
    if decision.step is Step.NOTHING:
        context.notify("alert", alert="not_retried", why=decision.why, action=verdict.action)
        return
    _begin(context, decision)


def _record(context: Context, verdict: Verdict, decision: Decision, done: dict[str, Any]) -> None:
    again = decision.step is not Step.NOTHING
    record = {
        "at": utc_now(),
        "class": verdict.kind,
        "retry": again,
        "why": decision.why,
        "wait_s": decision.wait_s if again else None,
        "job_sha256": _read_origin(context.run_dir).get("job_sha256"),
        **done,
    }
    context.recorder.commit(wire.RETRY, wire.to_bytes(record))
    context.recorder.event("retry" if again else "no_retry", **{"class": verdict.kind, "why": decision.why})


def _begin(context: Context, decision: Decision) -> None:
    from ..model.errors import HoldfastError
    from .create import next_attempt
    from .launch import start_supervisor

    try:
        attempt = next_attempt(context.run_dir, "retry")
        start_supervisor(context.run_dir, attempt, environ=context.environ, reason="retry")
    except HoldfastError as error:
        context.recorder.log(f"the next attempt could not be begun ({decision.why}): {error}")
        return
    context.recorder.event("next_attempt", attempt=attempt, wait_s=decision.wait_s)


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
        return wire.parse_object(files.read_bytes(path), path)
    except (OSError, wire.WireError):
        return {}


class Following(Enum):
    """Whether an ended attempt is followed by another one that nobody asked for."""

    NONE = "none"
    UNDECIDED = "undecided"
    BEGUN = "begun"


def find_following(run_dir: str, attempt: int) -> Following:
    """What comes after an attempt that has ended."""
    if os.path.exists(f"{wire.attempt_dir(run_dir, attempt + 1)}/{wire.STATE}"):
        return Following.BEGUN if read_retry(run_dir, attempt).get("retry") else Following.NONE
    return Following.UNDECIDED if is_undecided(run_dir, attempt) else Following.NONE


def is_undecided(run_dir: str, attempt: int) -> bool:
    """Whether the attempt failed in a way that may be followed by another one, and that was not decided yet."""
    directory = wire.attempt_dir(run_dir, attempt)
    if os.path.exists(f"{directory}/{wire.RETRY}"):
        return False
    try:
        kind = wire.parse_object(files.read_bytes(f"{directory}/{wire.EXIT}"), wire.EXIT).get("failure_class")
    except (OSError, wire.WireError):
        return False
    return kind in {known.value for known in AUTOMATIC}


def read_wait_s(run_dir: str, attempt: int) -> float:
    """How long this attempt waits before its checks: what the attempt before it decided; 0 without that."""
    wait_s = read_retry(run_dir, attempt - 1).get("wait_s")
    return float(wait_s) if isinstance(wait_s, (int, float)) and not isinstance(wait_s, bool) and wait_s > 0 else 0.0


def find_change(run_dir: str) -> str:
    """How the job or its configuration differs from what was recorded; empty when both are proven equal (FAIL-16)."""
    from ..host.snapshot import hash_file
    from .create import hash_job

    try:
        origin = wire.decode(RunOrigin, _read_origin(run_dir))
    except wire.WireError as error:
        return f"{wire.RUN} cannot be read: {error}"
    pinned = origin.snapshot.script
    # The hash is of the job as it was asked for; a pinned script runs from its copy.
    asked = origin.job if pinned is None else replace(origin.job, command=pinned.argv)
    if hash_job(asked) != origin.job_sha256:
        return f"{wire.RUN} does not have the job whose hash was recorded with it"
    for copy in origin.snapshot.files:
        if copy.sha256 is None:
            continue
        try:
            now = hash_file(copy.source)
        except OSError as error:
            return f"{copy.source} cannot be read any more ({error.strerror})"
        if now != copy.sha256:
            return f"{copy.source} was changed"
    return ""


def _make_room(context: Context, decision: Decision) -> tuple[Decision, dict[str, Any]]:
    """Prune declared scratch, then look at the disks again: the decision that holds after it, and what was removed."""
    from ..diagnosis.storage.scratch import prune_within
    from ..model.units import format_bytes

    pruned = prune_within(context.run_dir, context.spec, PRUNE_WITHIN_S)
    done = {"freed_bytes": pruned.freed_bytes, "files": pruned.files, "failed": pruned.failed[:20]}
    short = _find_shortage(context)
    freed = f"{format_bytes(pruned.freed_bytes)} of declared scratch were removed"
    if short:
        asked = f"{freed}, and it is not enough: {short}; free more, or have the disk enlarged"
        return Decision(Step.NOTHING, asked), done
    return replace(decision, why=f"{decision.why}; {freed}, and there is room"), done


def _find_shortage(context: Context) -> str:
    """What the disk gate of a start would say against the disks now; empty when there is room."""
    from ..host.offload import Offload, OffloadFailed

    def look() -> list[str]:
        from .checks.disk import check_disks
        from .preflight import make_situation, run_one

        situation = make_situation(context.spec, context.rules, environ=context.environ, run_dir=context.run_dir)
        # What could not be read is no room either.
        bad = (Level.FAIL, Level.UNKNOWN)
        return [f"{item.subject}: {item.evidence}" for item in run_one(check_disks, situation) if item.level in bad]

    try:
        found = Offload(look).wait(LOOK_WITHIN_S)
    except (OffloadFailed, OSError) as error:
        return f"the disks cannot be looked at: {error}"
    return "; ".join(map(str, found))


def _set_aside(context: Context, verdict: Verdict) -> list[str]:
    """Quarantine the cards that the verdict blames; what was done, in words."""
    from ..host.quarantine import quarantine
    from ..model.errors import HoldfastError

    why = "; ".join(clue.text for clue in verdict.evidence_for[:3])
    told = []
    for uuid in verdict.cards:
        try:
            quarantine(uuid, reason=f"run {context.run_id}: {verdict.kind.value}", evidence=why)
        except (HoldfastError, OSError) as error:
            told.append(f"{uuid} could not be set aside: {error}")
            continue
        context.recorder.event("card_set_aside", card=uuid, why=why)
        told.append(uuid)
    return told


def _read_origin(run_dir: str) -> dict[str, Any]:
    path = f"{run_dir}/{wire.RUN}"
    try:
        return wire.parse_object(files.read_bytes(path), path)
    except (OSError, wire.WireError):
        return {}
