"""What one run has other than another one: its job, its code, where it ran. Reads records only."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.agent.view.observe import observe_run
from holdfast.core.job.changes import list_changes
from holdfast.host.files.job_change import find_job
from holdfast.model import wire
from holdfast.model.errors import StorageError
from holdfast.model.job import JobSpec
from holdfast.model.origin import KeyChange, RunOrigin
from holdfast.model.record import record

SHOWN_DIGITS = 12


@record
class RunComparison:
    """What `run_id` has other than `against`: values of the job, and in words files, code, and where it ran."""

    run_id: str
    against: str
    changed: tuple[KeyChange, ...]
    others: tuple[str, ...]


def compare_runs(run_dir: str, against: str) -> RunComparison:
    """Compare the newest attempt's job of two runs, and what was recorded when each was made.

    Raises:
        StorageError: the records of one of them cannot be read.
    """
    (before, old, was), (after, new, now) = _read(against), _read(run_dir)
    changed = tuple(change for change in list_changes(before, after) if change.key != "name")
    seeds = _compare_seeds((before.seed, was), (after.seed, now))
    return RunComparison(new.run_id, old.run_id, changed, (*seeds, *_list_others(old, new)))


def _read(run_dir: str) -> tuple[JobSpec, RunOrigin, object]:
    """The job, what was recorded when the run was made, and the seed that its training told of (None: of none).

    Raises:
        StorageError: the records cannot be read.
    """
    view = observe_run(run_dir)
    try:
        job = wire.decode(JobSpec, find_job(view.record, view.change))
        return job, wire.decode(RunOrigin, view.record, wire.RUN), view.heartbeat.get("seed")
    except wire.WireError as error:
        raise StorageError(f"{run_dir}: its job cannot be read: {error}", hint=f"holdfast show {run_dir}") from error


def _compare_seeds(old: tuple[int | None, object], new: tuple[int | None, object]) -> tuple[str, ...]:
    """What is to be said of the seeds in use where those that the jobs state do not tell it.

    Of each run: the seed that its job states, and the one that its training told of.
    """
    (stated_before, before), (stated_now, now) = old, new
    if before is not None and before == now and stated_before != stated_now:
        return (f"both trained with seed {now}, whatever their jobs state",)
    if before != now and (before, now) != (stated_before, stated_now):
        was, uses = ("not told" if seed is None else seed for seed in (before, now))
        return (f"seed in use {was} -> {uses}",)
    return ()


def _list_others(old: RunOrigin, new: RunOrigin) -> Iterator[str]:
    before, after = (
        {f"{file.role} {file.source}": file.sha256 for file in origin.snapshot.files} for origin in (old, new)
    )
    for name in dict.fromkeys([*before, *after]):
        if name in before and name in after:
            if before[name] != after[name]:
                yield f"{name} is another one"
        else:
            yield f"{name} is recorded of {new.run_id if name in after else old.run_id} alone"
    for what, was, now in (
        ("commit", _name_commit(old), _name_commit(new)),
        ("code sent", _name_tree(old), _name_tree(new)),
        ("host", old.host, new.host),
        ("python", old.python, new.python),
        ("holdfast", old.version, new.version),
    ):
        if was != now:
            yield f"{what} {was or '-'} -> {now or '-'}"


def _name_commit(origin: RunOrigin) -> str:
    """What git said, at the desk where the code was sent from one."""
    git = origin.snapshot.git if origin.code is None else origin.code
    return f"{git.commit[:SHOWN_DIGITS]}{', with changes' if git.dirty else ''}" if git.commit else ""


def _name_tree(origin: RunOrigin) -> str:
    return "" if origin.code is None else origin.code.tree[:SHOWN_DIGITS]
