"""Handing in: from a resolved job and a person's wishes to cells that are committed, and a worker that starts them."""

from __future__ import annotations

import fcntl
import os
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from holdfast.core.redact import redact_argv
from holdfast.model import wire
from holdfast.model.errors import StorageError, UsageError
from holdfast.model.ids import clean_name
from holdfast.model.queue import DEFAULT_GROUP, GroupKind, IfChanged, NewCell, Submission

from .hashing import CellHasher
from .opening import describe_caller, start_worker
from .refusing import check_cells, check_neighbours, hash_files

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from holdfast.model.job import JobSpec
    from holdfast.model.queue import Cell
    from holdfast.store.queue import Queue

LOCK = "submit.lock"
STDIN = "-"
MOST_NAMES = 100_000


@dataclass(frozen=True, slots=True)
class Wishes:
    """What is wanted of a submission beside its job. `named`: the name was said, so it is not made unique.

    `shared` are paths to which cells may write together.
    """

    group: str = DEFAULT_GROUP
    priority: int = 0
    needs: tuple[str, ...] = ()
    not_before: float | None = None
    max_parallel: int | None = None
    if_changed: IfChanged = IfChanged.RUN
    hold_after: int = 0
    paused: bool = False
    lean: bool = False
    claims: str | None = None
    named: bool = False
    shared: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HandedIn:
    """What was taken: the cells as they are now, how many of them were known before, whether a worker was started."""

    group: str
    cells: tuple[Cell, ...]
    known: int
    started: bool


def bind_to_claims(spec: JobSpec, wishes: Wishes) -> JobSpec:
    """The job as boxes that share its cells may run it: it dies with its supervisor, which holds the claim.

    Raises:
        UsageError: lean cells have no supervisor that could hold a claim.
    """
    if wishes.claims is None:
        return spec
    if wishes.lean:
        raise UsageError("--lean and --claims: a lean cell has no supervisor to hold a claim", hint="leave one out")
    from holdfast.model.job import Orphan

    return replace(spec, on_supervisor_death=Orphan.KILL)


def make_cell(spec: JobSpec, wishes: Wishes, name: str) -> NewCell:
    """The one cell of a job by itself."""
    return NewCell(
        name=name,
        needs=wishes.needs,
        priority=wishes.priority,
        not_before=wishes.not_before,
        expected_s=spec.expected_s,
        sha256=CellHasher(wire.encode(spec)).hash({}),
    )


def read_commands(path: str, spec: JobSpec, wishes: Wishes) -> tuple[NewCell, ...]:
    """The cells of a file of commands, over the job that the options describe.

    Raises:
        JobFileError: the file has mistakes.
    """
    from holdfast.cli.sweeping.lines import read_lines, to_cells

    cells = to_cells(read_lines(path), wire.encode(spec))
    return tuple(
        replace(
            cell,
            needs=(*cell.needs, *wishes.needs),
            priority=cell.priority or wishes.priority,
            not_before=wishes.not_before,
            expected_s=spec.expected_s if cell.expected_s is None else cell.expected_s,
        )
        for cell in cells
    )


def build_submission(
    spec: JobSpec, cells: Sequence[NewCell], wishes: Wishes, *, runs_root: str, source: str | None = None
) -> Submission:
    """Everything that is committed, but for the environment, which lies with the queue."""
    from holdfast.host.clock import utc_now

    return Submission(
        group=wishes.group,
        base=wire.encode(spec),
        cells=tuple(cells),
        runs_root=runs_root,
        cwd=os.getcwd(),
        argv=redact_argv(sys.argv)[0],
        by=describe_caller(),
        at=utc_now(),
        kind=GroupKind.LINES if source is not None else GroupKind.PLAIN,
        files=hash_files(spec, cells),
        max_parallel=wishes.max_parallel,
        if_changed=wishes.if_changed,
        lean=wishes.lean,
        claims=wishes.claims,
        source=source,
        hold_after=wishes.hold_after,
        paused=wishes.paused,
    )


