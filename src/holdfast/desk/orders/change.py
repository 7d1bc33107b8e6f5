"""A changed job for a run at a place: read at the desk, as for an order, and given to the run's own restart there."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.core.code.manifest import state_files
from holdfast.model.order import ChangeOrder
from holdfast.model.record import replace

from .build import draft_job, list_setup
from .paths import DeskPath, relate_paths

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.model.job import JobSpec
    from holdfast.model.place import Place


def build_change_order(
    job: JobSpec,
    place: Place,
    environ: Mapping[str, str],
    *,
    files: Sequence[str],
    keeps_command: bool,
    send_code: bool,
) -> ChangeOrder:
    """The order of a job that was read from `files`; without `send_code` nothing is compared with the run's code.

    Raises:
        JobFileError, UsageError: a path of the job leads out of its tree.
        PreflightFailed, StorageError: as of `draft_job`.
    """
    made = ChangeOrder(job, keeps_command, setup=list_setup(place))
    if not send_code:
        top = os.path.realpath(job.workdir) if isinstance(job.workdir, DeskPath) else None
        return replace(made, job=relate_paths(job, top))
    draft = draft_job(job, environ, send_code=True)
    if draft.tree is None:
        return replace(made, job=draft.job)
    besides = tuple(os.path.relpath(os.path.realpath(path), draft.tree.top) for path in files)
    stated = state_files(draft.tree.manifest, besides=besides)
    return replace(made, job=draft.job, code=draft.tree.ref, files=stated, besides=besides)
