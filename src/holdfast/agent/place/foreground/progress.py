"""Whether a run that is warned again and again gets anywhere: one that saves nothing would be put back for ever.

As the queue has it (`core.queue.requeue`), an attempt got further when its newest durable step, else its last step, is
higher than that of any before. A job may tell no steps: then anything counts that was written since and is no log.
"""

from __future__ import annotations

import contextlib
import os
import stat
from itertools import islice
from typing import TYPE_CHECKING

from holdfast.agent.view.observe import observe_run
from holdfast.agent.view.retries import read_reached_step
from holdfast.core.job.scratch import is_checkpoint
from holdfast.core.queue.requeue import MOST_ATTEMPTS_READ, MOST_IN_A_ROW
from holdfast.core.run.stop_record import PLACE_END
from holdfast.host.clock import monotonic_s
from holdfast.model import wire
from holdfast.model.job import JobSpec
from holdfast.model.run import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from holdfast.agent.view.run_view import RunView

MOST_ENTRIES, WITHIN_S = 20_000, 10.0
"""Entries that are looked at below one directory, and how long that may take in all: beyond it nobody can tell."""
LOGS = (
    *(".log", ".out", ".err", ".txt", ".csv", ".jsonl", ".pyc", ".yaml", ".yml", ".toml", ".cfg", ".ini"),
    *(".png", ".jpg", ".svg", ".html", ".md"),
)
TRACKERS = ("wandb", "mlruns")
"""Endings of files, and directories, that are written without anything being saved; tensorboard's files too."""

TAKEN = "Slurm gives its nodes to another job"
"""The detail of a warning that was sent for a preemption."""


def was_warned(view: RunView) -> bool:
    """Whether an attempt ended only because of what it was warned of, and not because somebody wanted that.

    By the warning ahead of its time limit or a preemption, or by the training library, which leaves by itself where a
    save would not fit any more.
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
    if len(row) < MOST_IN_A_ROW or not all(_reached_its_limit(observe_run(view.run_dir, attempt=one)) for one in row):
        return ""
    before = [number for number in view.attempts if asked_for <= number < row[0]][-MOST_ATTEMPTS_READ:]
    best, reached = (_read_highest_step(view.run_dir, numbers) for numbers in (before, row))
    if reached > best or _has_saved(view, row[0]):
        return ""
    return (
        f"{len(row)} attempts in a row were warned and got no further: no higher step was told, and nothing but logs "
        "written into the run directory, the working directory, the mirror or disk.paths; once that is mended: "
        f"holdfast restart {view.run_id}"
    )


def _reached_its_limit(view: RunView) -> bool:
    """Whether an attempt was warned of its time limit; of a preemption it can do nothing about."""
    return was_warned(view) and not (view.end and view.end.request and view.end.request.detail == TAKEN)


def _read_highest_step(run_dir: str, attempts: Iterable[int]) -> int:
    return max((read_reached_step(run_dir, number) or 0 for number in attempts), default=0)


def _has_saved(view: RunView, first: int) -> bool:
    """Whether anything was saved since an attempt was taken up, or that cannot be told."""
    try:
        job = wire.decode(JobSpec, view.spec)
        since_ns = os.stat(f"{wire.attempt_dir(view.run_dir, first)}/{wire.NATIVE}").st_mtime_ns
    except (OSError, wire.WireError):
        return True
    mirror = job.checkpoints.mirror
    places = [*job.disk.paths, *(f"{view.run_dir}/{name}" for name in (wire.CHECKPOINTS, wire.ARTIFACTS))]
    places += [] if mirror is None else [os.path.join(mirror, view.run_id)]
    until_s = monotonic_s() + WITHIN_S
    return (
        any(_has_newer(directory, since_ns, until_s, bool) for directory in places)
        or (job.workdir != view.run_dir and _has_newer(job.workdir, since_ns, until_s, _is_no_log))
        or _has_newer(view.run_dir, since_ns, until_s, is_checkpoint)
    )


def _is_no_log(name: str) -> bool:
    return not name.endswith(LOGS) and "tfevents" not in name


def _has_newer(start: str, since_ns: int, until_s: float, is_meant: Callable[[str], bool]) -> bool:
    """Whether a file below that is not hidden, and has a name that is meant, was written since, or may have been.

    Links are followed: a cluster's working directory often has one to where there is room.
    """
    pending, seen, left = [start], set(), MOST_ENTRIES
    while pending:
        directory = pending.pop()
        try:
            with os.scandir(directory) as found:
                entries = list(islice(found, left))
            left -= len(entries)
            if left <= 0 or monotonic_s() > until_s:
                return True
            for entry, facts in _look(entries, is_start=directory == start):
                if not stat.S_ISDIR(facts.st_mode):
                    if is_meant(entry.name) and facts.st_mtime_ns > since_ns:
                        return True
                elif (facts.st_dev, facts.st_ino) not in seen:
                    seen.add((facts.st_dev, facts.st_ino))
                    pending.append(entry.path)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError:
            return True
    return False


def _look(entries: list[os.DirEntry[str]], *, is_start: bool) -> Iterator[tuple[os.DirEntry[str], os.stat_result]]:
    """What the entries of a directory are, or lead to; of a run's directory not its records of attempts."""
    is_run = any(entry.name == wire.RUN for entry in entries)
    if is_run and not is_start:
        return  # below the working directory: of this run it is looked at by itself, and others tell nothing
    for entry in entries:
        if not (entry.name.startswith(".") or entry.name in TRACKERS or (is_run and entry.name == wire.ATTEMPTS)):
            with contextlib.suppress(FileNotFoundError):
                yield entry, entry.stat()
