"""``holdfast submit --on PLACE`` where a scheduler has the queue: handed in as one job of that, and come back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.cli.placed.wait import wait_placed
from holdfast.cli.run.there import order, report
from holdfast.cli.run.wish import RunWish
from holdfast.core.queue.submit_options import SubmitOptions
from holdfast.core.slurm.arrays import refuse_queue_words
from holdfast.model.errors import UsageError
from holdfast.model.record import replace

if TYPE_CHECKING:
    from holdfast.cli.placed.wish import JobsWish
    from holdfast.model.job import JobSpec
    from holdfast.model.place import Place


def hand_in(spec: JobSpec, place: Place, wishes: SubmitOptions, wish: JobsWish) -> int:
    """Hand the job in, or show what that would be; the exit code.

    Raises:
        UsageError: something is asked for that only a queue of our own has.
        HoldfastError: it was not taken.
    """
    _refuse_many(place.name, wishes)
    refuse_queue_words(replace(wishes, needs=()), spec)
    asked = RunWish(None, True, 0.0, None, wish.dry_run, wish.as_json, place.name, None, wish.send_code)
    answer = order(spec, replace(asked, after=wishes.needs))
    if answer is None:
        return 0
    if not (wish.wait and wish.as_json):
        report(answer, as_json=wish.as_json)
    if not wish.wait:
        return 0
    return wait_placed({place.name: [answer.ref.run_id]}, deadline=None, quiet=False, as_json=wish.as_json)


def _refuse_many(place: str, wishes: SubmitOptions) -> None:
    """Refuse what is for many jobs: Slurm has arrays for them."""
    sweep = f"holdfast sweep submit --on {place}, or submit --lines, makes arrays of many jobs"
    if wishes.max_parallel is not None:
        raise UsageError("--max-parallel is for the jobs of a group", hint=f"{sweep}, with that as their limit")
    if wishes.group != SubmitOptions().group:
        raise UsageError("--group: Slurm's queue has no groups", hint=f"leave it out; {sweep}")
    if wishes.shared:
        raise UsageError("--shared is for jobs of a queue of holdfast's own", hint="leave it out")
    if groups := [name for name in wishes.needs if name.endswith("/")]:
        hint = "name its runs, or wait for the array: --slurm dependency=afterok:JOB"
        raise UsageError(f"--after {groups[0]}: a job of Slurm waits for runs", hint=hint)
