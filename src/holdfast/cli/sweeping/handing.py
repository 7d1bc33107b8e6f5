"""From the command line of `sweep` to cells in the queue: sources read, cells built, everything checked, handed in."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from holdfast.cli.documents import Node, parse_toml, parse_yaml
from holdfast.cli.jobfile import find_cwd, read_job
from holdfast.cli.queueing.submitting import Wishes, bind_to_claims, build_submission, choose_group, hand_in
from holdfast.cli.schema import BY_PATH, Kind
from holdfast.core.grid import GridError, check_parameter, check_values
from holdfast.host import files
from holdfast.model import wire
from holdfast.model.errors import JobFileError, StorageError, UsageError
from holdfast.model.queue import GroupKind, IfChanged
from holdfast.store.queue import queue_directory

from .building import Builder, Built, merge_options
from .reading import read_text
from .sweepfile import SweepFile, parse_sweep, read_style
from .tables import load_cells

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.cli.queueing.submitting import HandedIn
    from holdfast.model.job import JobSpec
    from holdfast.store.queue import Queue

CONFIGS = "configs"
RECORDS = "sweeps"
SWEEP_KEYS = frozenset({"job", "grid", "cells", "overrides", "overlays", "exclude"})
_PATH_KINDS = frozenset({Kind.PATH, Kind.PATHS, Kind.IMAGE})


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command line says; None and empty leave it to the file."""

    source: str | None = None
    command: tuple[str, ...] = ()
    nodes: dict[str, Node] = field(default_factory=dict)
    name: str | None = None
    grid: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    csv: str | None = None
    arguments: str | None = None
    shared: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    priority: int | None = None
    max_parallel: int | None = None
    hold_after: int | None = None
    not_before: float | None = None
    if_changed: IfChanged = IfChanged.RUN
    paused: bool = False
    claims: str | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """A sweep that could be handed in. `files` are the hashes of what it was made from, to be compared by `add`."""

    sweep: SweepFile
    spec: JobSpec
    built: Built
    wishes: Wishes
    files: dict[str, str]

    @property
    def group(self) -> str:
        """The group's name."""
        return self.wishes.group


def plan(asked: Asked) -> Plan:
    """Read everything and build the cells; nothing is written.

    Raises:
        UsageError, JobFileError: something is wrong, or there is nothing to vary.
    """
    here = find_cwd()
    sweep = _read_source(asked, here)
    sweep = merge_options(sweep, _read_settings(asked.settings), read_axes(asked.grid))
    if asked.csv is not None:
        sweep.cells = [*sweep.cells, *load_cells(asked.csv)]
    sweep.job = {**sweep.job, **_make_absolute(asked.nodes, here)}
    sweep.shared = (*sweep.shared, *(os.path.abspath(path) for path in asked.shared))
    if asked.arguments is not None:
        sweep.arguments = _read_arguments(asked.arguments)
    spec = _read_spec(sweep, asked, here)
    wishes = _make_wishes(asked, sweep, spec)
    spec = bind_to_claims(spec, wishes)
    sweep.after, sweep.priority = wishes.needs, wishes.priority
    return build(sweep, spec, wishes)


def build(sweep: SweepFile, spec: JobSpec, wishes: Wishes, *, all_cells: bool = True) -> Plan:
    """The cells of a sweep over a job."""
    if not sweep.axes and not sweep.cells:
        raise UsageError(
            "nothing is varied: there is one job and no grid",
            hint="say what varies: --grid lr=1e-3,3e-4 --grid seed=0,1,2, or --csv cells.csv",
        )
    builder = Builder(sweep, wire.encode(spec), group=wishes.group, configs_dir=find_configs(wishes))
    built = builder.build(all_cells=all_cells)
    if wishes.not_before is not None:
        built = replace(built, cells=tuple(replace(cell, not_before=wishes.not_before) for cell in built.cells))
    paths = [*builder.files, *([sweep.job_file] if sweep.job_file else [])]
    return Plan(sweep, spec, built, wishes, {path: _hash(path) for path in paths})


def find_configs(wishes: Wishes) -> str:
    """Where resolved configurations lie: with the queue; for cells that boxes share, beside their claims.

    The path is a part of the cell's hash, and each box has a queue of its own.
    """
    return f"{wishes.claims or queue_directory()}/{CONFIGS}"


