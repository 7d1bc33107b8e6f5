"""After a failed attempt: prunes, quarantines, begins the next one or says why not (FAIL-02, FAIL-03, FAIL-07).

Done before the exit record is written, and only of an end that a supervisor saw: what nobody saw is not repeated. What
is decided is on disk (``retry.json`` of the attempt that failed) before it is done, so that it is done once, whoever
comes after a crash. Who comes has the environment that was kept in memory (`agent.kept_environment`); runs of the queue
are left to its worker, which has theirs.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from holdfast.agent.checks.disk import check_disks
from holdfast.agent.checks.preflight import make_context, run_one
from holdfast.agent.control.create import next_attempt
from holdfast.agent.control.run_lock import LOOK_PATIENCE_S, hold_run_lock
from holdfast.agent.kept_environment import read_kept
from holdfast.agent.launch import start_supervisor
from holdfast.agent.plan.placement import read_placement
from holdfast.agent.view.observe import list_attempts
from holdfast.agent.view.retries import count_automatic, is_followed, read_retry
from holdfast.agent.view.source_change import find_change_within, read_origin
from holdfast.core.run.retry import AUTOMATIC, STOP_WANTED, RetryDecision, RetryFacts, RetryStep, decide_retry
from holdfast.diagnosis.storage.scratch import prune_within
from holdfast.host.clock import parse_utc, utc_now
from holdfast.host.files.job_change import has_checkpoint
from holdfast.host.gpu.quarantine import quarantine
from holdfast.host.process.offload import Offload, OffloadFailed
from holdfast.model import wire
from holdfast.model.errors import HoldfastError, ResourceBusy
from holdfast.model.finding import Level
from holdfast.model.record import replace
from holdfast.model.run import Outcome
from holdfast.model.units import format_bytes
from holdfast.model.verdict import Confidence, FailureClass

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from holdfast.agent.supervise.context import SupervisorContext
    from holdfast.model.run import Ended
    from holdfast.model.verdict import Verdict

PRUNE_WITHIN_S = 30.0
LOOK_WITHIN_S = 10.0
ADOPTER_PATIENCE_S = 5.0
"""How long who adopted the run is waited for: the lock is held until this process is started, and no longer."""
MOST_UMASK = 0o777
DRIVER_SOURCES = ("NVML", "kernel log")
ADOPT, RETRY = "adopt", "retry"
"""Why a supervisor was started (`agent.launch.start_supervisor`)."""
NO_ENVIRONMENT = "the supervisor that had the job's environment was killed, and it is not in memory any more"


def follow_up(context: SupervisorContext, ended: Ended, verdict: Verdict) -> None:
    """Decide, record, act. Never raises for what goes wrong here: the attempt's own end is on record already."""
    kind = verdict.kind
    if ended.outcome is not Outcome.FAILED or not isinstance(kind, FailureClass) or kind not in AUTOMATIC:
        return
    if context.queued and context.reason == ADOPT:
        return
    try:
        decided = read_retry(context.run_dir, context.attempt)
        if not decided:
            _follow_up(context, ended, verdict, kind)
        elif decided.get("retry") and not is_followed(context.run_dir, context.attempt):
            with _hold(context):
                _begin(context, str(decided.get("why")))
    except Exception as error:  # noqa: BLE001 - whoever wants to be told of the end must be told of it all the same
        context.recorder.log(f"no automatic attempt: {type(error).__name__}: {error}")
        context.recorder.event("no_retry", **{"class": verdict.kind, "why": f"{type(error).__name__}: {error}"})


def _follow_up(context: SupervisorContext, ended: Ended, verdict: Verdict, kind: FailureClass) -> None:
    """Under the run's lock: a restart or a removal by a person and an attempt of ours must not happen side by side."""
    done: dict[str, Any] = {}
    problem = ""
    if kind is FailureClass.HARDWARE and verdict.confidence is not Confidence.POSSIBLE:
        # Whether or not it runs again: nobody should be given this card next.
        done["set_aside"], problem = _set_aside(context, verdict)
    try:
        with _hold(context):
            decision = _decide(context, ended, verdict, kind, problem)
            if decision.step is RetryStep.PRUNE_FIRST:
                decision, done["pruned"] = _make_room(context, decision)
                if context.read_desired() is not None:
                    decision = RetryDecision(RetryStep.NOTHING, STOP_WANTED)
            _record(context, verdict, decision, done)
            if decision.step is not RetryStep.NOTHING:
                _begin(context, decision.why)
                return
    except ResourceBusy:
        # They are at it already, so nobody needs to be told.
        _record(context, verdict, RetryDecision(RetryStep.NOTHING, "somebody is restarting or removing the run"), done)
        return
    context.notify("alert", alert="not_retried", why=decision.why, action=verdict.action)


def _hold(context: SupervisorContext) -> AbstractContextManager[None]:
    patience_s = ADOPTER_PATIENCE_S if context.reason == ADOPT else LOOK_PATIENCE_S
    return hold_run_lock(context.run_dir, what="retry", patience_s=patience_s)


def _is_full(context: SupervisorContext, verdict: Verdict) -> bool:
    """Whether a disk was measured full: by the verdict, which is certain only then, or by the gate of a start."""
    return verdict.confidence is Confidence.CERTAIN or bool(_find_shortage(context))


