"""Taking closed groups out of the list: planned first, so that a person can be asked, then done."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.agent.queue.arrays.choose import choose_sweep
from holdfast.agent.queue.arrays.clear import clear_sweep, require_closed
from holdfast.agent.queue.environment import forget_all_but
from holdfast.agent.queue.open import build_order, list_notices, open_queue, require_group
from holdfast.agent.queue.submit.hand_in import one_at_a_time
from holdfast.core.queue.words import count_jobs, name_jobs, name_labels
from holdfast.model.errors import UsageError
from holdfast.model.queue import GroupKind, OrderVerb, QueueAct
from holdfast.model.record import record

from .change import QueueChange, describe_jobs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.agent.view.runs.sweeps import FoundSweep
    from holdfast.model.queue import QueuedJob
    from holdfast.store.queue.queue import Queue

RUNS_STAY = "their runs stay: holdfast ls"


@record
class ClearPlan:
    """What would be taken out: `jobs`; all of those in `groups`, single ones of a group that stays.

    `tables` are the sweeps among the groups, whose tables go; `scheduled` those that a scheduler runs. `words` named
    them, `notes` are for people.
    """

    words: tuple[str, ...]
    jobs: tuple[QueuedJob, ...] = ()
    groups: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()
    scheduled: tuple[FoundSweep, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def single(self) -> tuple[QueuedJob, ...]:
        """Those of groups that stay."""
        return tuple(job for job in self.jobs if job.group not in self.groups)

    @property
    def question(self) -> str:
        """What is asked before; empty where there is nothing to clear."""
        if not self.groups and not self.jobs:
            return ""
        parts = [f"group {name_labels(self.groups)}"] if self.groups else []
        parts += [f"{count_jobs(len(self.single))} ({name_jobs(self.single)})"] if self.single else []
        tables = f", with the table of sweep {name_labels(self.tables)} (sweep export keeps it)" if self.tables else ""
        return f"Take {' and '.join(parts)} out of the list{tables}? The runs stay."


def plan_clear(words: Sequence[str]) -> ClearPlan:
    """What these words name that can be taken out; without one, all that is closed.

    Sweeps that a scheduler runs, too, where all words name such.

    Raises:
        UsageError: one of them names nothing, or a group of which something waits or runs.
    """
    sweeps = [found for word in words if (found := choose_sweep(word)) is not None]
    if sweeps and len(sweeps) == len(words):
        names = tuple(require_closed(found).name for found in sweeps)
        return ClearPlan(tuple(words), groups=names, tables=names, scheduled=tuple(sweeps))
    with open_queue() as queue:
        return _plan(queue, words)


def _plan(queue: Queue, words: Sequence[str]) -> ClearPlan:
    jobs = {job.id: job for order in _build_orders(queue, words) for job in queue.foresee(order)}
    numbers: dict[str, int] = {}
    for job in jobs.values():
        numbers[job.group] = numbers.get(job.group, 0) + 1
    counts, known = queue.counts(), queue.groups()
    groups = tuple(name for name, number in numbers.items() if number == sum(counts.get(name, {}).values()))
    tables = tuple(name for name in groups if known[name].kind is GroupKind.SWEEP)
    return ClearPlan(tuple(words), tuple(jobs.values()), groups, tables, notes=tuple(list_notices(queue)))


def _build_orders(queue: Queue, words: Sequence[str]) -> list[QueueAct]:
    if not words:
        return [build_order(OrderVerb.CLEAR)]
    return [build_order(OrderVerb.CLEAR, group=require_group(queue, word).name) for word in words]


def clear(plan: ClearPlan, *, dry_run: bool = False) -> QueueChange:
    """Take out what was planned; the runs stay, the environments that nothing needs any more do not.

    Raises:
        UsageError: something else would go by now.
    """
    if not dry_run:
        for found in plan.scheduled:
            clear_sweep(found)
        if not plan.scheduled:
            _clear_planned(plan)
    if not plan.groups and not plan.jobs:
        return QueueChange("nothing to clear: no group is closed", notes=plan.notes)
    done = "would be taken out of the list" if dry_run else "taken out of the list"
    tables = (
        [f"the table of sweep {name_labels(plan.tables)} {'would go' if dry_run else 'is gone'}"] if plan.tables else []
    )
    words = f"{done}: {name_labels(plan.groups)}{'; and of others' if plan.single else ''}" if plan.groups else done
    notes = (*plan.notes, RUNS_STAY, *tables)
    return QueueChange(words, jobs=describe_jobs(plan.single), notes=notes, groups=plan.groups)


def _clear_planned(plan: ClearPlan) -> None:
    with open_queue() as queue:
        now = _plan(queue, plan.words)
        if {job.id for job in now.jobs} != {job.id for job in plan.jobs} or now.groups != plan.groups:
            raise UsageError("other jobs would be taken out by now; nothing was", hint="say it again")
        for order in _build_orders(queue, plan.words):
            queue.order(order)
        with one_at_a_time(queue.directory):
            forget_all_but(queue.environments(), directory=queue.directory)