def _hash(path: str) -> str:
    try:
        return hashlib.sha256(files.read_bytes(path)).hexdigest()
    except OSError:
        # What cannot be read again differs from whatever it is later.
        return ""


# ----------------------------------------------------------------------------------------------------------- reading


def _read_source(asked: Asked, here: str) -> SweepFile:
    """The sweep file; for a job file, or a command, a sweep of nothing but that job."""
    if asked.source is None:
        if not asked.command:
            raise UsageError(
                "no sweep: name a sweep file or a job file, or write a command behind `--`",
                hint="holdfast sweep sweep.yaml, or holdfast sweep --grid lr=1e-3,3e-4 -- python train.py",
            )
        return SweepFile("the command line", here)
    text = read_text(asked.source, "sweep file")
    parse = parse_toml if asked.source.lower().endswith(".toml") else parse_yaml
    tree = parse(text, asked.source)
    keys = set(tree.value) if isinstance(tree.value, dict) else set()
    if keys & SWEEP_KEYS or not keys & set(BY_PATH):
        return parse_sweep(text, asked.source)
    path = os.path.abspath(asked.source)
    return SweepFile(asked.source, os.path.dirname(path), job_file=path)


def read_axes(words: Sequence[str], option: str = "--grid") -> dict[str, tuple[str, ...]]:
    """``lr=1e-3,3e-4`` as an axis each.

    Raises:
        UsageError: one is no such thing, or stands there twice.
    """
    axes: dict[str, tuple[str, ...]] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or not text:
            raise UsageError(f"{option}: {word!r} is not NAME=VALUE,VALUE", hint=f"{option} lr=1e-3,3e-4")
        if name in axes:
            raise UsageError(f"{option}: {name} is there twice", hint=f"write all values behind one {option} {name}=")
        axes[name] = tuple(value.strip() for value in text.split(","))
        try:
            check_parameter(name)
            check_values(name, axes[name])
        except GridError as error:
            raise UsageError(f"{option}: {error}") from error
        if "" in axes[name]:
            raise UsageError(f"{option}: {word!r} has an empty value", hint="commas stand between values only")
    return axes


def _read_settings(words: Sequence[str]) -> dict[str, str]:
    """``--set epochs=20``; the value may have commas in it."""
    settings: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise UsageError(f"--set: {word!r} is not NAME=VALUE", hint="--set epochs=20")
        if name in settings:
            raise UsageError(f"--set: {name} is there twice", hint="leave one out")
        try:
            check_parameter(name)
            check_values(name, [value])
        except GridError as error:
            raise UsageError(f"--set: {error}") from error
        settings[name] = value
    return settings


def _read_arguments(text: str) -> tuple[str, ...]:
    try:
        return read_style([text])
    except GridError as error:
        raise UsageError(f"--arguments: {error}", hint="--arguments '--{name} {value}', or none") from error


def _make_absolute(nodes: Mapping[str, Node], here: str) -> dict[str, Node]:
    """Paths of options count from where the person stands, also when those of the file count from elsewhere."""

    def resolve(node: Node) -> Node:
        if isinstance(node.value, list):
            return replace(node, value=[resolve(item) for item in node.value])
        text = str(node.value)
        if text == BY_PATH[path].absent:
            return node
        text = os.path.join(here, os.path.expanduser(text))
        return replace(node, value=text, text=text)

    found = dict(nodes)
    for path, node in nodes.items():
        if BY_PATH[path].kind in _PATH_KINDS:
            found[path] = resolve(node)
    return found


def _read_spec(sweep: SweepFile, asked: Asked, here: str) -> JobSpec:
    """The job below all cells."""
    inside = sweep.path == asked.source and bool(sweep.text)
    command = asked.command
    if command and "command" in sweep.job:
        raise UsageError(
            f"{sweep.job['command'].where} has a command, and there is another one behind `--`", hint="leave one out"
        )
    try:
        return read_job(sweep.job_file, sweep.job, command=command, cwd=sweep.directory if inside else here)
    except UsageError as error:
        if not inside:
            raise
        # What stands under `job:` is read as options are.
        raise JobFileError(str(error), hint="nothing was handed in; docs/job-file.md describes every key") from error


