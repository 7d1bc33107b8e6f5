"""``holdfast wait``: from names to what is waited for, and in the end what is missing and how to get it."""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING

from holdfast.agent.queue.open import list_notices, look_at_queue
from holdfast.agent.queue.view.estimate import estimate_jobs
from holdfast.agent.view.live.attempt import describe_doubt
from holdfast.agent.view.runs.roots import list_roots
from holdfast.agent.view.runs.sweeps import FoundSweep, find_sweep
from holdfast.core.queue.words import name_labels
from holdfast.model.errors import EXIT_TIMED_OUT, HoldfastError, NoSuchRun, UsageError
from holdfast.model.ids import is_run_id
from holdfast.model.queue import JobState
from holdfast.model.record import record, replace

from .missing import MissingJob, describe_missing, describe_waiting, list_missing
from .roster import AwaitedJobs, WaitState
from .run import describe_gone, wait_for_run
from .wait import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.model.queue import QueuedJob
    from holdfast.store.queue.queue import Queue

    Tell = Callable[[WaitState, Callable[[], str]], None]

EXIT_INCOMPLETE = 1
MOST_NAMED = 20
"""Jobs that a command names; more are asked for by their group."""
MOST_LOOKED_AT = 2000


@record
class WaitedRun:
    """A run that was waited for. `gone`: nobody is left of it, so its end is not on record; this says what to do.

    `warnings` are what was found at its end besides, `doubt` what speaks against its success (empty: nothing).
    `timed_out`: the time was up before it ended; `exit_code` is then that of the wait.
    """

    run_id: str
    condition: str
    exit_code: int
    note: str
    gone: str
    warnings: tuple[str, ...] = ()
    doubt: str = ""
    timed_out: bool = False


@record
class Waited:
    """How a wait ended: of the jobs how many are done (`summary` in words) and what is missing, and each run.

    `for_jobs`: jobs were waited for. `timed_out`: the time was up first. `stuck`: why nothing goes on by itself.
    `rerun` is the command that queues again what has failed or was cancelled (empty: nothing); `rerun_failed` and
    `rerun_cancelled` do that for each of the two: what was cancelled may not be wanted any more.
    """

    for_jobs: bool
    done: int
    total: int
    counts: dict[str, int]
    summary: str
    timed_out: bool
    stuck: str
    missing: tuple[MissingJob, ...]
    rerun: str
    runs: tuple[WaitedRun, ...]
    exit_code: int
    notes: tuple[str, ...]
    rerun_failed: str = ""
    rerun_cancelled: str = ""


@record
class AwaitedNames:
    """What the names mean: jobs of the queue, and the directories of runs, and sweeps of a scheduler, beside it."""

    roster: AwaitedJobs | None
    runs: tuple[str, ...] = ()
    sweeps: tuple[FoundSweep, ...] = ()


