"""The paths that a job names, and what becomes of them on the way from the desk to a box. Pure.

In an order a path is as it was written: ``~`` and ``$NAME`` are the box's, an absolute path is the box's, and a
relative one is below the working directory of the code. `resolve_path` makes an absolute path of it there.
"""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING

from holdfast.core.container.references import looks_like_file, read_bind
from holdfast.model.pattern import compile_later
from holdfast.model.record import replace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from holdfast.model.container import ContainerSpec
    from holdfast.model.job import JobSpec

_VARIABLE = compile_later(r"\$(?:(\w+)|\{(\w+)\})")


class UnknownVariableError(ValueError):
    """A path names a variable that is not set."""


def change_paths(job: JobSpec, change: Callable[[str, str], str]) -> JobSpec:
    """The job with each of its paths replaced by ``change(field, path)``.

    Those of `artifacts`, `results.paths` and `disk.scratch` are not among them: they are inside the run.
    """

    def one(field: str, path: str | None) -> str | None:
        return None if path is None else change(field, path)

    def many(field: str, paths: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(change(field, path) for path in paths)

    return replace(
        job,
        workdir=change("workdir", job.workdir),
        inputs=many("inputs", job.inputs),
        config=one("config", job.config),
        data=many("data", job.data),
        disk=replace(job.disk, paths=many("disk.paths", job.disk.paths)),
        checkpoints=replace(job.checkpoints, mirror=one("checkpoints.mirror", job.checkpoints.mirror)),
        results=replace(job.results, to=one("results.to", job.results.to)),
        caches=one("caches", job.caches),
        container=_change_container(job.container, change),
    )


def _change_container(container: ContainerSpec, change: Callable[[str, str], str]) -> ContainerSpec:
    image = container.image
    if image is None:
        return container

    def bind(text: str) -> str:
        found = read_bind(text)
        return str(replace(found, source=change("container.binds", found.source)))

    path = change("container.image", image) if looks_like_file(image) else image
    return replace(container, image=path, binds=tuple(map(bind, container.binds)))


def is_own(path: str) -> bool:
    """Whether a path says by itself where it begins: at the root, at a home, or at a variable."""
    return path.startswith(("/", "~", "$"))


def resolve_path(path: str, workdir: str, environ: Mapping[str, str], expand_user: Callable[[str], str]) -> str:
    """An absolute path on this box, of one as it was written; `expand_user` is for ``~``.

    Raises:
        UnknownVariableError: it names a variable that is not set here.
    """

    def value_of(name: str) -> str:
        if name not in environ:
            raise UnknownVariableError(f"${name} is not set there")
        return environ[name]

    expanded = _VARIABLE.sub(lambda found: value_of(found[1] or found[2]), path)
    return posixpath.normpath(posixpath.join(workdir, expand_user(expanded)))