def hand_in(
    queue: Queue, spec: JobSpec, submission: Submission, *, environ: Mapping[str, str], wishes: Wishes
) -> tuple[HandedIn, list[str]]:
    """Refuse what cannot work, commit the rest, and see that a worker is there; also sentences for people.

    Raises:
        UsageError: something in it cannot work; nothing was taken.
        NotPermitted: the directory of claims could be written by others.
        StorageError: it could not be written; nothing was taken.
    """
    from holdfast.agent.queueing import environment

    notes = check_cells(spec, submission.cells, environ, lean=submission.lean, shared=wishes.shared)
    if submission.claims is not None:
        from holdfast.host.claims import open_directory

        open_directory(submission.claims)
    with one_at_a_time(queue.directory):
        name = environment.store(environ, directory=queue.directory)
        submission = replace(submission, environment=name)
        before = {group: sum(numbers.values()) for group, numbers in queue.counts().items()}
        if not wishes.named and submission.kind is GroupKind.PLAIN:
            submission = _make_unique(queue, submission)
        check_neighbours(queue, submission, shared=wishes.shared)
        ids = queue.submit(submission)
        added = sum(queue.counts().get(submission.group, {}).values()) - before.get(submission.group, 0)
    started = start_worker(queue)
    cells = _look_up(queue, submission, ids)
    return HandedIn(submission.group, cells, len(submission.cells) - added, started), notes


def _look_up(queue: Queue, submission: Submission, ids: Sequence[int]) -> tuple[Cell, ...]:
    if len(ids) == 1:
        cell = submission.cells[0]
        return queue.find([f"{submission.group}/{cell.name}"])
    wanted = set(ids)
    return tuple(cell for cell in queue.cells(group=submission.group) if cell.id in wanted)


@contextmanager
def one_at_a_time(directory: str) -> Iterator[None]:
    """Keep two submitters from finding the same name free, and an environment from being forgotten before its use."""
    path = f"{directory}/{LOCK}"
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror}", hint="see df and the queue directory's owner") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _make_unique(queue: Queue, submission: Submission) -> Submission:
    """The same with a name that is free in the group: ``train``, ``train-2``, ``train-3``."""
    (cell,) = submission.cells
    taken = {known.name for known in queue.cells(group=submission.group)}
    name = cell.name
    for number in range(2, MOST_NAMES):
        if name not in taken:
            break
        name = f"{cell.name}-{number}"
    return replace(submission, cells=(replace(cell, name=name),))


def choose_group(text: str | None, lines: str | None) -> str:
    """The group: as said, else the default one, else that of the file of commands.

    Raises:
        UsageError: it is no name.
    """
    if text is None:
        if lines is None:
            return DEFAULT_GROUP
        # What a shell's <(...) or a pipe is called says nothing about the commands.
        nameless = lines == STDIN or lines.startswith(("/dev/", "/proc/"))
        return "lines" if nameless else clean_name(os.path.splitext(os.path.basename(lines))[0])
    name = text.rstrip("/")
    if not name or name != clean_name(name):
        raise UsageError(f"--group: {text!r} is no name", hint=f"write it like {clean_name(name) or 'night'}")
    return name


def split_needs(after: Sequence[str]) -> tuple[str, ...]:
    """The names in ``--after a,b --after c``."""
    return tuple(dict.fromkeys(word.strip() for text in after for word in text.split(",") if word.strip()))


def count_startable(queue: Queue, cells: Sequence[Cell]) -> int:
    """How many of these nothing but room keeps from starting."""
    from holdfast.model.queue import CellState

    groups, settings, now = queue.groups(), queue.settings(), time.time()
    if settings.paused or settings.draining:
        return 0
    return sum(
        cell.state is CellState.QUEUED
        and (cell.not_before is None or cell.not_before <= now)
        and not (groups[cell.group].paused or groups[cell.group].held)
        for cell in cells
    )