def _make_wishes(asked: Asked, sweep: SweepFile, spec: JobSpec) -> Wishes:
    stem = os.path.splitext(os.path.basename(sweep.path))[0] if sweep.text else spec.name
    name = choose_group(asked.name or sweep.name or None, stem)
    return Wishes(
        group=name,
        priority=sweep.priority if asked.priority is None else asked.priority,
        needs=tuple(dict.fromkeys((*sweep.after, *asked.after))),
        not_before=asked.not_before,
        max_parallel=asked.max_parallel or sweep.max_parallel,
        if_changed=asked.if_changed,
        hold_after=sweep.hold_after if asked.hold_after is None else asked.hold_after,
        paused=asked.paused,
        claims=asked.claims,
        named=True,
        shared=sweep.shared,
    )


# -------------------------------------------------------------------------------------------------------- handing in


def take(
    queue: Queue, made: Plan, *, runs_root: str, environ: Mapping[str, str], record: bool = True
) -> tuple[HandedIn, list[str]]:
    """Commit the configurations, then the cells, then what `add` goes on from; also sentences for people.

    Raises:
        UsageError: it cannot work; nothing was taken.
        StorageError: it could not be written; no cell was taken.
    """
    if made.wishes.claims is not None:
        from holdfast.host.claims import open_directory

        # Before anything is written there: whoever else may write in it could have planted a link.
        open_directory(made.wishes.claims)
    before = {cell.name for cell in queue.cells(group=made.group)}
    if made.wishes.claims is not None:
        from holdfast.host.claims import open_directory

        open_directory(made.wishes.claims)
    store_configs(find_configs(made.wishes), made.built)
    submission = build_submission(made.spec, made.built.cells, made.wishes, runs_root=runs_root)
    source = os.path.abspath(made.sweep.path) if made.sweep.text or made.sweep.job_file else None
    submission = replace(submission, kind=GroupKind.SWEEP, source=source)
    taken, notes = hand_in(queue, made.spec, submission, environ=environ, wishes=made.wishes)
    if record:
        write_record(queue.directory, made)
        dropped = sorted(before - {cell.name for cell in made.built.cells})
        if dropped:
            shown = ", ".join(dropped[:5]) + (f" and {len(dropped) - 5} more" if len(dropped) > 5 else "")
            notes.append(f"in the queue and not in this hand-in, left as they are: {shown}")
    return taken, notes


def store_configs(place: str, built: Built) -> None:
    """Write each resolved configuration once into the directory `place`, named by its hash.

    Raises:
        StorageError: one cannot be written.
    """
    if not built.configs:
        return
    try:
        os.makedirs(place, mode=0o700, exist_ok=True)
        for config in built.configs.values():
            path = f"{place}/{config.file_name}"
            if not _holds(path, config.data):
                files.commit(path, config.data, mode=0o400)
    except OSError as error:
        raise StorageError(f"{place}: {error.strerror}", hint="see df and the directory's owner") from error


def _holds(path: str, data: bytes) -> bool:
    try:
        return files.read_bytes(path) == data
    except FileNotFoundError:
        return False


def write_record(directory: str, made: Plan) -> None:
    """What the sweep was made from, for `sweep add`: its text as it was, not the file, which may change.

    Raises:
        StorageError: it cannot be written; the cells are in the queue.
    """
    sweep = made.sweep
    record: dict[str, Any] = {
        "group": made.group,
        "path": os.path.abspath(sweep.path),
        "text": sweep.text,
        "job_file": sweep.job_file,
        "settings": sweep.settings,
        "arguments": list(sweep.arguments),
        "shared": list(sweep.shared),
        "claims": made.wishes.claims,
        "after": list(sweep.after),
        "priority": sweep.priority,
        "base": made.built.base,
        "files": made.files,
    }
    try:
        os.makedirs(f"{directory}/{RECORDS}", mode=0o700, exist_ok=True)
        files.commit(f"{directory}/{RECORDS}/{made.group}.json", wire.to_bytes(record))
    except OSError as error:
        message = f"{directory}/{RECORDS}: {error.strerror}; the cells are in the queue, `sweep add` will not work"
        raise StorageError(message, hint="make room and hand the sweep in again: it adds nothing twice") from error
