"""The arrays of a sweep as a desk can show them before anything is sent. Apart: most commands need none of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.core.slurm.arrays import MOST_ARRAY, TaskPlan, plan_arrays, plan_script
from holdfast.core.slurm.script import render_script
from holdfast.model.record import record
from holdfast.model.runs_root import sweeps_dir
from holdfast.model.slurm import SlurmRecord

from .script import find_start

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.model.place import BoxFacts


@record
class ShownArray:
    """An array as it would be handed in: how many jobs it has, how many of them at once, and its script."""

    jobs: int
    limit: int | None
    script: str


def show_arrays(
    sweep: str, tasks: Sequence[TaskPlan], native: Mapping[str, str], facts: BoxFacts | None, limit: int | None
) -> tuple[ShownArray, ...]:
    """The arrays of a sweep that is not there yet, as far as the place is known.

    Raises:
        UsageError: as of `plan_arrays`.
    """
    root, start = find_start(facts)
    slurm = None if facts is None else facts.slurm
    most = MOST_ARRAY if slurm is None or slurm.most_array is None else slurm.most_array
    found = []
    for number, plan in enumerate(plan_arrays(tasks, native, most=most, limit=limit), 1):
        directory = f"{sweeps_dir(root, 0 if facts is None else facts.uid)}/{sweep}/{number}"
        command = (*start, "slurm-task", "--array", directory)
        script = plan_script(sweep, number, directory, plan, SlurmRecord("", "", dict(native)), command)
        found.append(ShownArray(len(plan.runs), plan.limit, render_script(script)))
    return tuple(found)
