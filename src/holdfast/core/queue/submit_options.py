"""What is wanted of jobs that are handed in, beside the jobs themselves: read from a command line. Pure."""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING

from holdfast.model import wire
from holdfast.model.errors import UsageError
from holdfast.model.ids import clean_name
from holdfast.model.job import OrphanPolicy
from holdfast.model.queue import DEFAULT_GROUP, IfChanged, NewJob
from holdfast.model.record import record, replace

from .job_hasher import JobHasher

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.model.job import JobSpec

STDIN = "-"


@record
class SubmitOptions:
    """What is wanted of a submission beside its job. `named`: the name was said, so it is not made unique.

    `shared` are paths to which jobs may write together.
    """

    group: str = DEFAULT_GROUP
    priority: int = 0
    needs: tuple[str, ...] = ()
    not_before: float | None = None
    max_parallel: int | None = None
    if_changed: IfChanged = IfChanged.RUN
    hold_after: int = 0
    paused: bool = False
    claims: str | None = None
    named: bool = False
    shared: tuple[str, ...] = ()


def bind_to_claims(spec: JobSpec, wishes: SubmitOptions) -> JobSpec:
    """The spec as boxes that share jobs may run it: the job dies with its supervisor, which holds the claim."""
    if wishes.claims is None:
        return spec
    return replace(spec, on_supervisor_death=OrphanPolicy.KILL)


def make_job(spec: JobSpec, wishes: SubmitOptions, name: str) -> NewJob:
    """The only job of its submission."""
    return NewJob(
        name=name,
        needs=wishes.needs,
        priority=wishes.priority,
        not_before=wishes.not_before,
        expected_s=spec.expected_s,
        sha256=JobHasher(wire.encode(spec)).hash({}),
    )


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
        return "lines" if nameless else clean_name(posixpath.splitext(posixpath.basename(lines))[0])
    name = text.rstrip("/")
    if not name or name != clean_name(name):
        near = clean_name(name)
        example = "night" if near == clean_name("") else near
        raise UsageError(f"--group: {text!r} is no name: letters, digits and . _ -", hint=f"write it like {example}")
    return name


def split_needs(after: Sequence[str]) -> tuple[str, ...]:
    """The names in ``--after a,b --after c``."""
    return tuple(dict.fromkeys(word.strip() for text in after for word in text.split(",") if word.strip()))
