"""From a sweep as written to jobs as they are handed in: each with its name, command, environment and configuration.

What is said in more than one place: for all jobs (``set:``, ``--set``) is overruled by what ``overrides:`` say, and
that by the job's own parameters; job keys go the same way. A parameter then reaches the program in the first way that
fits: the overlay chooses layers; a placeholder ``{name}`` anywhere in the job takes it; a configuration that is
resolved takes dotted names and those it has at its top; else it becomes an argument. All are in the environment, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.cli.job import values
from holdfast.cli.job.jobfile import Problem, check_together
from holdfast.cli.job.schema import BY_PATH, Kind
from holdfast.core.job.redact import REDACTED, holds_secret
from holdfast.core.queue import grid
from holdfast.core.queue.job_hasher import JobHasher
from holdfast.model import wire
from holdfast.model.errors import HoldfastError, JobFileError, UsageError
from holdfast.model.ids import clean_name
from holdfast.model.job import JobSpec
from holdfast.model.queue import NewJob
from holdfast.model.record import record, replace
from holdfast.model.sweep import OVERLAY, BuiltSweep, Point, ResolvedConfig

from .contradictions import ContradictionFinder
from .layers import Layers
from .read import FileProblems
from .sweep_file import HINT, JobOverride, SweepFile

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from holdfast.cli.job.documents import Node

    from .elsewhere import Elsewhere

JOB_VARIABLE = "HOLDFAST_JOB"
GROUP_VARIABLE = "HOLDFAST_GROUP"
LONGEST_RUN_NAME = 48


@record
class _Entry:
    """A point with everything that was said for it alone, weakest first."""

    point: Point
    own: tuple[JobOverride, ...]


@record
class _Template:
    """What jobs with the same job keys share: the changed fields, the job, its placeholders, the fields with any."""

    change: dict[str, Any]
    job: dict[str, Any]
    placed: frozenset[str]
    fields: frozenset[str]


class SweepBuilder:
    """Makes the jobs of one sweep over one base job.

    `base` is the encoded job, `group` the group's name, `configs_dir` where resolved configurations will lie, and
    `elsewhere` is for jobs that go to a place. Job keys
    of the command line are in `base` already; ``sweep.job`` has them, too, to be compared with the jobs'.
    """

    def __init__(
        self,
        sweep: SweepFile,
        base: dict[str, Any],
        *,
        group: str,
        configs_dir: str,
        elsewhere: Elsewhere | None = None,
    ) -> None:
        """Look at what there is to resolve; nothing is made yet."""
        self._sweep = sweep
        self._base = base
        self._group = group
        self._configs_dir = configs_dir
        self._problems = FileProblems()
        self._notes: dict[str, None] = {}
        self._configs: dict[str, ResolvedConfig] = {}
        self._templates: dict[tuple[int, ...], _Template] = {}
        self._harmless: set[tuple[str, str]] = set()
        self._layers = Layers(sweep, base, elsewhere)
        self._paths = sweep.directory if elsewhere is None else elsewhere.base_of(sweep.directory)
        self._used: set[int] = set()

    @property
    def _blame(self) -> type[HoldfastError]:
        """A mistake is the file's, when there is one; else the command line's."""
        return JobFileError if self._sweep.text or self._sweep.jobs else UsageError

    @property
    def files(self) -> list[str]:
        """The configurations and overlays that were read."""
        return self._layers.list_files()

    def build(self, *, all_jobs: bool = True) -> BuiltSweep:
        """All jobs; with `all_jobs` it is said when a rule of the sweep fits none of them.

        Raises:
            JobFileError: something in it is wrong; up to ten mistakes are named.
        """
        entries = list(self._list_entries())
        for text in grid.find_twins([(entry.point.name, _describe(entry.point)) for entry in entries]):
            self._problems.add(self._sweep.path, text)
        self._check_entries(entries, all_jobs=all_jobs)
        self._problems.raise_any(HINT, self._blame)
        hasher, watcher = JobHasher(self._base), ContradictionFinder(self._sweep, all_jobs=all_jobs)
        jobs = [job for entry in entries if (job := self._build(entry, hasher, watcher)) is not None]
        self._problems.raise_any(HINT, self._blame)
        return BuiltSweep(self._base, tuple(jobs), self._configs, tuple(watcher.found), tuple(self._notes))

    # --- points -----------------------------------------------------------------------------------------------------

    def _list_entries(self) -> Iterable[_Entry]:
        sweep = self._sweep
        try:
            points = grid.expand_grid(sweep.axes) if sweep.axes else []
        except grid.GridError as error:
            self._problems.add(sweep.path, str(error))
            return
        excluded: set[int] = set()
        for params in points:
            hits = [number for number, (_, when) in enumerate(sweep.exclude) if grid.matches_parameters(params, when)]
            excluded.update(hits)
            if not hits:
                yield self._make_entry(params, None)
        for number, (where, when) in enumerate(sweep.exclude):
            if number not in excluded and sweep.axes:
                self._notes[f"{where}: exclude: fits no job: {_say(when)}"] = None
        for own in sweep.jobs:
            yield self._make_entry(own.params, own)

    def _make_entry(self, params: Mapping[str, str], entry: JobOverride | None) -> _Entry:
        if entry is not None and entry.overlays:
            params = {**params, OVERLAY: "+".join(entry.overlays)}
        known = {**self._sweep.settings, **params}
        fitting = [own for own in self._sweep.overrides if grid.matches_parameters(known, own.when)]
        self._used.update(id(own) for own in fitting)
        merged = dict(self._sweep.settings)
        for own in fitting:
            merged.update(own.params)
        # Those that vary come first: in tables, and in the command.
        merged = {**params, **{name: value for name, value in merged.items() if name not in params}}
        name = entry.name if entry is not None and entry.name else grid.make_name(params)
        where = entry.where if entry is not None else ""
        own_names = frozenset(params) | frozenset(name for own in fitting for name in own.params)
        return _Entry(Point(name, merged, own_names, where), (*fitting, *([entry] if entry is not None else [])))

    def _check_entries(self, entries: Sequence[_Entry], *, all_jobs: bool) -> None:
        for entry in entries:
            try:
                grid.check_name(entry.point.name)
            except grid.GridError as error:
                self._problems.add(_describe(entry.point), str(error))
        if len(entries) > grid.MAX_JOBS:
            self._problems.add(self._sweep.path, f"these are {len(entries)} jobs; the most at once is {grid.MAX_JOBS}")
        if not entries and not self._problems:
            self._problems.add(self._sweep.path, "every job is excluded, nothing is left")
        for own in self._sweep.overrides if all_jobs else ():
            if id(own) not in self._used:
                self._notes[f"{own.where}: overrides: fits no job: {_say(own.when)}"] = None

    # --- jobs ------------------------------------------------------------------------------------------------------

    def _build(self, entry: _Entry, hasher: JobHasher, watcher: ContradictionFinder) -> NewJob | None:
        point = entry.point
        try:
            self._refuse_secrets(point)
            template = self._make_template(entry)
            config = self._resolve(entry, template, watcher)
            change = self._fill(point, template, config)
        except (grid.GridError, ValueError) as error:
            self._problems.add(_describe(point), str(error))
            return None
        cost = next((own.cost_s for own in reversed(entry.own) if own.cost_s is not None), self._sweep.cost_s)
        return NewJob(
            point.name,
            change,
            dict(point.params),
            needs=self._sweep.after,
            priority=self._sweep.priority,
            expected_s=cost if cost is not None else template.job.get("expected_s"),
            sha256=hasher.hash(change),
        )

    def _refuse_secrets(self, point: Point) -> None:
        for name, value in point.params.items():
            if (name, value) in self._harmless:
                continue
            if holds_secret(name, value):
                raise grid.GridError(f"{name} looks like a secret, which would be stored; `export` it instead")
            self._harmless.add((name, value))

    def _make_template(self, entry: _Entry) -> _Template:
        """The job after the keys of overrides and of the job; made once for each set of them."""
        layers = [own for own in entry.own if own.job]
        key = tuple(id(own) for own in layers)
        if key not in self._templates:
            change: dict[str, Any] = {}
            for own in layers:
                lay_over(self._base, change, own.job, self._paths, self._problems)
            job = {**self._base, **change}
            problems: list[Problem] = []
            check_together(self._sweep.path, _list_fields(job), problems)
            for problem in problems if layers else ():
                self._problems.add(layers[-1].where, f"{problem.key}: {problem.message}")
            fields = frozenset(name for name, value in job.items() if grid.find_placeholders(value))
            placed = grid.find_placeholders(job)
            known = {*self._list_params(), *grid.RESERVED}
            misspelt = grid.find_misspelt(placed, known)
            for name, meant in misspelt.items():
                self._problems.add(self._sweep.path, f"{{{name}}} is no parameter; did you mean {{{meant}}}?")
            for name in sorted(placed - known - misspelt.keys()):
                self._notes[f"{{{name}}} is no parameter, and stays as it is"] = None
            self._templates[key] = _Template(change, job, placed, fields)
        return self._templates[key]

    def _list_params(self) -> set[str]:
        sweep = self._sweep
        every: list[Mapping[str, object]] = [sweep.axes, sweep.settings]
        every += [own.params for own in (*sweep.jobs, *sweep.overrides)]
        return {name for params in every for name in params}

    def _resolve(self, entry: _Entry, template: _Template, watcher: ContradictionFinder) -> ResolvedConfig | None:
        """The job's configuration, when it has one of its own; contradictions are noted on the way."""
        point, own = entry.point, point_overlays(entry.own)
        overlays = [*own, *point.params.get(OVERLAY, "").split("+")] if OVERLAY in point.params else own
        config = self._layers.read_for(list(dict.fromkeys(overlays)), template.job)
        watcher.watch(point, entry.own, template.job, config)
        if not self._layers.active or config is None:
            return None
        resolved, notes = self._layers.resolve(point, config, template.placed)
        self._notes.update(dict.fromkeys(notes))
        if not self._layers.takes_config(template.job):
            raise grid.GridError(
                "the resolved configuration never reaches the program: write {config} in the command where "
                f"{self._layers.base_path} belongs"
            )
        return self._configs.setdefault(resolved.sha256, resolved)

    def _fill(self, point: Point, template: _Template, config: ResolvedConfig | None) -> dict[str, object]:
        """Put the parameters where they belong; the job's whole change."""
        job, change = template.job, dict(template.change)
        texts = {**point.params, "job": point.name, "group": self._group}
        command: Any = job["command"]
        taken: frozenset[str] = frozenset()
        if config is not None:
            change["config"] = texts["config"] = f"{self._configs_dir}/{config.file_name}"
            command = self._layers.replace_path(command, texts["config"], str(job["workdir"]))
            taken = self._layers.list_taken(point, template.placed)
        elif job.get("config"):
            texts["config"] = str(grid.fill_placeholders(job["config"], texts))
        elif "config" in template.placed:
            raise grid.GridError("{config} is written, and neither the sweep nor the job has a `config:`")
        for name in template.fields - {"command", "env", *(["config"] if config is not None else [])}:
            change[name] = grid.fill_placeholders(job[name], texts)
        rest = grid.to_command(point.params, template.placed | taken)
        filled: Any = grid.fill_placeholders(command, texts)
        change["command"] = [*map(str, filled), *grid.make_arguments(self._sweep.arguments, rest)]
        env: Any = grid.fill_placeholders(job.get("env") or {}, texts)
        own = {JOB_VARIABLE: point.name, GROUP_VARIABLE: self._group}
        change["env"] = {**env, **grid.make_variables(point.params), **own}
        change.setdefault("name", make_run_name(self._group, point.name))
        return change


