"""Paths of a job that is going to another machine: what is written counts there, what is relative counts here.

While such a job is read, a path that says by itself where it begins (``/data``, ``~/data``, ``$SCRATCH/data``) stays
as it is: it is the box's. A relative one names a file beside the job file, or below the current directory, as ever;
it is kept as a `DeskPath` until it is known which tree goes along, and becomes relative to the working directory in it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.core.job.job_paths import change_paths, is_own
from holdfast.model.errors import HoldfastError, JobFileError, UsageError

if TYPE_CHECKING:
    from holdfast.model.job import JobSpec

HERE = "."


class DeskPath(str):
    """An absolute path on this machine, and where it was written: key, and file and line or option (empty: nowhere)."""

    __slots__ = ("key", "where")

    key: str
    where: str


class OrderBase:
    """A directory of the desk from which the paths of a job count that is going elsewhere."""

    def __init__(self, directory: str) -> None:
        """`directory` is absolute."""
        self.directory = directory

    def read(self, text: str, key: str = "", where: str = "") -> str:
        """A path as it was written, or a `DeskPath` where it counts from here."""
        return text if is_own(text) else self.mark(text, key, where)

    def mark(self, path: str, key: str = "", where: str = "") -> DeskPath:
        """A path of this machine."""
        found = DeskPath(os.path.normpath(os.path.join(self.directory, path)))
        found.key, found.where = key, where
        return found


class TreeBase(OrderBase):
    """A directory of the desk, in a tree that goes along: paths that count from it become relative at once."""

    def __init__(self, directory: str, top: str | None, workdir: str) -> None:
        """`top` and `workdir` are those of the tree, both real; without `top` no code goes along."""
        super().__init__(directory)
        self._top, self._workdir = top, workdir

    def read(self, text: str, key: str = "", where: str = "") -> str:
        """A path as it is written in the order.

        Raises:
            ValueError: it leads out of the tree, or is a working directory, of which there is one.
        """
        found = super().read(text, key, where)
        if key == "workdir":
            raise ValueError("jobs that are sent to a place together have one working directory: say it for all")
        if not isinstance(found, DeskPath):
            return found
        relative = None if self._top is None else find_relative(found, self._top, self._workdir)
        if relative is None:
            raise ValueError(f"{found} is on this machine, and not in the code that is sent")
        return relative


class RunBase(OrderBase):
    """The working directory of a run elsewhere, from which relative paths count; a working directory is the desk's."""

    def read(self, text: str, key: str = "", where: str = "") -> str:
        """A path as it is written in the order."""
        return super().read(text, key, where) if key == "workdir" or is_own(text) else os.path.normpath(text)


def relate_paths(job: JobSpec, top: str | None) -> JobSpec:
    """The job with every `DeskPath` relative to its working directory, which itself becomes ``.``.

    `top` is the top of the tree that goes along, with the job's working directory in it; None: no code does, and then
    no path may count from here.

    Raises:
        JobFileError, UsageError: paths that lead out of the tree, all of them.
    """
    problems: list[tuple[str, str]] = []
    workdir = os.path.realpath(job.workdir) if top is not None else ""
    root = "" if top is None else os.path.realpath(top)

    def relate(field: str, path: str) -> str:
        if not isinstance(path, DeskPath):
            return path
        if field == "workdir" and (top is not None or not path.where):
            return HERE
        if top is None:
            problems.append((path.where, f"{path.key}: {path} is on this machine, and no code is sent along"))
            return path
        relative = find_relative(path, root, workdir)
        if relative is None:
            problems.append((path.where, f"{path.key}: {path} is not in the tree that is sent, {top}"))
            return path
        return relative

    changed = change_paths(job, relate)
    if problems:
        raise _refuse(problems)
    return changed


def find_relative(path: str, top: str, workdir: str) -> str | None:
    """A path of this machine as it is below `workdir` of the tree `top` (both real); None where it leads out of it."""
    real = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
    if real != top and not real.startswith(top.rstrip("/") + "/"):
        return None
    relative = os.path.relpath(real, workdir)
    # A file whose name begins so is not the box's home.
    return f"./{relative}" if is_own(relative) else relative


def _refuse(problems: list[tuple[str, str]]) -> HoldfastError:
    text = "\n".join(f"{where}: {words}" if where else words for where, words in problems)
    hint = "name a path of the box (absolute, or from ~ or $NAME), or put the file into the tree"
    on_line = all(where.startswith("--") or not where for where, _ in problems)
    return UsageError(text, hint=hint) if on_line else JobFileError(text, hint=hint)
