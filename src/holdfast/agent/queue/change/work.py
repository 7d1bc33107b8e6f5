"""Seeing that a worker is at work: what the entry of `queue install` calls after a restart of the box."""

from __future__ import annotations

from holdfast.agent.messages.group_end import find_untold, read_told
from holdfast.agent.patrol.reconcile import ReconcileReport, Repair, RepairKind
from holdfast.agent.queue.change.start_worker import start_worker
from holdfast.agent.queue.open import list_notices, look_for_worker, open_queue
from holdfast.agent.queue.view.untold import list_untold_groups
from holdfast.host.clock import utc_now
from holdfast.model.errors import HoldfastError
from holdfast.model.queue import ACTIVE_STATES, WAITING_STATES
from holdfast.model.record import record, replace
from holdfast.store.paths import queue_directory


@record
class Work:
    """How many jobs were not over at `at` (ISO UTC), and whether a worker was started for them."""

    at: str
    left: int
    started: bool
    notes: tuple[str, ...]


def see_to_work() -> Work:
    """Start a worker when a job is not over, or the end of a group not told, and none is there."""
    with open_queue() as queue:
        notes = list_notices(queue)
        left = len(queue.jobs(states=(*WAITING_STATES, *ACTIVE_STATES)))
        needed = left or any(find_untold(queue, read_told(queue)))
        return Work(utc_now(), left, start_worker(queue, notes) if needed else False, tuple(notes))


def add_queue(report: ReconcileReport, *, dry_run: bool) -> ReconcileReport:
    """What was put in line, and in the queue: a worker is started where one is gone before it had told or noted all."""
    try:
        why = "; ".join(list_untold_groups(due=True).values())
        if not why:
            return report
        repair = Repair(RepairKind.QUEUE, queue_directory(), why, "a worker is started")
        if not dry_run:
            with open_queue() as queue:
                notes: list[str] = []
                done = start_worker(queue, notes) or look_for_worker(queue)[0] is not None
            problem = "" if done else notes[0] if notes else "a job of holdfast starts none"
            repair = replace(repair, done=done, problem=problem)
    except HoldfastError as error:
        return replace(report, unread=(*report.unread, str(error)), exit_code=1)
    code = report.exit_code or int(not repair.done)
    return replace(report, repairs=(*report.repairs, repair), exit_code=code)