def make_run_name(group: str, job: str) -> str:
    """The name of a job's runs: with the group's before it where there is room, else the end, which tells most."""
    whole = f"{group}-{job}"
    return clean_name(whole if len(whole) <= LONGEST_RUN_NAME else job[-LONGEST_RUN_NAME:])


def point_overlays(own: Sequence[JobOverride]) -> list[str]:
    """The overlays of the overrides that fit a job; those of the job itself are its parameter."""
    return [name for layer in own if layer.when for name in layer.overlays]


def lay_over(
    base: Mapping[str, Any],
    change: dict[str, Any],
    nodes: Mapping[str, Any],
    paths: values.Base,
    problems: FileProblems,
) -> None:
    """Put job keys into `change`, whose fields replace those of the encoded `base` whole; paths count from `paths`."""
    for path, node in nodes.items():
        key = BY_PATH[path]
        try:
            if key.kind is Kind.ENV:
                change["env"] = {**change.get("env", base.get("env") or {}), **_read_variables(node)}
                continue
            value = values.convert_value(key, node, paths)
        except ValueError as error:
            problems.add(getattr(error, "where", "") or node.where, f"{path}: {error}", node.line)
            continue
        if isinstance(value, dict):
            change[key.field] = {**change.get(key.field, base.get(key.field) or {}), **value}
            continue
        top, _, leaf = key.field.partition(".")
        encoded = _default(key.field) if value is values.UNSTATED else wire.encode(value)
        if leaf:
            change[top] = {**change.get(top, base[top]), leaf: encoded}
        else:
            change[top] = encoded


