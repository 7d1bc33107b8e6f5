"""``run --like RUN`` where that run, or the new one, is at a place: what of its job goes along, and what cannot.

Paths inside of the code go along with it. Other paths of the box of that run, its cards and its processors mean
nothing elsewhere: they are refused, with the options that say them anew. At the same place they stay, as does the code.
"""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING

from holdfast.agent.control.job.change import read_recorded_job
from holdfast.cli.job.jobfile import change_job, find_cwd
from holdfast.cli.job.options import collect_nodes
from holdfast.cli.job.schema import KEYS
from holdfast.cli.named_run import find_readable
from holdfast.cli.render import note
from holdfast.cli.render.job_change import describe_changes
from holdfast.core.control_characters import one_line
from holdfast.core.job.changes import leave_sweep, list_changes
from holdfast.core.job.job_paths import change_paths, is_own
from holdfast.core.job.secret_names import read_uses
from holdfast.desk.connect import find_place, open_box
from holdfast.desk.orders.build import find_top
from holdfast.desk.orders.like import fetch_job
from holdfast.desk.orders.paths import OrderBase, RunBase
from holdfast.desk.route.router import split_run
from holdfast.model.errors import HoldfastError, UsageError
from holdfast.model.place import LOCAL
from holdfast.model.record import record, replace
from holdfast.transfer.code.tree import read_tree

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.cli.job.documents import Node
    from holdfast.desk.orders.like import JobAtPlace
    from holdfast.model.job import JobSpec
    from holdfast.model.order import CodeRef

LONGEST_SHOWN = 300
BINDS = "container.binds"
OPTIONS = {key.field: key for key in KEYS}


@record
class LikeJob:
    """The job of the new run; `code` is what the place has already, where none is sent."""

    job: JobSpec
    code: CodeRef | None = None


def resolve_elsewhere(
    like: str, place: str, command: Sequence[str], options: Mapping[str, object], *, send_code: bool
) -> LikeJob:
    """The job of the run `like` (``PLACE:RUN``, or one of this machine) for a new one at `place`.

    Raises:
        UsageError: something of it cannot be carried over; what, and the options that say it anew.
        HoldfastError: there is no such run, or its place does not answer.
    """
    nodes = collect_nodes(options)
    source, run = split_run(like)
    if source is None or source == LOCAL:
        return LikeJob(_send_from_here(run, place, nodes, command))
    other = fetch_job(open_box(find_place(source)), run, keeps_setup="setup" not in nodes)
    note(f"like {other.name}")
    if place == source:
        return _stay(other, place, nodes, command, send_code=send_code)
    return LikeJob(_move(other, place, nodes, command, send_code=send_code))


def _stay(
    other: JobAtPlace, place: str, nodes: Mapping[str, Node], command: Sequence[str], *, send_code: bool
) -> LikeJob:
    """At the place of the run itself: with its code, which is there, unless another directory is named."""
    moved = "workdir" in nodes
    base = OrderBase(find_cwd()) if moved else RunBase(find_cwd())
    code = other.code if send_code and not moved else None
    if code is not None:
        note(
            f"at {place} with the code of {other.name} ({_describe_code(code)}); --workdir . sends that of here instead"
        )
    before = _leave_sweep(other.job, command)
    job = change_job(before, None, nodes, command=command, base=base)
    for line in describe_changes(list_changes(before, job)):
        note(f"changed: {line}")
    return LikeJob(job, code)