def wait_for_names(
    names: Sequence[str], *, deadline: float | None, find_run: Callable[[str], str], tell: Tell
) -> Waited:
    """Wait for what `names` mean; without any for the whole queue.

    Args:
        names: Jobs, groups and runs.
        deadline: On the monotonic clock; None: as long as it takes.
        find_run: Answers the directory of the run that a name means.
        tell: Hears each look at the jobs; what it is given beside it answers, in words, how long they take still.

    Raises:
        NoSuchRun: a name means nothing, or the queue is empty.
    """
    if names and all(_is_surely_run(name) for name in names):
        # Its own directory has all of it: a queue that cannot be opened does not matter.
        return _wait_for_runs([find_run(name) for name in names], deadline)
    with look_at_queue() as queue:
        notes = list_notices(queue)
        wanted = resolve(queue, names, find_run)
        seen, late = WaitState({}), False
        missing: list[QueuedJob] = []
        described: list[MissingJob] = []
        codes = []
        if wanted.roster is not None:
            roster = wanted.roster
            seen, late = wait_for(
                queue, roster, deadline=deadline, tell=lambda look: tell(look, lambda: _estimate(queue, roster, look))
            )
            missing = list_missing(queue, roster)
            described = describe_waiting(queue, missing)
            is_done = not missing and seen.total and seen.done >= seen.total
            codes.append(EXIT_TIMED_OUT if late else 0 if is_done else EXIT_INCOMPLETE)
            notes += _describe_removed(queue, roster)
    # With the queue closed: where there was none, nothing of it is left behind by a wait that is killed.
    again = [_list_commands(missing)]
    for sweep in wanted.sweeps:
        # What they need a desk that is no Linux has not, and it has none of them.
        from holdfast.agent.queue.arrays.wait import wait_for_sweep  # lazy: for sweeps of a scheduler alone

        ended = wait_for_sweep(sweep, deadline=deadline, tell=lambda look: tell(look, str))
        late = late or ended.late
        is_done = ended.seen.total and not ended.missing
        codes.append(EXIT_TIMED_OUT if ended.late else 0 if is_done else EXIT_INCOMPLETE)
        counts = {state: seen.counts.get(state, 0) + ended.seen.counts.get(state, 0) for state in JobState}
        seen = replace(seen, counts={state: number for state, number in counts.items() if number})
        missing += ended.missing
        described += map(describe_missing, ended.missing)
        again.append(ended.commands)
    try:
        runs = [_wait_for_run(run_dir, deadline) for run_dir in wanted.runs]
    except HoldfastError as error:
        if wanted.roster is not None:
            error.hint = "\n".join(filter(None, (error.hint, f"of the jobs: {seen.describe()}")))
        raise
    codes += [run.exit_code for run in runs]
    whole, failed, cancelled = (" && ".join(filter(None, each)) for each in zip(*again, strict=True))
    return Waited(
        for_jobs=wanted.roster is not None or bool(wanted.sweeps),
        done=seen.done,
        total=seen.total,
        counts={state.value: number for state, number in seen.counts.items()},
        summary=seen.describe(),
        timed_out=late or any(run.timed_out for run in runs),
        stuck=seen.stuck,
        missing=tuple(described),
        rerun=whole,
        runs=tuple(runs),
        exit_code=_join(codes, passes=len(codes) == 1),
        notes=tuple(notes),
        rerun_failed=failed,
        rerun_cancelled=cancelled,
    )


def _describe_removed(queue: Queue, roster: AwaitedJobs) -> list[str]:
    """That runs of jobs that were done are not there any more: the queue's word is then all there is."""
    done = [job for job in queue.jobs(states=(JobState.DONE,)) if job.run_dir is not None and roster.holds(job)]
    gone = [job.label for job in done[:MOST_LOOKED_AT] if not os.path.isdir(str(job.run_dir))]
    if not gone:
        return []
    who = "the run of 1 job that was done is" if len(gone) == 1 else f"the runs of {len(gone)} jobs that were done are"
    return [f"{who} not there any more ({name_labels(gone)}): holdfast queue check says what is proven"]


def _is_surely_run(name: str) -> bool:
    return is_run_id(name) or os.path.isabs(name)


def _wait_for_runs(run_dirs: Sequence[str], deadline: float | None) -> Waited:
    runs = tuple(_wait_for_run(run_dir, deadline) for run_dir in run_dirs)
    code = _join([run.exit_code for run in runs], passes=len(runs) == 1)
    return Waited(
        for_jobs=False,
        done=0,
        total=0,
        counts={},
        summary=WaitState({}).describe(),
        timed_out=any(run.timed_out for run in runs),
        stuck="",
        missing=(),
        rerun="",
        runs=runs,
        exit_code=code,
        notes=(),
    )


