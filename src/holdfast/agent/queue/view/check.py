"""``holdfast queue check``: the roster held against what is on disk, as a record."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.agent.queue.arrays.choose import choose_sweep
from holdfast.agent.queue.arrays.look import check_jobs
from holdfast.agent.queue.open import list_notices, look_at_queue, require_group
from holdfast.agent.queue.roster import RosterRemark, RosterReport, check_roster
from holdfast.core.queue.completion import ProofStatus
from holdfast.model.queue import JobState
from holdfast.model.record import record


@record
class CheckedJob:
    """One job of the roster: its state in the queue, where it stands by what is on disk, and what that rests on."""

    job: str
    state: JobState
    standing: ProofStatus
    why: str
    path: str | None
    run_id: str | None
    attempts: int


@record
class Checked:
    """What a look at the roster found. `counts` is by standing.

    `complete`: every job is proven done; an empty roster proves nothing. `command` re-runs what is missing; None:
    `hint` says what comes instead.
    """

    groups: tuple[str, ...]
    complete: bool
    counts: dict[str, int]
    jobs: tuple[CheckedJob, ...]
    remarks: tuple[RosterRemark, ...]
    command: str | None
    hint: str
    notes: tuple[str, ...]


def check(group: str | None = None, *, deep: bool = False) -> Checked:
    """Hold the roster of a group, without one of every group, against what is on disk. Nothing is changed.

    `deep`: the results are read whole, and compared across jobs.

    Raises:
        UsageError: there is no such group.
    """
    sweep = None if group is None else choose_sweep(group)
    if sweep is not None:
        return _describe(check_jobs(sweep, deep=deep), ())
    with look_at_queue() as queue:
        name = None if group is None else require_group(queue, group).name
        report = check_roster(queue, name, deep=deep)
        return _describe(report, list_notices(queue))


def _describe(report: RosterReport, notes: Sequence[str]) -> Checked:
    return Checked(
        groups=report.groups,
        complete=report.complete,
        counts={standing.value: number for standing, number in report.counts.items()},
        jobs=tuple(
            CheckedJob(
                item.job.label,
                item.job.state,
                item.standing,
                item.why,
                item.path or None,
                item.job.run_id,
                item.job.attempts,
            )
            for item in report.items
        ),
        remarks=report.remarks,
        command=report.command,
        hint=report.hint,
        notes=tuple(notes),
    )
