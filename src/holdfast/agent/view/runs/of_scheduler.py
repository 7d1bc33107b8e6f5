"""Which runs of a list a scheduler may have a word on, told from the list and one record alone."""

from __future__ import annotations

from holdfast.host.clock import epoch_s, find_age
from holdfast.host.files import files
from holdfast.model import wire
from holdfast.model.run import Outcome
from holdfast.store.index import IndexRow

REQUEUED_WITHIN_S = 7 * 86_400.0
"""How long after its end a list still asks whether a failed run waits again: Slurm forgets a job after minutes."""


def is_of_scheduler(row: IndexRow) -> bool:
    """Whether a scheduler may have a word on this run: it starts its attempts, and may begin another one."""
    return _may_go_on(row) and names_scheduler(row.run_dir)


def _may_go_on(row: IndexRow) -> bool:
    if not row.ended or row.condition == Outcome.PREEMPTED.value:
        return True
    age_s = None if row.condition == Outcome.SUCCEEDED.value else find_age(row.ended_at, epoch_s())
    return age_s is not None and age_s < REQUEUED_WITHIN_S


def names_scheduler(run_dir: str) -> bool:
    """Whether a run is one of a scheduler: most are not, and cost a list no second look."""
    try:
        return bool(wire.parse_object(files.read_bytes(f"{run_dir}/{wire.RUN}"), wire.RUN).get("scheduler"))
    except (OSError, wire.WireError):
        return False