def _move(
    other: JobAtPlace, place: str, nodes: Mapping[str, Node], command: Sequence[str], *, send_code: bool
) -> JobSpec:
    """At another place, or on this machine: with the code of this desk."""
    _refuse_foreign(other.job, other.name, place, nodes)
    before, cwd = _leave_sweep(other.job, command), find_cwd()
    if "workdir" not in nodes:
        before = replace(before, workdir=_find_workdir(other, place, cwd, send_code=send_code))
    job = change_job(before, None, nodes, command=command, base=cwd if place == LOCAL else OrderBase(cwd))
    if place == LOCAL:
        job = change_paths(job, lambda _, path: os.path.normpath(os.path.join(cwd, job.workdir, path)))
    note(f"at {place}: {one_line(shlex.join(job.command), LONGEST_SHOWN)}")
    held = [f"env {name}" for name, value in job.env.items() if is_own(value) and "env" not in nodes]
    held += [f"command: {word}" for word in job.command if word.startswith("/") and not command]
    if held:
        note(f"taken as they are, and perhaps paths of {other.name}: {one_line('; '.join(held), LONGEST_SHOWN)}")
    if secrets := [use.name for use in read_uses(job.secrets)]:
        note(
            f"its secrets are those of {place}, and are not carried over: {one_line(', '.join(secrets), LONGEST_SHOWN)}"
        )
    return job


def _send_from_here(run: str, place: str, nodes: Mapping[str, Node], command: Sequence[str]) -> JobSpec:
    """A run of this machine at a place: with the code that is in its working directory now."""
    found = find_readable(run, None)
    note(f"like {found.run_id}")
    before = _leave_sweep(read_recorded_job(found.run_dir).spec, command)
    _refuse_foreign(before, found.run_id, place, nodes, only=(BINDS,))
    desk = OrderBase(before.workdir)
    # Those that are not in the code are refused by name, once the tree is known.
    job = change_paths(before, lambda field, path: path if field == BINDS else desk.mark(path, field))
    return change_job(job, None, nodes, command=command, base=OrderBase(find_cwd()))


def _leave_sweep(before: JobSpec, command: Sequence[str]) -> JobSpec:
    job, notes = leave_sweep(before, command)
    for text in notes:
        note(text)
    return job


def _refuse_foreign(
    job: JobSpec, name: str, place: str, nodes: Mapping[str, Node], *, only: Sequence[str] = ()
) -> None:
    """Refuse what is of the machine of that run alone, unless an option says it anew; `only`: these paths.

    Raises:
        UsageError: names all of it, with the options.
    """
    found: list[tuple[str, str]] = []

    def look(field: str, path: str) -> str:
        if is_own(path) and (not only or field in only):
            found.append((field, path))
        return path

    change_paths(job, look)
    found += [("gpus", ",".join(job.gpus.devices))] if job.gpus.devices else []
    found += [("limits.affinity", ",".join(map(str, job.limits.affinity)))] if job.limits.affinity else []
    left = [
        (OPTIONS[field], one_line(value, LONGEST_SHOWN)) for field, value in found if OPTIONS[field].path not in nodes
    ]
    if left:
        raise UsageError(
            f"of the machine of {name} alone: {'; '.join(f'{key.path}: {value}' for key, value in left)}",
            hint=f"say it for {place}: {' '.join(f'--{key.option} {shlex.quote(value)}' for key, value in left)}",
        )


def _find_workdir(other: JobAtPlace, place: str, cwd: str, *, send_code: bool) -> str:
    """Where the job works there: in the code of that run, if this desk has the same.

    Raises:
        UsageError: it has not.
    """
    anew = "--workdir DIR takes the code of a directory of this desk, --workdir . that of this one"
    if other.code is None or not send_code:
        if place == LOCAL:
            raise UsageError(f"{other.name} has no code of a desk", hint=anew)
        return other.job.workdir
    try:
        tree = read_tree(cwd, os.environ).ref
    except HoldfastError:
        tree = None
    if tree is None or tree.tree != other.code.tree:
        here = "none that could be sent" if tree is None else f"another one ({_describe_code(tree)})"
        raise UsageError(
            f"the code of {other.name} is at its own place ({_describe_code(other.code)}); this directory has {here}",
            hint=f"{anew}; or type it where the same code is",
        )
    found = os.path.normpath(os.path.join(find_top(cwd, tree.workdir), other.code.workdir))
    return found if place == LOCAL else OrderBase(cwd).mark(found, "workdir")


def _describe_code(code: CodeRef) -> str:
    commit = f", commit {code.commit[:12]}" if code.commit else ""
    return one_line(f"tree {code.tree[:16]}{commit}{' with changes' if code.dirty else ''}", LONGEST_SHOWN)