def _find_lost_s(context: SupervisorContext, ended: Ended) -> float:
    """How long the attempt had worked, where nothing is there to go on from."""
    if ended.started_at is None or has_checkpoint(context.run_dir, wire.encode(context.spec)):
        return 0.0
    return max(0.0, parse_utc(ended.at) - parse_utc(ended.started_at))


def _decide(
    context: SupervisorContext, ended: Ended, verdict: Verdict, kind: FailureClass, problem: str
) -> RetryDecision:
    if list_attempts(context.run_dir)[-1:] != (context.attempt,):
        return RetryDecision(RetryStep.NOTHING, "somebody has begun another attempt")
    if not context.saw_end:
        return RetryDecision(RetryStep.NOTHING, "no supervisor saw it end")
    if _find_environment(context) is None:
        return RetryDecision(RetryStep.NOTHING, NO_ENVIRONMENT)
    facts = RetryFacts(
        kind=kind,
        confidence=verdict.confidence,
        used=count_automatic(context.run_dir, context.attempt),
        allowed=context.spec.retries.max,
        changed=find_change_within(context.run_dir, LOOK_WITHIN_S),
        stop_wanted=context.read_desired() is not None,
        names_cards=bool(context.spec.gpus.devices),
        not_set_aside=problem,
        seed=f"{context.run_id}.{context.attempt}",
        lost_s=_find_lost_s(context, ended),
        asked_wait_s=verdict.wait_s,
        total_s=context.spec.timeouts.total_s,
        measured=kind is FailureClass.DISK_FULL and _is_full(context, verdict),
    )
    return decide_retry(facts, context.spec.retries.wait_s)


def _record(context: SupervisorContext, verdict: Verdict, decision: RetryDecision, done: dict[str, Any]) -> None:
    again = decision.step is not RetryStep.NOTHING
    record = {
        "at": utc_now(),
        "class": verdict.kind,
        "retry": again,
        "why": decision.why,
        "wait_s": decision.wait_s if again else None,
        "job_sha256": read_origin(context.run_dir).get("job_sha256"),
        **done,
    }
    context.recorder.commit(wire.RETRY, wire.to_bytes(record))
    context.recorder.event("retry" if again else "no_retry", **{"class": verdict.kind, "why": decision.why})


def _begin(context: SupervisorContext, why: str) -> None:
    environ = _find_environment(context)
    if context.recorder.degraded or environ is None:
        # What bounds the attempts is on no disk that the next one would read.
        what = "the run directory takes no records" if environ is not None else NO_ENVIRONMENT
        context.recorder.log(f"the next attempt was not begun ({why}): {what}")
        return
    umask = context.recorder.read_manifest().get("umask")
    previous = os.umask(umask if isinstance(umask, int) and 0 <= umask <= MOST_UMASK else context.umask)
    try:
        attempt = next_attempt(
            context.run_dir,
            RETRY,
            placement=read_placement(context.recorder.directory),
            generation=context.generation,
        )
        if context.foreground is None:
            # Else whoever stands in the foreground goes on with it.
            start_supervisor(context.run_dir, attempt, environ=environ, reason=RETRY)
    except HoldfastError as error:
        context.recorder.log(f"the next attempt could not be begun ({why}): {error}")
        return
    finally:
        os.umask(previous)
    context.recorder.event("next_attempt", attempt=attempt)


def _find_environment(context: SupervisorContext) -> dict[str, str] | None:
    """That of the attempt before; of a supervisor that took over its own is somebody else's."""
    return read_kept(context.run_id) if context.reason == ADOPT else context.environ


def _make_room(context: SupervisorContext, decision: RetryDecision) -> tuple[RetryDecision, dict[str, Any]]:
    """Prune declared scratch, then look at the disks again: the decision that holds after it, and what was removed."""
    pruned = prune_within(context.run_dir, context.spec, PRUNE_WITHIN_S)
    done = {"freed_bytes": pruned.freed_bytes, "files": pruned.files, "failed": pruned.failed[:20]}
    if not pruned.files:
        # It filled the disk as it is: free bytes elsewhere, or a gate that asks for none, promise nothing.
        asked = "there is no declared scratch to remove (disk.scratch); free space, or have the disk or quota enlarged"
        return RetryDecision(RetryStep.NOTHING, asked), done
    short = _find_shortage(context)
    freed = f"{format_bytes(pruned.freed_bytes)} of declared scratch were removed"
    if short:
        asked = f"{freed}, and it is not enough: {short}; free more, or have the disk enlarged"
        return RetryDecision(RetryStep.NOTHING, asked), done
    return replace(decision, why=f"{decision.why}; {freed}, and there is room"), done


def _find_shortage(context: SupervisorContext) -> str:
    """What the disk gate of a start would say against the disks now; empty when there is room."""

    def look() -> list[str]:
        situation = make_context(context.spec, context.rules, environ=context.environ, run_dir=context.run_dir)
        # What could not be read is no room either.
        bad = (Level.FAIL, Level.UNKNOWN)
        return [f"{item.subject}: {item.evidence}" for item in run_one(check_disks, situation) if item.level in bad]

    try:
        found = Offload(look).wait(LOOK_WITHIN_S)
    except (OffloadFailed, OSError) as error:
        return f"the disks cannot be looked at: {error}"
    return "; ".join(map(str, found))


def _set_aside(context: SupervisorContext, verdict: Verdict) -> tuple[list[str], str]:
    """Quarantine the cards that the verdict blames; what was done, and why not all of it was, in words."""
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