def _read_variables(node: Node) -> dict[str, str]:
    if not isinstance(node.value, dict):
        raise values.WrongValueError(f"expected a mapping NAME: value, found {values.describe_node(node)}")
    variables = {name: values.read_variable(name, item) for name, item in node.value.items()}
    for name, text in variables.items():
        if holds_secret(name, text):
            raise values.WrongValueError(f"{name} looks like a secret, which would be stored; `export` it instead")
    return variables


def _default(field_name: str) -> object:
    """The encoded default of a field of `JobSpec`."""
    value: Any = wire.encode(JobSpec(name="x", command=("x",), workdir="/"))
    for part in field_name.split("."):
        value = value[part]
    return value


def _list_fields(job: Mapping[str, Any]) -> dict[str, object]:
    """Dotted fields to values, as `check_together` wants them; numbers of seconds as floats."""
    found: dict[str, object] = {}
    for name, value in job.items():
        for leaf, inner in value.items() if isinstance(value, dict) and name != "env" else (("", value),):
            is_seconds = f"{name}{leaf}".endswith("_s") and isinstance(inner, int)
            found[f"{name}.{leaf}" if leaf else name] = float(inner) if is_seconds else inner
    return found


def _describe(point: Point) -> str:
    own = {name: value for name, value in point.params.items() if name in point.own}
    secret = any(holds_secret(name, value) for name, value in own.items())
    # A job's name is made of the same values.
    said = " ".join(f"{name}={REDACTED if secret else value}" for name, value in own.items())
    return f"{point.where or 'grid'}: {said or point.name}"


def _say(when: Mapping[str, Sequence[str]]) -> str:
    return ", ".join(f"{name} {' or '.join(wanted)}" for name, wanted in when.items())


def merge_options(sweep: SweepFile, settings: Mapping[str, str], axes: Mapping[str, tuple[str, ...]]) -> SweepFile:
    """The sweep with what the command line says over it: values set for all, and axes in place of its own.

    Raises:
        JobFileError: a parameter is both set for all and an axis of the command line.
    """
    both = sorted(set(settings) & set(axes))
    if both:
        raise JobFileError(f"{', '.join(both)}: stands in --set and in --grid", hint="leave one out")
    return replace(sweep, settings={**sweep.settings, **settings}, axes={**sweep.axes, **axes})
