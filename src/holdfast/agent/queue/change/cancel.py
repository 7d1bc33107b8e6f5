"""Taking jobs out of the queue: planned first, so that a person can be asked, then done."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.agent.caller import describe_caller
from holdfast.agent.control.act import generation_of
from holdfast.agent.control.stop import ask_stop
from holdfast.agent.queue.arrays.choose import choose_sweep
from holdfast.agent.queue.arrays.look import look_at_jobs, require_sweep
from holdfast.agent.queue.arrays.sweep import open_arrays
from holdfast.agent.queue.open import build_order, list_notices, open_queue
from holdfast.agent.requests import write_request
from holdfast.agent.view import observe
from holdfast.agent.view.retries import is_followed
from holdfast.agent.view.runs.roots import list_roots
from holdfast.agent.view.runs.sweeps import find_sweep
from holdfast.core.queue.words import SHOWN_LABELS, count_jobs, name_jobs, name_labels
from holdfast.core.slurm.arrays import name_rerun
from holdfast.host import clock
from holdfast.model.errors import HoldfastError, UsageError
from holdfast.model.queue import ACTIVE_STATES, WAITING_STATES, JobState, OrderVerb, QueuedJob
from holdfast.model.record import record, replace
from holdfast.model.run import RequestKind, RunRequest

from .change import QueueChange, describe_jobs

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_WAITING = 3
"""Jobs that are named which wait for what was cancelled."""


@record
class CancelPlan:
    """What would be cancelled: `jobs`, of which the runs of `active` would be stopped.

    `question` is asked before (empty: nobody needs to be asked), `refusal` said where nobody can be. `words` named
    them, `notes` say what is left alone. `scheduled`: they are jobs of a sweep that a scheduler runs.
    """

    words: tuple[str, ...]
    jobs: tuple[QueuedJob, ...]
    active: tuple[QueuedJob, ...]
    question: str
    refusal: str
    notes: tuple[str, ...]
    scheduled: bool = False


def plan_cancel(words: Sequence[str], *, running: bool) -> CancelPlan:
    """What these words name that can be taken out; what is at work only with `running`.

    Raises:
        UsageError: one of them names nothing.
    """
    sweep = choose_sweep(words[0]) if len(words) == 1 else None
    found: Sequence[QueuedJob]
    notes: list[str] = []
    if sweep is not None:
        found = [look.job for look in look_at_jobs(sweep, require_sweep(sweep))]
    else:
        with open_queue() as queue:
            try:
                found = queue.find(words)
            except UsageError as error:
                if any(find_sweep(word.partition("/")[0], list_roots()) for word in words):
                    error.hint = "one sweep of Slurm at a time: SWEEP/; a job of it is stopped as a run: holdfast stop"
                raise
            notes = list_notices(queue)
    waiting = [job for job in found if job.state in WAITING_STATES or job.state is JobState.ELSEWHERE]
    active = [job for job in found if job.state in ACTIVE_STATES]
    closed = len(found) - len(waiting) - len(active)
    chosen = [*waiting, *active] if running else waiting
    if closed:
        notes.append(f"left alone, ended before: {count_jobs(closed)}")
    if active and not running:
        notes.append(
            f"left at work: {name_jobs(active)}; to stop them too: --running (and --yes where there is no terminal)"
        )
    stopped = active if running else []
    runs = _say_running(len(stopped), len(chosen))
    asks = bool(stopped) or len(chosen) > 1 or len(words) > 1
    return CancelPlan(
        words=tuple(words),
        jobs=tuple(chosen),
        active=tuple(stopped),
        question=f"Cancel {count_jobs(len(chosen))} ({name_jobs(chosen)}){runs and f'{runs} will be stopped'}?"
        if chosen and asks
        else "",
        refusal=f"nothing was cancelled, {count_jobs(len(chosen))} would be{runs and f'{runs} would be stopped'}",
        notes=tuple(notes),
        scheduled=sweep is not None,
    )


def _say_running(running: int, chosen: int) -> str:
    """Which of the chosen jobs are at work, as the beginning of a clause; empty where none is."""
    if not running:
        return ""
    if chosen == 1:
        return "; it runs and"
    return f"; {'all' if running == chosen else running} of them {'runs' if running == 1 else 'run'} and"


def cancel(plan: CancelPlan, *, now: bool) -> QueueChange:
    """Take the planned jobs out, and stop the runs of those at work: with `now` without their grace."""
    chosen, notes = plan.jobs, list(plan.notes)
    if not chosen:
        return QueueChange("nothing was cancelled", notes=plan.notes, exit_code=1)
    if plan.scheduled:
        return _cancel_scheduled(plan, notes, now=now)
    with open_queue() as queue:
        queue.order(build_order(OrderVerb.CANCEL, jobs=chosen))
        notes += _stop_runs(plan.active, now=now)
        after = queue.find([job.label for job in chosen])
        waiting = [job.label for job in queue.waiting_for([job.id for job in chosen])]
    stopping = [job for job in after if job.state in ACTIVE_STATES]
    if stopping:
        grace = "" if now else ", with their grace"
        notes.append(f"asked to stop{grace}: {name_jobs(stopping)}; `holdfast queue ls` shows them")
    if waiting:
        wait, do = ("waits", "does") if len(waiting) == 1 else ("wait", "do")
        what = "it" if len(chosen) == 1 else "what was cancelled"
        notes.append(f"{name_labels(waiting, MOST_WAITING)} {wait} for {what}, and {do} not start without it")
    # More than a few are named as they were here, which also tries those of them again that failed.
    names = [job.label for job in chosen] if len(chosen) <= SHOWN_LABELS else plan.words
    them = "it" if len(chosen) == 1 else "them"
    # What still stops cannot be queued yet.
    first = f" once {'it has' if len(chosen) == 1 else 'they have'} ended (holdfast wait {' '.join(names)})"
    notes.append(f"take {them} back{first if stopping else ''}: holdfast queue retry {' '.join(names)}")
    return QueueChange(_word(len(stopping), len(after)), jobs=describe_jobs(after), notes=tuple(notes))


def _word(stopping: int, jobs: int) -> str:
    """What was done to these jobs, of which some still stop."""
    if not stopping:
        return "cancelled"
    return "asked to stop" if stopping == jobs else "cancelled or asked to stop"


def _cancel_scheduled(plan: CancelPlan, notes: list[str], *, now: bool) -> QueueChange:
    """Record at every job that it is to stop, then have those that wait taken out of Slurm; others see it themselves.

    Raises:
        PlaceError: Slurm does not answer; the same command goes on.
        HoldfastError: something cannot be written, or Slurm refuses.
    """
    kind = RequestKind.STOP_NOW if now else RequestKind.STOP
    for job in plan.jobs:
        view = observe.observe_run(str(job.run_dir))
        wish = RunRequest(kind, describe_caller(), clock.utc_now(), "job cancelled", generation_of(view))
        write_request(view.run_dir, wish)
    running = {job.run_id for job in plan.active}
    waiting = [job for job in plan.jobs if job.run_id not in running]
    open_arrays().cancel([str(job.run_dir) for job in waiting])
    if plan.active:
        notes.append(f"asked to stop{'' if now else ', with their grace'}: {name_jobs(plan.active)}")
    first = " once they have ended" if plan.active else ""
    notes.append(f"take them back{first}: {name_rerun(plan.jobs[0].group, everything=True)}")
    after = [*(replace(job, state=JobState.CANCELLED) for job in waiting), *plan.active]
    return QueueChange(_word(len(plan.active), len(after)), jobs=describe_jobs(after), notes=tuple(notes))


def _stop_runs(active: Sequence[QueuedJob], *, now: bool) -> list[str]:
    """Ask the runs to stop; the worker notes their end. What cannot be asked is said and hides nothing else."""
    said = []
    for job in active:
        if job.run_dir is None:
            continue
        try:
            view = observe.observe_run(job.run_dir)
            if view.attempt and not (view.over and not is_followed(view.run_dir, view.attempt)):
                ask_stop(
                    view,
                    RequestKind.STOP_NOW if now else RequestKind.STOP,
                    by=describe_caller(),
                    reason="job cancelled",
                )
        except (HoldfastError, OSError) as error:
            said.append(f"{job.label}: its run could not be asked to stop: {error}; holdfast stop {job.run_id}")
    return said
