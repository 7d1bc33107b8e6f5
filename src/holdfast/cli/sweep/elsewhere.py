"""A sweep that is read here and handed in at a place: where its files are read, and how its paths are written.

The job below all jobs is related to its tree first (`desk.orders.build.draft_job`); jobs are made over that, so what
counts from here is relative in all of them. Configurations and overlays are read here, from beside that job.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.core.job.job_paths import is_own
from holdfast.core.queue.grid import GridError
from holdfast.desk.orders.build import find_top
from holdfast.desk.orders.paths import DeskPath, TreeBase

if TYPE_CHECKING:
    from holdfast.desk.orders.build import Draft
    from holdfast.model.job import JobSpec


class Elsewhere:
    """What a sweep for a place needs to know of this desk. `draft` is the job below all jobs, once it was read."""

    def __init__(self, relate: Callable[[JobSpec], Draft]) -> None:
        """`relate` finds the tree of a job that was read here."""
        self._relate = relate
        self._draft: Draft | None = None
        self._workdir = ""

    @property
    def draft(self) -> Draft:
        """The job below all jobs."""
        assert self._draft is not None, "it is read first"
        return self._draft

    @property
    def workdir(self) -> str:
        """The working directory of the job at this desk; where it is the place's own, one that has no files here."""
        return self._workdir

    def read_base(self, spec: JobSpec) -> JobSpec:
        """Relate the job below all jobs; as it goes into the order."""
        self._draft = self._relate(spec)
        self._workdir = os.path.realpath(spec.workdir) if isinstance(spec.workdir, DeskPath) else "/nowhere"
        return self._draft.job

    def base_of(self, directory: str) -> TreeBase:
        """How paths are read that count from a directory here."""
        tree = self.draft.tree
        top = None if tree is None else os.path.realpath(find_top(self._workdir, tree.ref.workdir))
        return TreeBase(directory, top, self._workdir)

    def find_here(self, path: str) -> str:
        """Where a configuration of the job is read.

        Raises:
            GridError: it is the place's own.
        """
        if is_own(path):
            raise GridError(f"{path} is the place's own, and is not read here: write the configuration relative")
        return os.path.join(self._workdir, path)