def resolve(queue: Queue, names: Sequence[str], find_run: Callable[[str], str]) -> AwaitedNames:
    """What is meant. A run id is a run; everything else is a group or a job first, then a run.

    Raises:
        NoSuchRun: it is none of them.
    """
    if not names:
        if not any(sum(numbers.values()) for numbers in queue.counts().values()):
            hint = "runs and sweeps are waited for by their names: `holdfast ls`; holdfast submit hands something in"
            raise NoSuchRun("there is nothing in the queue", hint=hint)
        return AwaitedNames(AwaitedJobs(everything=True))
    known, groups, labels, runs, sweeps = queue.groups(), set(), [], [], []
    for name in names:
        if name.rstrip("/") in known and (name.endswith("/") or not _is_job(queue, name)):
            groups.add(name.rstrip("/"))
            continue
        if not _is_surely_run(name) and (sweep := find_sweep(name, list_roots())) is not None:
            sweeps.append(sweep)
            continue
        try:
            if _is_surely_run(name):
                raise UsageError(name)
            labels += [job.label for job in queue.find([name])]
        except UsageError as error:
            runs.append(_find_run(name, error, find_run))
    roster = AwaitedJobs(frozenset(groups), tuple(labels)) if groups or labels else None
    return AwaitedNames(roster, tuple(runs), tuple(sweeps))


def _is_job(queue: Queue, name: str) -> bool:
    try:
        return any(job.label == name for job in queue.find([name]))
    except UsageError:
        return False


def _find_run(name: str, not_a_job: UsageError, find_run: Callable[[str], str]) -> str:
    try:
        return find_run(name)
    except NoSuchRun as error:
        if _is_surely_run(name):
            raise
        hint = f"{not_a_job.hint.rstrip('.')}, `holdfast ls` the runs" if not_a_job.hint else error.hint
        raise NoSuchRun(f"no job, group or run answers to {name!r}", hint=hint) from error


def _estimate(queue: Queue, roster: AwaitedJobs, seen: WaitState) -> str:
    groups = (None,) if roster.everything else roster.groups
    times = [moment for group in groups for moment in queue.start_times(group)]
    estimate = estimate_jobs(queue, seen.counts, [job for job in queue.active() if roster.holds(job)], times)
    return "" if estimate is None else estimate.words


def _wait_for_run(run_dir: str, deadline: float | None) -> WaitedRun:
    view, code = wait_for_run(run_dir, deadline=deadline)
    gone = describe_gone(view) if view.vanished else ""
    return WaitedRun(
        run_id=view.run_id,
        condition=view.condition,
        exit_code=EXIT_TIMED_OUT if code is None else code,
        note=view.note,
        gone=gone,
        warnings=() if view.end is None else view.end.warnings,
        doubt=describe_doubt(view),
        timed_out=code is None,
    )


def _join(codes: Sequence[int], *, passes: bool) -> int:
    if passes or not any(codes):
        return codes[0] if passes else 0
    return EXIT_TIMED_OUT if EXIT_TIMED_OUT in codes else EXIT_INCOMPLETE


def _list_commands(missing: Sequence[QueuedJob]) -> tuple[str, str, str]:
    """The command for all of them, for those alone that were not cancelled, and for those that were."""
    cancelled = [job for job in missing if job.state is JobState.CANCELLED]
    failed = [job for job in missing if job.state is not JobState.CANCELLED]
    return rerun_command(missing), rerun_command(failed), rerun_command(cancelled)


def rerun_command(missing: Sequence[QueuedJob]) -> str:
    """The command that queues again what has failed or was cancelled; empty when there is nothing of that.

    Many jobs of one group are named by the group: ten thousand names are no command. Without cancelled ones that is
    the same jobs, except for those of the group that are not waited for.
    """
    again = [job for job in missing if job.state in (JobState.FAILED, JobState.CANCELLED)]
    groups = {job.group for job in again}
    if len(again) > MOST_NAMED and len(groups) == 1:
        failed = all(job.state is JobState.FAILED for job in again)
        return f"holdfast queue retry {shlex.quote(f'{groups.pop()}/')}" + (" --failed" if failed else "")
    return f"holdfast queue retry {shlex.join(job.label for job in again)}" if again else ""
