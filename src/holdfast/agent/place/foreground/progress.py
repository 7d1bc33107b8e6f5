"""Whether a run that is warned again and again gets anywhere: one that saves nothing would be put back for ever.

As the queue has it (`core.queue.requeue`), an attempt got further when its newest durable step, else its last step, is
higher than that of any before. A job may tell no steps: then a checkpoint counts that was written since.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.agent.view.observe import observe_run
from holdfast.agent.view.retries import read_reached_step
from holdfast.core.job.scratch import is_checkpoint
from holdfast.core.queue.requeue import MOST_IN_A_ROW
from holdfast.core.run.stop_record import PLACE_END
from holdfast.model import wire
from holdfast.model.job import JobSpec
from holdfast.model.run import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from holdfast.agent.view.run_view import RunView

MOST_ENTRIES = 20_000
"""Files that are looked at below one directory; where there are more, one of them may be a checkpoint."""
MOST_ATTEMPTS_READ = 20


def was_warned(view: RunView) -> bool:
    """Whether an attempt ended only because of the time limit, and not because somebody wanted that.

    By the warning ahead of it, or by the training library, which leaves by itself where a save would not fit any more.
    """
    end = view.end
    if not view.over or end is None or end.outcome is not Outcome.PREEMPTED:
        return False
    if end.request is None:
        return end.stop is not None and (end.stop.why, end.stop.detail) == PLACE_END
    return end.request.warned


def describe_standstill(view: RunView) -> str:
    """Why a run that was warned is not begun again by itself, with what to do; empty where it may.

    Its newest attempts were all warned and none got further, since the last time that somebody asked for one.
    """
    asked_for = 1 if view.state is None else view.state.generation
    row = [number for number in view.attempts if asked_for <= number <= view.attempt][-MOST_IN_A_ROW:]
    if len(row) < MOST_IN_A_ROW or not all(was_warned(observe_run(view.run_dir, attempt=one)) for one in row):
        return ""
    before = [number for number in view.attempts if number < row[0]][-MOST_ATTEMPTS_READ:]
    best, reached = (_read_highest_step(view.run_dir, numbers) for numbers in (before, row))
    if reached > best or _has_saved(view, row[0]):
        return ""
    return (
        f"{len(row)} attempts in a row were warned and got no further: no higher step was told, and no checkpoint "
        "written into the run directory, the working directory, the mirror or disk.paths; once that is mended: "
        f"holdfast restart {view.run_id}"
    )


def _read_highest_step(run_dir: str, attempts: Iterable[int]) -> int:
    return max((read_reached_step(run_dir, number) or 0 for number in attempts), default=0)


def _has_saved(view: RunView, first: int) -> bool:
    """Whether a checkpoint was written since an attempt was taken up, or that cannot be told."""
    try:
        job = wire.decode(JobSpec, view.spec)
        since_ns = os.stat(f"{wire.attempt_dir(view.run_dir, first)}/{wire.NATIVE}").st_mtime_ns
    except (OSError, wire.WireError):
        return True
    mirror = job.checkpoints.mirror
    meant = [f"{view.run_dir}/{wire.CHECKPOINTS}", *([] if mirror is None else [os.path.join(mirror, view.run_id)])]
    if any(_has_newer(directory, since_ns) for directory in meant):
        return True
    others = {view.run_dir, job.workdir, *job.disk.paths}
    return any(_has_newer(directory, since_ns, is_meant=is_checkpoint) for directory in others)


def _has_newer(directory: str, since_ns: int, *, is_meant: Callable[[str], bool] = bool) -> bool:
    """Whether something below that is not hidden, and has a name that is meant, was written since, or may have been."""
    pending, left = [directory], MOST_ENTRIES
    while pending and left > 0:
        try:
            entries = list(os.scandir(pending.pop()))
        except OSError:
            continue
        for entry in entries:
            left -= 1
            if entry.name.startswith(".") or entry.name == wire.ATTEMPTS:
                continue
            try:
                if is_meant(entry.name) and entry.stat(follow_symlinks=False).st_mtime_ns > since_ns:
                    return True
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
            except OSError:
                continue
    return left <= 0
