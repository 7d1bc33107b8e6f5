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

from ..core.retrying import AUTOMATIC, STOP_WANTED, Decision, Facts, Step, decide_retry
from ..host import files
from ..host.clock import utc_now
from ..host.processes import is_alive
from ..model import wire
from ..model.finding import Level
from ..model.origin import RunOrigin
from ..model.run import Outcome
from ..model.verdict import Confidence, FailureClass
from .observe import Reach, list_attempts

if TYPE_CHECKING:
    from ..model.run import Ended
    from ..model.verdict import Verdict
    from .context import Context
    from .observe import RunView

PRUNE_WITHIN_S = 30.0
LOOK_WITHIN_S = 10.0
MOST_UMASK = 0o777
DRIVER_SOURCES = ("NVML", "kernel log")


def follow_up(context: Context, ended: Ended, verdict: Verdict) -> None:
    """Decide, record, act. Never raises for what goes wrong here: the attempt's own end is on record already."""
    if ended.outcome is not Outcome.FAILED or not isinstance(verdict.kind, FailureClass) or context.reason == "adopt":
        return
    if verdict.kind not in AUTOMATIC or os.path.exists(context.recorder.path(wire.RETRY)):
        return
    try:
        _follow_up(context, verdict, verdict.kind)
    except Exception as error:  # noqa: BLE001 - whoever wants to be told of the end must be told of it all the same
        context.recorder.log(f"no automatic attempt: {type(error).__name__}: {error}")
        context.recorder.event("no_retry", **{"class": verdict.kind, "why": f"{type(error).__name__}: {error}"})


def _follow_up(context: Context, verdict: Verdict, kind: FailureClass) -> None:
    """Under the run's lock: a restart or a removal by a person and an attempt of ours must not happen side by side."""
    from ..model.errors import ResourceBusy
    from .acting import hold

    done: dict[str, Any] = {}
    problem = ""
    if kind is FailureClass.HARDWARE and verdict.confidence is not Confidence.POSSIBLE:
        # Whether or not it runs again: nobody should be given this card next.
        done["set_aside"], problem = _set_aside(context, verdict)
    try:
        with hold(context.run_dir, what="retry"):
            decision = _decide(context, verdict, kind, problem)
            if decision.step is Step.PRUNE_FIRST:
                decision, done["pruned"] = _make_room(context, decision)
                if context.recorder.read_desired() is not None:
                    decision = Decision(Step.NOTHING, STOP_WANTED)
            _record(context, verdict, decision, done)
            if decision.step is not Step.NOTHING:
                _begin(context, decision)
                return
    except ResourceBusy:
        # They are at it already, so nobody needs to be told.
        _record(context, verdict, Decision(Step.NOTHING, "somebody is restarting or removing the run"), done)
        return
    context.notify("alert", alert="not_retried", why=decision.why, action=verdict.action)


def _decide(context: Context, verdict: Verdict, kind: FailureClass, problem: str) -> Decision:
    if list_attempts(context.run_dir)[-1:] != (context.attempt,):
        return Decision(Step.NOTHING, "somebody has begun another attempt")
    facts = Facts(
        kind=kind,
        confidence=verdict.confidence,
        used=count_automatic(context.run_dir, context.attempt),
        allowed=context.spec.retries.max,
        changed=find_change_within(context.run_dir, LOOK_WITHIN_S),
        stop_wanted=context.recorder.read_desired() is not None,
        names_cards=bool(context.spec.gpus.devices),
        not_set_aside=problem,
        seed=f"{context.run_id}.{context.attempt}",
    )
    return decide_retry(facts, context.spec.retries.wait_s)


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
    from .queueing.placing import read_placement

    if context.recorder.degraded:
        # What bounds the attempts is on no disk that the next one would read.
        context.recorder.log(f"the next attempt was not begun ({decision.why}): the run directory takes no records")
        return
    umask = context.recorder.read_manifest().get("umask")
    previous = os.umask(umask if isinstance(umask, int) and 0 <= umask <= MOST_UMASK else context.umask)
    try:
        attempt = next_attempt(context.run_dir, "retry", placement=read_placement(context.recorder.directory))
        start_supervisor(context.run_dir, attempt, environ=context.environ, reason="retry")
    except HoldfastError as error:
        context.recorder.log(f"the next attempt could not be begun ({decision.why}): {error}")
        return
    finally:
        os.umask(previous)
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
    """What comes after an attempt that has ended; UNDECIDED counts only as long as its supervisor is at work."""
    wanted = bool(read_retry(run_dir, attempt).get("retry"))
    if os.path.exists(f"{wire.attempt_dir(run_dir, attempt + 1)}/{wire.STATE}"):
        return Following.BEGUN if wanted else Following.NONE
    # Between the decision and the next attempt's state is a moment in which it has not begun.
    return Following.UNDECIDED if wanted or is_undecided(run_dir, attempt) else Following.NONE


