"""Removing ended runs, and nothing else.

Removed is a directory that holdfast made: directly inside a runs root, named by a run id, owned by this account, no
symbolic link, with a `run.json` and nothing of the run alive. It is first renamed out of the list in one step, then
emptied by directory descriptors that never follow a link and never leave its file system; links inside are removed as
links. An interrupted removal leaves a ``.removing-`` directory, which the next removal under that root takes along.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass

from ..host import processes
from ..model import wire
from ..model.errors import NotPermitted, StorageError, UsageError
from ..model.ids import is_run_id
from . import acting, observe

PREFIX = ".removing-"
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Candidate:
    """A run that may be removed: how many files it has, and how many bytes of disk they take."""

    run_dir: str
    run_id: str
    condition: str
    files: int
    size_bytes: int


def examine(run_dir: str, *, root: str) -> Candidate:
    """Check that a run may be removed, and measure it.

    Raises:
        UsageError: it has not ended, or is not a run of holdfast directly inside `root`.
        NotPermitted: it belongs to somebody else.
        StorageError: it is a link, leads out of the root, or spans file systems.
    """
    run_id = os.path.basename(run_dir)
    _check_place(run_dir, root)
    view = acting.settle_and_look(run_dir)
    if not view.record:
        raise UsageError(f"{run_dir} has no readable {wire.RUN}: it is not known to be a run", hint="remove it by hand")
    broken = view.state is None and not view.ended
    if not view.ended and not (broken and view.attempt == 0):
        raise UsageError(
            f"{run_id} has not ended: it is {view.condition}" + (f" ({view.note})" if view.note else ""),
            hint=f"holdfast stop {run_id}",
        )
    members = processes.find_marked(run_id)
    if members or view.supervised:
        pids = ", ".join(str(member.pid) for member in members) or "its supervisor"
        raise UsageError(f"processes of {run_id} are still there: {pids}", hint=f"holdfast show {run_id}")
    descriptor = os.open(run_dir, _DIRECTORY)
    try:
        files, size = _measure(descriptor, run_dir, os.fstat(descriptor).st_dev)
    finally:
        os.close(descriptor)
    return Candidate(run_dir, run_id, view.condition, files, size)


def remove(candidate: Candidate, *, root: str) -> None:
    """Remove a run that `examine` has passed.

    Raises:
        ResourceBusy: somebody restarts it at this moment.
        StorageError: something in it cannot be removed; what is left lies in a ``.removing-`` directory.
    """
    with acting.hold(candidate.run_dir, what="remove it"):
        if not observe.observe(candidate.run_dir).ended and observe.list_attempts(candidate.run_dir):
            raise UsageError(
                f"{candidate.run_id} was started again meanwhile", hint=f"holdfast show {candidate.run_id}"
            )
        aside = f"{PREFIX}{candidate.run_id}"
        parent = os.open(root, _DIRECTORY)
        try:
            try:
                os.rename(candidate.run_id, aside, src_dir_fd=parent, dst_dir_fd=parent)
            except OSError as error:
                raise StorageError(
                    f"{candidate.run_dir} could not be removed: {error.strerror}", hint="it is whole; see the directory"
                ) from error
            _remove_tree(parent, aside, os.path.join(root, aside))
        except OSError as error:
            raise StorageError(
                f"{candidate.run_id} could not be removed whole: {error.filename}: {error.strerror}",
                hint=f"what is left lies in {root}/{aside}",
            ) from error
        finally:
            os.close(parent)


def sweep(root: str) -> int:
    """Finish the removals that were interrupted under `root`; answers how many."""
    try:
        names = [name for name in os.listdir(root) if name.startswith(PREFIX) and is_run_id(name[len(PREFIX) :])]
    except OSError:
        return 0
    done = 0
    for name in names:
        parent = os.open(root, _DIRECTORY)
        try:
            if os.lstat(f"{root}/{name}").st_uid == os.geteuid():
                _remove_tree(parent, name, f"{root}/{name}")
                done += 1
        except OSError:
            continue
        finally:
            os.close(parent)
    return done


def _check_place(run_dir: str, root: str) -> None:
    parent, name = os.path.split(os.path.abspath(run_dir))
    try:
        seen = os.lstat(run_dir)
        real_parent, real_root = os.path.realpath(parent), os.path.realpath(root)
    except OSError as error:
        raise StorageError(f"{run_dir}: {error.strerror}", hint="holdfast ls lists the runs") from error
    if stat.S_ISLNK(seen.st_mode) or not stat.S_ISDIR(seen.st_mode):
        what = "a symbolic link" if stat.S_ISLNK(seen.st_mode) else "not a directory"
        raise StorageError(
            f"{run_dir} is {what}; holdfast never made that, and does not remove it", hint="remove it by hand"
        )
    if not is_run_id(name) or real_parent != real_root:
        raise StorageError(f"{run_dir} is not a run directly inside {root}: refused", hint="holdfast ls lists the runs")
    if seen.st_uid != os.geteuid():
        raise NotPermitted(f"{run_dir} belongs to {processes.user_name(seen.st_uid)}", hint="ask its owner")


def _measure(directory: int, path: str, device: int) -> tuple[int, int]:
    files, size = 0, 0
    with os.scandir(directory) as entries:
        listed = [(entry.name, entry.stat(follow_symlinks=False)) for entry in entries]
    for name, seen in listed:
        if seen.st_dev != device:
            raise StorageError(f"{path}/{name} is on another file system", hint="unmount it first")
        if stat.S_ISDIR(seen.st_mode):
            child = os.open(name, _DIRECTORY, dir_fd=directory)
            try:
                more, bytes_ = _measure(child, f"{path}/{name}", device)
            finally:
                os.close(child)
            files, size = files + more, size + bytes_
        else:
            files, size = files + 1, size + seen.st_blocks * 512
    return files, size


def _remove_tree(parent: int, name: str, path: str) -> None:
    """Empty and remove a directory below `parent`, by descriptors: a link put in its way is not followed.

    Raises:
        OSError: something stays; its path is in the error.
    """
    directory = os.open(name, _DIRECTORY, dir_fd=parent)
    try:
        device = os.fstat(directory).st_dev
        if device != os.fstat(parent).st_dev:
            raise OSError(18, "another file system is mounted here", path)
        with os.scandir(directory) as entries:
            listed = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
        for child, is_directory in listed:
            if is_directory:
                _remove_tree(directory, child, f"{path}/{child}")
            else:
                os.unlink(child, dir_fd=directory)
    except OSError as error:
        error.filename = error.filename if isinstance(error.filename, str) and "/" in error.filename else path
        raise
    finally:
        os.close(directory)
    os.rmdir(name, dir_fd=parent)
