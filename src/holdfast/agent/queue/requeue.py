"""After a run of the queue has ended without success: whether another attempt follows, and how it is begun.

The worker asks (`settle_requeue`) once a run is over and its own supervisor has left without a further attempt. What
is decided is on disk (``requeue.json`` of the attempt that ended) before it is done, so it is done once, whoever comes
after a crash; where the next attempt may run is in its directory before the attempt counts as begun
(``placement.json``).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from holdfast.agent.control.act import generation_of
from holdfast.agent.control.create import next_attempt
from holdfast.agent.control.job.change import read_recorded_job
from holdfast.agent.control.job.code import renew_code
from holdfast.agent.control.run_lock import hold_run_lock
from holdfast.agent.plan.placement import read_placement
from holdfast.agent.view.observe import list_begun, observe_run
from holdfast.agent.view.retries import read_or_empty, read_reached_step, read_requeue, read_retry
from holdfast.agent.view.run_view import is_never_taken
from holdfast.agent.view.source_change import find_change_within
from holdfast.core.queue.requeue import MOST_ATTEMPTS_READ, MemoryFailure, RequeueFacts, count_in_row, decide_requeue
from holdfast.host.clock import utc_now
from holdfast.host.files import files
from holdfast.host.gpu.allocation import imposed_allocation
from holdfast.host.gpu.inventory import read_inventory
from holdfast.host.process.processes import find_marked
from holdfast.model import wire
from holdfast.model.errors import ResourceBusy, StillAlive
from holdfast.model.job import JobSpec, OutOfMemory
from holdfast.model.record import replace
from holdfast.model.requeue import Requeue, RequeueAction
from holdfast.model.run import Outcome
from holdfast.model.verdict import Confidence, FailureClass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.agent.launch import StartSupervisor
    from holdfast.agent.view.run_view import RunView

LOOK_WITHIN_S = 10.0
READING_S = 10.0


def settle_requeue(run_dir: str) -> Requeue:
    """What follows the newest attempt of a job's run, which is over; recorded when it is another attempt.

    Asked again it answers what was recorded. `wait_s` is for the caller: the job is queued with that pause before it.
    Does not raise: what cannot be read or recorded is followed by nothing, and `why` says so.
    """
    numbers = list_begun(run_dir)
    view = observe_run(run_dir, attempt=numbers[-1] if numbers else None)
    known = read_requeue(run_dir, view.attempt)
    if known is not None:
        return known
    if not view.over:
        return Requeue(RequeueAction.NOTHING, f"it has not ended: {view.condition}")
    facts = _gather(view)
    found = decide_requeue(facts)
    if found.again:
        # What takes long is looked at only when it matters.
        found = decide_requeue(
            replace(facts, changed=find_change_within(run_dir, LOOK_WITHIN_S), alive=_find_alive(view))
        )
    return _record(view, found) if found.again else found


def begin_again(run_dir: str, *, environ: Mapping[str, str], start_supervisor: StartSupervisor) -> int:
    """Begin the next attempt of a job's run, which has ended; answers its number. Idempotent after a crash.

    What the queue decided after the last attempt holds; without that somebody asked for it (`holdfast queue retry`).

    Raises:
        ResourceBusy: somebody restarts, adopts or removes it just now.
        StillAlive: it is not over, or processes of it live: nothing was begun.
        NoSuchRun, StorageError: the attempt cannot be made.
    """
    with hold_run_lock(run_dir, what="requeue"):
        numbers = list_begun(run_dir)
        view = observe_run(run_dir, attempt=numbers[-1] if numbers else None)
        if view.supervised:
            return view.attempt
        before = numbers[:-1] if is_never_taken(view) else numbers
        decided = read_requeue(run_dir, before[-1]) if before else None
        reason = "start" if not before else "restart" if decided is None else "requeue"
        attempt = view.attempt
        if not is_never_taken(view):
            _refuse_unfinished(view)
            # A placement holds for what follows by itself, too; not for what a person asks for.
            placement = None if decided is None else decided.placement or read_placement(view.attempt_dir)
            asked = bool(before) and decided is None
            code = renew_code(run_dir, read_recorded_job(run_dir).spec, environ).code if asked else None
            # What follows by itself obeys a stop that a person asked for meanwhile; what a person asks for does not.
            generation = generation_of(view) if decided is not None and _is_stop_wanted(view) else None
            attempt = next_attempt(run_dir, reason, placement=placement, code=code, generation=generation)
        previous = os.umask(_umask(view))
        try:
            start_supervisor(run_dir, attempt, environ=environ, reason=reason)
        finally:
            os.umask(previous)
        return attempt


def _is_stop_wanted(view: RunView) -> bool:
    """Whether somebody asked for a stop; what holdfast asks for is that the end of a lost run is written."""
    return view.desired is not None and view.desired.by != "holdfast"


def _refuse_unfinished(view: RunView) -> None:
    if not view.over:
        raise StillAlive(f"{view.run_id} is not over: {view.condition}", hint=f"holdfast show {view.run_id}")
    alive = find_marked(view.run_id)
    if alive:
        pids = ", ".join(str(process.pid) for process in alive)
        raise StillAlive(f"{view.run_id}: processes of it live: {pids}", hint="look at them with ps")


def _umask(view: RunView) -> int:
    value = view.manifest.get("umask")
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 0o777 else 0o077


def _record(view: RunView, found: Requeue) -> Requeue:
    path = f"{view.attempt_dir}/{wire.REQUEUE}"
    try:
        files.commit(path, wire.to_bytes(found, at=utc_now(), job_sha256=view.record.get("job_sha256")))
    except OSError as error:
        # What bounds the attempts would be on no disk.
        return Requeue(
            RequeueAction.NOTHING, f"{found.why}, but the decision cannot be recorded: {path}: {error.strerror}"
        )
    return found


def _find_alive(view: RunView) -> str:
    return ", ".join(f"pid {process.pid}" for process in find_marked(view.run_id))


def _gather(view: RunView) -> RequeueFacts:
    end = view.end
    request = None if end is None else end.request
    verdict = read_or_empty(f"{view.attempt_dir}/{wire.VERDICT}").get("verdict")
    refusal = None if end is None else end.refusal
    kind = _member(FailureClass, view.exit.get("failure_class"))
    decided = read_retry(view.run_dir, view.attempt)
    try:
        spec = wire.decode(JobSpec, view.spec)
    except wire.WireError as error:
        return RequeueFacts(None, changed=f"{wire.RUN} cannot be read: {error}")
    return RequeueFacts(
        outcome=_member(Outcome, view.exit.get("outcome")) if end is None else end.outcome,
        kind=kind,
        confidence=_member(Confidence, verdict.get("confidence") if isinstance(verdict, dict) else None)
        or Confidence.POSSIBLE,
        started=end is not None and end.started_at is not None,
        stopped_by="" if request is None else request.by,
        wanted=_is_stop_wanted(view),
        busy=refusal is not None and refusal.exit_code == ResourceBusy.exit_code,
        in_row=_count_in_row(view),
        undecided=not decided,
        unbegun=bool(decided.get("retry")),
        allowed=spec.retries.max,
        first_wait_s=spec.retries.wait_s,
        seed=f"{view.run_id}.{view.attempt}",
        memory=_look_at_memory(view, spec) if kind is FailureClass.GPU_OUT_OF_MEMORY else MemoryFailure(),
    )


def _count_in_row(view: RunView) -> int:
    numbers = [number for number in list_begun(view.run_dir) if number <= view.attempt][-MOST_ATTEMPTS_READ:]
    requeued = (False, *(read_requeue(view.run_dir, number) is not None for number in numbers[:-1]))
    return count_in_row(tuple(read_reached_step(view.run_dir, number) for number in numbers), requeued)


def _look_at_memory(view: RunView, spec: JobSpec) -> MemoryFailure:
    policy = spec.retries.out_of_memory
    placed = any(os.path.exists(f"{wire.attempt_dir(view.run_dir, n)}/{wire.PLACEMENT}") for n in view.attempts)
    shared = bool(view.manifest.get("share"))
    if policy is not OutOfMemory.LARGER or placed:
        return MemoryFailure(policy, shared, placed)
    return MemoryFailure(
        policy,
        shared,
        placed,
        failed_bytes=_read_failed_bytes(view),
        largest_bytes=_read_largest_bytes(spec.gpus.wanted),
        fixed=_find_fixed(view, spec),
    )


def _read_failed_bytes(view: RunView) -> int | None:
    cards = view.manifest.get("cards")
    totals = [card.get("memory_total_bytes") for card in cards if isinstance(card, dict)] if cards else []
    known = [total for total in totals if isinstance(total, int) and not isinstance(total, bool)]
    return min(known) if known and len(known) == len(totals) else None


def _read_largest_bytes(wanted: int) -> int | None:
    """The memory that `wanted` cards of this box have at least, the largest first; None when that cannot be told."""
    inventory = read_inventory(READING_S)
    sound = (card for card in inventory.cards if not (card.faults or card.quarantined or card.mig_enabled))
    totals = sorted((card.memory_total_bytes for card in sound if card.memory_total_bytes is not None), reverse=True)
    return totals[wanted - 1] if 0 < wanted <= len(totals) else (0 if inventory.cards and inventory.complete else None)


def _find_fixed(view: RunView, spec: JobSpec) -> str:
    devices = view.manifest.get("devices")
    if spec.gpus.devices:
        return "the job names its cards"
    if imposed_allocation(os.environ) is not None:
        return "a scheduler gives the cards here"
    if any(isinstance(device, dict) and device.get("slice_uuid") for device in devices or ()):
        return "it had a slice of a card (MIG)"
    return ""


def _member(kind: type[Any], value: object) -> Any:  # noqa: ANN401 - a member of that enum, or None
    return next((member for member in kind if member.value == value), None)
