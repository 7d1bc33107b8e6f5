"""From the command line of `sweep` to jobs that could be handed in: sources read, jobs built. Nothing is written."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.agent.queue.sweep.configs import find_configs
from holdfast.agent.queue.sweep.recipe import Recipe, SweepPlan, hash_files
from holdfast.cli.job.config_syntax import refuse_bad_configs
from holdfast.cli.job.documents import Node, parse_toml, parse_yaml, refuse_program
from holdfast.cli.job.jobfile import find_cwd, read_job
from holdfast.cli.job.schema import BY_PATH, Kind
from holdfast.cli.job.user_defaults import read_queued_defaults
from holdfast.core.container.references import looks_like_file, read_bind
from holdfast.core.job.job_paths import is_own
from holdfast.core.queue.grid import GridError, check_parameter, check_values
from holdfast.core.queue.submit_options import SubmitOptions, bind_to_claims, choose_group
from holdfast.desk.orders.paths import DeskPath, OrderBase
from holdfast.model import wire
from holdfast.model.errors import JobFileError, UsageError
from holdfast.model.queue import IfChanged
from holdfast.model.queue_order import CONFIGS
from holdfast.model.record import field, record, replace

from .build import SweepBuilder, merge_options
from .read import read_text
from .sweep_file import SweepFile, parse_sweep, read_style
from .tables import load_jobs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.model.job import JobSpec
    from holdfast.model.sweep import BuiltSweep

    from .elsewhere import Elsewhere

SWEEP_KEYS = frozenset({"job", "grid", "jobs", "overrides", "overlays", "exclude"})
_PATH_KINDS = frozenset({Kind.PATH, Kind.PATHS, Kind.IMAGE, Kind.BINDS})


@record
class SweepOptions:
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


def plan_sweep(asked: SweepOptions, elsewhere: Elsewhere | None = None) -> SweepPlan:
    """Read everything and build the jobs; nothing is written. `elsewhere`: they go to a place.

    Raises:
        UsageError, JobFileError: something is wrong, or there is nothing to vary.
    """
    here = find_cwd()
    sweep = _read_source(asked, here)
    sweep = merge_options(sweep, _read_settings(asked.settings), read_axes(asked.grid))
    if asked.csv is not None:
        sweep.jobs = [*sweep.jobs, *load_jobs(asked.csv)]
    sweep.job = {**sweep.job, **_make_absolute(asked.nodes, here, elsewhere=elsewhere is not None)}
    if elsewhere is None:
        sweep.shared = (*sweep.shared, *(os.path.abspath(path) for path in asked.shared))
    else:
        # Others are in what each run has for itself.
        sweep.shared = tuple(path for path in (*sweep.shared_said, *asked.shared) if is_own(path))
    if asked.arguments is not None:
        sweep.arguments = _read_arguments(asked.arguments)
    spec = _read_spec(sweep, asked, here, elsewhere=elsewhere is not None)
    wishes = _make_wishes(asked, sweep, spec)
    spec = bind_to_claims(spec, wishes)
    sweep.after, sweep.priority = wishes.needs, wishes.priority
    if elsewhere is not None:
        refuse_bad_configs((spec.config,) if isinstance(spec.config, DeskPath) else ())
        spec = elsewhere.read_base(spec)
    return build_sweep(sweep, spec, wishes, elsewhere=elsewhere)


def build_sweep(
    sweep: SweepFile,
    spec: JobSpec,
    wishes: SubmitOptions,
    *,
    all_jobs: bool = True,
    elsewhere: Elsewhere | None = None,
) -> SweepPlan:
    """The jobs of a sweep over a job; of one that goes elsewhere the configurations lie in `CONFIGS`."""
    if not sweep.axes and not sweep.jobs:
        raise UsageError(
            "nothing is varied: there is one job and no grid",
            hint="say what varies: --grid lr=1e-3,3e-4 --grid seed=0,1,2, or --csv jobs.csv",
        )
    configs = find_configs(wishes.claims) if elsewhere is None else CONFIGS
    builder = SweepBuilder(sweep, wire.encode(spec), group=wishes.group, configs_dir=configs, elsewhere=elsewhere)
    built = builder.build(all_jobs=all_jobs)
    if elsewhere is None:
        refuse_bad_configs((spec.config, *(job.change.get("config") for job in built.jobs)))
    if wishes.not_before is not None:
        built = replace(built, jobs=tuple(replace(job, not_before=wishes.not_before) for job in built.jobs))
    paths = [*builder.files, *([sweep.job_file] if sweep.job_file else [])]
    source = os.path.abspath(sweep.path) if sweep.text or sweep.job_file else None
    return SweepPlan(spec, built, wishes, _make_recipe(sweep, wishes, built, paths), source)


def _make_recipe(sweep: SweepFile, wishes: SubmitOptions, built: BuiltSweep, paths: Sequence[str]) -> Recipe:
    return Recipe(
        group=wishes.group,
        path=os.path.abspath(sweep.path),
        text=sweep.text,
        job_file=sweep.job_file,
        settings=dict(sweep.settings),
        arguments=tuple(sweep.arguments),
        shared=tuple(sweep.shared),
        claims=wishes.claims,
        after=tuple(sweep.after),
        priority=sweep.priority,
        base=built.base,
        files=hash_files(paths),
    )


# ----------------------------------------------------------------------------------------------------------- reading


def _read_source(asked: SweepOptions, here: str) -> SweepFile:
    """The sweep file; for a job file, or a command, a sweep of nothing but that job."""
    if asked.source is None:
        if not asked.command:
            raise UsageError(
                "no sweep: name a sweep file or a job file, or write a command behind `--`",
                hint="holdfast sweep sweep.yaml, or holdfast sweep --grid lr=1e-3,3e-4 -- python train.py",
            )
        return SweepFile("the command line", here)
    text = read_text(asked.source, "sweep file")
    refuse_program(text, asked.source)
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


def _make_absolute(nodes: Mapping[str, Node], here: str, *, elsewhere: bool) -> dict[str, Node]:
    """Paths of options count from where the person stands, also when those of the file count from another directory.

    Of jobs that go to a place (`elsewhere`) the place's own stay as they are written.
    """

    def resolve(node: Node) -> Node:
        if isinstance(node.value, list):
            return replace(node, value=[resolve(item) for item in node.value])
        text, kind = str(node.value), BY_PATH[path].kind
        if text == BY_PATH[path].word or (kind is Kind.IMAGE and not looks_like_file(text)):
            return node
        if kind is Kind.BINDS:
            found = text if elsewhere else _make_bind_absolute(text, here)
        elif elsewhere:
            found = OrderBase(here).read(text, path, node.where)
        else:
            found = os.path.join(here, os.path.expanduser(text))
        return replace(node, value=found, text=str(found))

    found = dict(nodes)
    for path, node in nodes.items():
        if BY_PATH[path].kind in _PATH_KINDS:
            found[path] = resolve(node)
    return found


def _make_bind_absolute(text: str, here: str) -> str:
    try:
        bind = read_bind(text)
    except ValueError:
        return text  # whoever reads it says so
    return str(replace(bind, source=os.path.join(here, os.path.expanduser(bind.source))))


def _read_spec(sweep: SweepFile, asked: SweepOptions, here: str, *, elsewhere: bool) -> JobSpec:
    """The job below all jobs."""
    inside = sweep.path == asked.source and bool(sweep.text)
    command = asked.command
    if command and "command" in sweep.job:
        raise UsageError(
            f"{sweep.job['command'].where} has a command, and there is another one behind `--`", hint="leave one out"
        )
    try:
        cwd = sweep.directory if inside else here
        under = read_queued_defaults()
        return read_job(sweep.job_file, sweep.job, command=command, cwd=cwd, elsewhere=elsewhere, under=under)
    except UsageError as error:
        if not inside:
            raise
        # What stands under `job:` is read as options are.
        raise JobFileError(str(error), hint="nothing was handed in; `holdfast schema` has every key") from error


def _make_wishes(asked: SweepOptions, sweep: SweepFile, spec: JobSpec) -> SubmitOptions:
    stem = os.path.splitext(os.path.basename(sweep.path))[0] if sweep.text else spec.name
    name = choose_group(asked.name or sweep.name or None, stem)
    return SubmitOptions(
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
