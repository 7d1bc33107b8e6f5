"""The entry ``job``: the job of a run of this box, for another run that is to be like it (``run --like``).

Words: the run. Answers ``{"run_id": ..., "job": JobSpec, "code": CodeRef or null}``. Paths inside of the code that a
desk sent are relative to the working directory again, as in an `Order`; all others are those of this box. `code` is
null where the run does not work in the code of a desk.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.agent.control.job.change import read_recorded_job
from holdfast.agent.place.answer import answer
from holdfast.agent.view.find import find_run, require_readable
from holdfast.agent.view.source_change import read_origin
from holdfast.core.job.job_paths import change_paths, is_own
from holdfast.host.files.code import store
from holdfast.model import wire
from holdfast.model.errors import UsageError
from holdfast.model.order import CodeRef
from holdfast.model.record import replace

if TYPE_CHECKING:
    from holdfast.model.job import JobSpec


def main(words: list[str]) -> int:
    """Be the entry ``job``."""
    return answer(lambda: _describe(words))


def _describe(words: list[str]) -> dict[str, object]:
    if len(words) != 1:
        raise UsageError(f"job does not take the words {words!r}")
    found = find_run(words[0])
    require_readable(found)
    job = read_recorded_job(found.run_dir).spec
    stated = read_origin(found.run_dir).get("code")
    code = None if stated is None else wire.decode(CodeRef, stated)
    job, code = relate_to_code(job, code, found.run_dir)
    return {"run_id": found.run_id, "job": job, "code": code}


def relate_to_code(job: JobSpec, code: CodeRef | None, run_dir: str) -> tuple[JobSpec, CodeRef | None]:
    """A job of this box with paths relative where they are inside of its code, and where in the code it works."""
    tops = [f"{place}/{store.WORK}" for place in (run_dir, os.path.realpath(run_dir))]
    if code is not None:
        tops += [
            f"{store.tree_dir(os.path.dirname(top[: -len(store.WORK) - 1]), code.tree)}/{store.FILES}" for top in tops
        ]
    top = next((top for top in tops if _is_below(job.workdir, top)), None)
    if top is None:
        return job, None

    def relate(field: str, path: str) -> str:
        if field == "workdir":
            return "."
        if not _is_below(path, top):
            return path
        relative = os.path.relpath(path, job.workdir)
        # A file whose name begins so is not the box's home.
        return f"./{relative}" if is_own(relative) else relative

    inside = os.path.relpath(job.workdir, top)
    if code is not None:
        code = replace(code, workdir="" if inside == "." else inside)
    return change_paths(job, relate), code


def _is_below(path: str, top: str) -> bool:
    return path == top or path.startswith(f"{top}/")
