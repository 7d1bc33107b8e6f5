"""What a job that a desk ordered runs on this box: code laid out for the run, absolute paths, lines of setup."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.agent.plan.profile import find_variables
from holdfast.core.code.copies import LARGEST_COPY_BYTES, MOST_COPIED_FILES
from holdfast.core.job.job_paths import UnknownVariableError, change_paths, resolve_path
from holdfast.host.files import files
from holdfast.host.files.code import store
from holdfast.model.errors import PreflightFailed, StorageError
from holdfast.model.record import replace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.core.code.manifest import Manifest
    from holdfast.model.job import JobSpec
    from holdfast.model.order import CodeRef
    from holdfast.model.profile import Profile


def lay_out(run_dir: str, root: str, code: CodeRef, *, shared: bool = False) -> str:
    """Give a run its code; answers its working directory, inside of the run (``work/``) or of the read-only tree.

    Up to `LARGEST_COPY_BYTES` and `MOST_COPIED_FILES` it is a copy of the run's own, unless runs share the tree. May be
    called again: a copy that is there is left as it is. Whether it is what was meant, preflight looks at
    (`checks.code`).

    Raises:
        StorageError: the tree is not there, is damaged, or the disk does not take a copy.
        NotPermitted: others could replace the tree.
    """
    directory = store.tree_dir(root, code.tree)
    target = f"{run_dir}/{store.WORK}"
    again = "send it again: the same command from the desk does it"
    try:
        store.check_store(root)
        manifest = store.read_manifest(directory, code.tree)
    except (OSError, ValueError) as error:
        words = error.strerror if isinstance(error, OSError) else str(error)
        raise StorageError(f"the code tree {directory} cannot be used: {words}", hint=again) from error
    top = f"{directory}/{store.FILES}"
    if not shared and manifest.bytes <= LARGEST_COPY_BYTES and len(manifest.entries) <= MOST_COPIED_FILES:
        if not os.path.isdir(target):
            _copy(top, target, manifest)
        top = target
    workdir = os.path.normpath(f"{top}/{code.workdir}")
    if os.path.commonpath((workdir, top)) != top or not os.path.isdir(workdir):
        raise StorageError(
            f"the code has no directory {code.workdir!r} to run in", hint="put a file there, and send it again"
        )
    return workdir


def _copy(top: str, target: str, manifest: Manifest) -> None:
    aside = files.name_temporary(target)
    try:
        store.copy_tree(top, aside, manifest)
        os.rename(aside, target)
    except OSError as error:
        try:
            store.remove_tree(aside)
        except OSError:
            pass
        if os.path.isdir(target):
            return  # somebody else was quicker, with the same
        raise StorageError(
            f"the code cannot be copied to {target}: {error.filename or top}: {error.strerror}",
            hint="see df; or, if it is a file of the tree, send the code again",
        ) from error


def prepare_job(
    job: JobSpec, setup: tuple[str, ...], base: str, environ: Mapping[str, str], profile: Profile | None = None
) -> JobSpec:
    """An ordered job as it runs here: paths absolute, relative ones below `base`; `setup` of the place before its own.

    A path may name what the `profile` of the place adds to the environment.

    Raises:
        PreflightFailed: a path names a variable that this box has not.
    """

    def resolve(field: str, path: str) -> str:
        try:
            return resolve_path(path, base if field == "workdir" else workdir, environ, os.path.expanduser)
        except UnknownVariableError as error:
            raise PreflightFailed(
                f"{field}: {path}: {error}", hint="write the path itself, or set the variable in the box's environment"
            ) from error

    environ = {**environ, **find_variables(profile, job, environ)}
    workdir = base
    workdir = resolve("workdir", job.workdir)
    found = change_paths(job, resolve)
    return replace(found, setup=(*setup, *found.setup))
