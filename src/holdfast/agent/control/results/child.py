"""The copy itself, in a child of whoever wants it: tried a few times, and ended with its parent.

The roster beside the copy is written last: a directory without it is an unfinished copy, which the next try goes on
with. A whole copy of another attempt is moved aside by one rename, never written over.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from typing import TYPE_CHECKING

from holdfast.diagnosis.storage.scratch import prune_scratch
from holdfast.host.clock import utc_now
from holdfast.host.files import files
from holdfast.host.files.copies import proven
from holdfast.host.files.copies.destination import describe_loss, describe_unread, look_at, read_destination
from holdfast.host.files.copies.proven import CopyError, SourceProblem
from holdfast.host.process import libc
from holdfast.model import wire
from holdfast.model.record import replace
from holdfast.model.results import ROSTER, Destination, ResultsRecord, count_files
from holdfast.model.run import CopyState
from holdfast.model.units import format_bytes, format_duration

from .order import DEFAULT_PATHS, describe_progress

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.host.files.copies.progress import Progress
    from holdfast.model.job import JobSpec

    from .order import CopyOrder

LONGEST_WAIT_S = 300.0
NAP_S = 0.2
LASTING = (
    *(errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP),
    *(errno.EINVAL, errno.ENAMETOOLONG, errno.EFBIG, errno.ENOTSUP, errno.ENOSYS),
)
"""What stays as it is until somebody mends it."""


def copy_results(
    order: CopyOrder,
    progress: Progress,
    parent: int,
    find_change: Callable[[], str] = lambda: "",
    *,
    is_patient: bool = True,
) -> object:
    """Copy, with pauses between the tries; the record of how it ended, as a JSON value. Dies with `parent`.

    `find_change` says, before a copy counts as one, whether a source is not what it was when it was proven. What is not
    mended by waiting (a file system that is read-only, a path that cannot be) is tried again where it `is_patient`.
    """
    libc.set_name("holdfast-copy")
    libc.set_parent_death_signal(signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # it went before that was heard of
    os.umask(order.umask)
    done, seen = order.begun, list[Destination]()
    for number in range(1, order.tries + 1):
        progress.say("")
        try:
            return wire.encode(replace(_copy_once(order, progress, seen, find_change), tries=number))
        except CopyError as error:
            done = _describe(order, progress, CopyState.FAILED, tries=number, problem=str(error))
            if isinstance(error, SourceProblem) or not (is_patient or _may_pass(error)):
                break
        if number < order.tries:
            wait_s = min(order.wait_s * 3 ** (number - 1), LONGEST_WAIT_S)
            again = f"tries again in {format_duration(wait_s)}"
            progress.say(f"try {number} of {order.tries} failed: {done.problem}; {again}")
            _pause(wait_s, progress)
    return wire.encode(done)


def _may_pass(error: CopyError) -> bool:
    cause = error.__cause__
    return not (isinstance(cause, OSError) and cause.errno in LASTING)


def read_roster(directory: str) -> ResultsRecord | None:
    """What lies in the directory of a copy, by its roster; None without one.

    Raises:
        CopyError: there is one, and it cannot be read.
    """
    path = f"{directory}/{ROSTER}"
    try:
        return wire.from_bytes(ResultsRecord, files.read_bytes(path), path)
    except FileNotFoundError:
        return None
    except (OSError, wire.WireError) as error:
        raise SourceProblem(f"{path} cannot be read ({error}), so what lies there is not touched") from error


def _copy_once(
    order: CopyOrder, progress: Progress, seen: list[Destination], find_change: Callable[[], str]
) -> ResultsRecord:
    """One try. Everything that can be refused is, before anything is made or moved."""
    target = order.begun.to
    sources, left_out = proven.survey(order.run_dir, order.paths or DEFAULT_PATHS, optional=not order.paths)
    _refuse_own(order.run_dir, target)
    above = os.path.dirname(target)
    seen += [] if seen else _read_seen(order)
    _refuse_lost_mount(above, seen)
    proven.refuse_foreign(target)
    before = read_roster(target)
    is_other = before is not None and (before.run_id, before.attempt) != (order.begun.run_id, order.begun.attempt)
    proven.check_room(sources, f"{target}.new" if is_other else target)
    proven.make_target(above)
    if before is not None and is_other:
        _move_aside(order, target, before)
        before = None
    proven.make_target(target)
    proven.refuse_foreign(target)
    known = None if before is None else {file.path: file for file in before.files}
    mended: list[str] = []
    copied = proven.copy_all(sources, target, progress, known=known, mended=mended.append)
    if changed := find_change():
        raise SourceProblem(changed)
    done = replace(_describe(order, progress, CopyState.COPIED), files=copied, left_out=tuple(left_out))
    done = replace(done, mended=tuple(mended))
    if before is None:
        try:
            files.commit(f"{target}/{ROSTER}", wire.to_bytes(done), mode=0o666 & ~order.umask)
        except OSError as error:
            raise CopyError(f"{ROSTER}: {proven.describe_error(error, target)}") from error
    return done


def _read_seen(order: CopyOrder) -> list[Destination]:
    """The mount that its place was on when the run began, if that was written down."""
    path = f"{order.run_dir}/{wire.DESTINATION}"
    try:
        found = read_destination(path, order.place)
    except OSError as error:
        raise SourceProblem(describe_unread(path, order.place, error)) from error
    return [] if found is None else [found]


def _refuse_lost_mount(directory: str, seen: list[Destination]) -> None:
    """Refuse to go on where the mount is lost that was `seen` when the run began, or by an earlier try.

    Before anything is made: it would be made on the disk that lies under it.
    """
    try:
        now = look_at(directory)
    except OSError as error:
        raise CopyError(f"{directory}: {proven.describe_error(error, directory)}") from error
    for before in seen:
        if words := describe_loss(before, now):
            raise CopyError(f"{words}; nothing was written there: mount it again")
    if now is not None:
        seen.append(now)


def _move_aside(order: CopyOrder, target: str, before: ResultsRecord) -> None:
    """A whole copy of another attempt gives way; nothing of it is removed."""
    other = "" if before.run_id == order.begun.run_id else f".{before.run_id}"
    aside = f"{target}{other}.attempt-{before.attempt}"
    try:
        os.rename(target, aside)
        files.sync_directory(os.path.dirname(target))
    except OSError as error:
        words = f"the copy of attempt {before.attempt} in {target} cannot be moved to {aside}: {error.strerror}"
        raise CopyError(words) from error


def _refuse_own(run_dir: str, target: str) -> None:
    own, there = os.path.realpath(run_dir), os.path.realpath(target)
    if there == own or there.startswith(f"{own}/"):
        raise SourceProblem(f"{target} is in the run's own directory, and would go with it")


def _describe(
    order: CopyOrder, progress: Progress, state: CopyState, *, tries: int = 1, problem: str = ""
) -> ResultsRecord:
    return replace(describe_progress(order.begun, progress), state=state, at=utc_now(), tries=tries, problem=problem)


def _pause(seconds: float, progress: Progress) -> None:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        progress.move()
        time.sleep(min(left, NAP_S))


def prune(run_dir: str, spec: JobSpec) -> str:
    """Remove declared scratch; what went, in words. Never the newest whole checkpoint of a series, nor results."""
    done = prune_scratch(run_dir, spec)
    failed = f"; {len(done.failed)} could not be removed" if done.failed else ""
    return f"{count_files(done.files)}, {format_bytes(done.freed_bytes)} removed{failed}"