def awaits_decision(view: RunView) -> bool:
    """Whether an attempt has ended, and its supervisor has still to say whether another one follows.

    A look does not tell of the supervisor of an attempt that is over.
    """
    supervisor = None if view.state is None else view.state.supervisor
    if not view.ended or view.reach is not Reach.HERE or supervisor is None or not is_alive(supervisor):
        return False
    return not view.over or find_following(view.run_dir, view.attempt) is Following.UNDECIDED


def may_be_followed(view: RunView) -> bool:
    """Whether an attempt of holdfast's own follows this one that has ended, or may follow."""
    return awaits_decision(view) or find_following(view.run_dir, view.attempt) is Following.BEGUN


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

    record = _read_origin(run_dir)
    try:
        origin = wire.decode(RunOrigin, record)
    except wire.WireError as error:
        return f"{wire.RUN} cannot be read: {error}"
    if rehash_job(record) != origin.job_sha256:
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


def rehash_job(record: dict[str, Any]) -> str:
    """The hash of the job in a ``run.json`` as it was asked for: a pinned script runs from its copy; "" without one.

    Of the stored values, not of what this version would make of them: a key that came later changes no hash.
    """
    from .create import hash_encoded_job

    job, snapshot = record.get("job"), record.get("snapshot")
    pinned = snapshot.get("script") if isinstance(snapshot, dict) else None
    if not isinstance(job, dict):
        return ""
    return hash_encoded_job({**job, "command": pinned.get("argv")} if isinstance(pinned, dict) else job)


def find_change_within(run_dir: str, limit_s: float) -> str:
    """As `find_change`, in a disposable child: the files may lie on a mount that hangs."""
    from ..host.offload import Offload, OffloadFailed

    try:
        return str(Offload(lambda: find_change(run_dir)).wait(limit_s))
    except (OffloadFailed, OSError) as error:
        return f"whether it was changed cannot be told: {error}"


def _make_room(context: Context, decision: Decision) -> tuple[Decision, dict[str, Any]]:
    """Prune declared scratch, then look at the disks again: the decision that holds after it, and what was removed."""
    from ..diagnosis.storage.scratch import prune_within
    from ..model.units import format_bytes

    pruned = prune_within(context.run_dir, context.spec, PRUNE_WITHIN_S)
    done = {"freed_bytes": pruned.freed_bytes, "files": pruned.files, "failed": pruned.failed[:20]}
    if not pruned.files:
        # It filled the disk as it is: free bytes elsewhere, or a gate that asks for none, promise nothing.
        asked = "there is no declared scratch to remove (disk.scratch); free space, or have the disk or quota enlarged"
        return Decision(Step.NOTHING, asked), done
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


def _set_aside(context: Context, verdict: Verdict) -> tuple[list[str], str]:
    """Quarantine the cards that the verdict blames; what was done, and why not all of it was, in words."""
    from ..host.quarantine import quarantine
    from ..model.errors import HoldfastError

    # Everybody may read the record of a card: only what the driver and the kernel say goes into it, not the output.
    why = "; ".join(clue.text for clue in verdict.evidence_for if clue.source.startswith(DRIVER_SOURCES)) or "its class"
    told, failed = [], []
    for uuid in verdict.cards:
        try:
            quarantine(uuid, reason=f"run {context.run_id}: {verdict.kind.value}", evidence=why)
        except (HoldfastError, OSError) as error:
            failed.append(f"{uuid} could not be set aside: {error}")
            continue
        context.recorder.event("card_set_aside", card=uuid, why=why)
        told.append(uuid)
    problem = "; ".join(failed) or ("" if told else "which card is at fault is not known")
    return [*told, *failed], problem


def _read_origin(run_dir: str) -> dict[str, Any]:
    path = f"{run_dir}/{wire.RUN}"
    try:
        return wire.parse_object(files.read_bytes(path), path)
    except (OSError, wire.WireError):
        return {}
