"""The job of a run at a place, for another run that is to be like it."""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING

from holdfast.core.job.job_paths import change_paths, is_own
from holdfast.model import wire
from holdfast.model.errors import PlaceError, UsageError
from holdfast.model.ids import clean_name, is_run_id
from holdfast.model.job import JobSpec
from holdfast.model.order import CodeRef
from holdfast.model.record import record, replace

from .build import list_setup

if TYPE_CHECKING:
    from holdfast.transfer.box import Box

ENTRY = "job"
LIMIT_S = 30.0


@record
class JobAtPlace:
    """The job of a run at a place; `name` is ``PLACE:RUN``.

    Paths inside of its `code` are relative to its working directory, all others are those of the place. `code` is None
    where it does not work in the code of a desk.
    """

    name: str
    job: JobSpec
    code: CodeRef | None


def fetch_job(box: Box, run: str, *, keeps_setup: bool) -> JobAtPlace:
    """The job of a run at a place. With `keeps_setup` its own lines of setup are wanted, without those of the place.

    Raises:
        UsageError: its own lines of setup cannot be told from those of the place.
        PlaceError, HoldfastError: as of `Box.entry`, and what the place says of the run.
    """
    told = box.entry(ENTRY, (run,), limit_s=LIMIT_S)
    try:
        run_id, job = str(told["run_id"]), wire.decode(JobSpec, told["job"])
        code = None if told["code"] is None else wire.decode(CodeRef, told["code"])
        if not is_run_id(run_id) or _leads_out(job, "" if code is None else code.workdir):
            raise wire.WireError("it is not the job of a run")
    except (KeyError, ValueError) as error:
        raise PlaceError(
            f"{box.place.name} answered something else than the job of {run}: {error}",
            hint=f"holdfast place probe {box.place.name}",
            details={"place": box.place.name, "why": "bad_answer"},
        ) from error
    name = f"{box.place.name}:{run_id}"
    lines = list_setup(box.place)
    if keeps_setup and job.setup and job.setup[: len(lines)] != lines:
        raise UsageError(
            f"{name}: its setup does not begin with that of {box.place.name} as it is now, so which lines are its own "
            f"is not known: {'; '.join(job.setup)}",
            hint="say those of the job: --setup LINE",
        )
    return JobAtPlace(name, replace(job, name=clean_name(job.name), setup=job.setup[len(lines) :]), code)


def _leads_out(job: JobSpec, workdir: str) -> bool:
    """Whether a path leads out of the code: what a place says must not reach other files of this desk."""
    paths = [workdir]

    def look(_: str, path: str) -> str:
        paths.extend([] if is_own(path) else [f"{workdir}/{path}"])
        return path

    change_paths(job, look)
    return any(posixpath.normpath(path.lstrip("/") or ".").split("/")[0] == ".." for path in paths) or is_own(workdir)
