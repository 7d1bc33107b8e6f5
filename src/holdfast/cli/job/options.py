"""Every key of a job file as an option of `run` and `preflight`, from the same table.

An option's text goes through the same readers as the file's values, so both understand the same notations and answer
with the same words. `JobCommand` splits off the job's command at the first ``--`` before click sees it: whatever
stands behind it is the job's, untouched.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import click

from holdfast.cli.errors import HELP_ALL, JOB_COMMAND
from holdfast.cli.path_type import PATH
from holdfast.cli.render import note
from holdfast.cli.render.job_change import describe_changes
from holdfast.core.job.changes import leave_sweep, list_changes
from holdfast.model.errors import JobFileError, UsageError
from holdfast.model.job import JobSpec
from holdfast.model.record import replace

from .documents import Node, resolve_plain
from .env_file import PARAMETER, read_env_file
from .jobfile import change_job, read_job
from .schema import BY_PATH, KEYS, LIST_KINDS, SECTIONS, Key, Kind
from .shell_words import run_script
from .user_defaults import read_defaults, read_queued_defaults

Function = TypeVar("Function", bound=Callable[..., Any])

METAVARS: dict[Kind, str] = {
    Kind.TEXT: "TEXT",
    Kind.NAME: "NAME",
    Kind.COMMAND: "COMMAND",
    Kind.PATH: "PATH",
    Kind.PATHS: "PATH",
    Kind.IMAGE: "IMAGE",
    Kind.ARTIFACTS: "PATH",
    Kind.PATTERNS: "PATTERN",
    Kind.INT: "N",
    Kind.NUMBER: "NUMBER",
    Kind.DURATION: "DURATION",
    Kind.SIZE: "SIZE",
    Kind.GPUS: "CARDS",
    Kind.CPUS: "CPUS",
    Kind.ENV: "NAME=VALUE",
    Kind.SECRETS: "NAME[=file]",
    Kind.LINES: "LINE",
    Kind.ADDRESSES: "URL|secret:NAME",
    Kind.MAIL: "ADDRESS",
    Kind.MAILS: "ADDRESS",
    Kind.SERVER: "HOST[:PORT]",
    Kind.KEPT: "secret:NAME",
    Kind.STATUS: "EVERY",
    Kind.BINDS: "SOURCE:TARGET[:rw]",
    Kind.VARIABLES: "NAME",
    Kind.EVERY: "EVERY",
    Kind.SBATCH: "KEY=VALUE",
}
LONGEST_METAVAR = 24
SWEEP_SUBMIT = "holdfast sweep submit"
USUAL = frozenset({"gpus", "wait", "timeout", "name", "env", "limit-memory", "image"})
"""The options of a job that its verbs' help begins with; ``--help-all`` has all."""
USUAL_TITLE = "Usual options of the job"
SELDOM = frozenset({"--prove", "--runs", "--run-id", "--no-code", "--slurm", "--env-file"})
"""Options of the verbs themselves that only ``--help-all`` has."""
JOB_FILES = (".yaml", ".yml", ".toml")
LONGEST_HINT = 200
"""Bytes of a command line that is said again as it should have been typed."""
KEPT = ("the command of the run",)
"""Stands for a command that is not known at the desk."""
_PREFIX = "job_"
_NUMBERS = frozenset({Kind.INT, Kind.NUMBER})


class JobOption(click.Option):
    """An option made from a key, under its own name and under `name`; `section` is its place in the help page."""

    def __init__(self, key: Key, name: str = "") -> None:
        flag = key.kind is Kind.BOOL
        names = dict.fromkeys((name or key.option, key.option))
        declarations = [f"--{each}/--no-{each}" if flag else f"--{each}" for each in names]
        choices = "|".join(key.choices)
        metavar = METAVARS.get(key.kind) or (choices if len(choices) <= LONGEST_METAVAR else "WORD")
        help_text = f"{key.help}  [default: {key.default}]" if key.default else key.help
        if metavar == "WORD":
            help_text = f"{key.help} ({', '.join(key.choices)})  [default: {key.default}]"
        super().__init__(
            [*declarations, _parameter(key)],
            default=None,
            multiple=key.kind in LIST_KINDS or key.kind in {Kind.ENV, Kind.SBATCH},
            type=_click_type(key),
            metavar=None if flag else metavar,
            help=help_text,
        )
        self.section = key.section
        self.is_usual = key.option in USUAL


def _click_type(key: Key) -> click.ParamType[Any] | None:
    """Only for completion: values are checked by `values`, with the words that the file's values get."""
    if key.kind is Kind.BOOL:
        return None
    if key.kind in {Kind.PATH, Kind.PATHS, Kind.IMAGE}:
        return PATH
    return _Suggested(key.choices) if key.choices else click.STRING


class _Suggested(click.ParamType[str]):
    """Text that completes to one of `words`."""

    name = "text"

    def __init__(self, words: tuple[str, ...]) -> None:
        self._words = words

    def shell_complete(
        self,
        ctx: click.Context,  # noqa: ARG002 - click's signature
        param: click.Parameter,  # noqa: ARG002 - click's signature
        incomplete: str,
    ) -> list[Any]:
        """The words that begin with `incomplete`."""
        from click.shell_completion import CompletionItem

        return [CompletionItem(word) for word in self._words if word.startswith(incomplete)]


def _parameter(key: Key) -> str:
    return _PREFIX + key.path.replace(".", "__")


class JobCommand(click.Command):
    """A verb that takes a job: ``[OPTIONS] [JOB] [-- COMMAND...]``.

    Its help has the options that most people need; ``--help-all`` has all, where that is more. `takes_command`: a
    command may stand behind ``--``.
    """

    takes_command = True

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """As click does, and ``--help-all``."""
        found = super().get_params(ctx)
        if any(_is_seldom(parameter) for parameter in found):
            words = f"Show all {sum(isinstance(each, click.Option) for each in found) + 1} options and exit."
            found.append(
                click.Option(
                    [HELP_ALL], is_flag=True, is_eager=True, expose_value=False, help=words, callback=_show_all
                )
            )
        return found

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Split at the first ``--``; what follows becomes the parameter `command`."""
        command: tuple[str, ...] = ()
        if "--" in args:
            at = args.index("--")
            args, command = args[:at], tuple(args[at + 1 :])
            if not command and not ctx.resilient_parsing:
                raise UsageError("nothing stands behind `--`", hint="write the command there: -- python train.py")
        try:
            rest = super().parse_args(ctx, list(args))
        except click.UsageError as error:
            raise _explain_words(self, ctx, args, error, has_command=bool(command)) from error
        ctx.params["command"] = command
        return rest

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """As click does, and the command."""
        return [*super().collect_usage_pieces(ctx), JOB_COMMAND]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The verb's own options first, then the job's in their sections."""
        whole = ctx.meta.get(HELP_ALL, False)
        titles = SECTIONS if whole else (USUAL_TITLE,)
        sections: dict[str, list[tuple[str, str]]] = {"Options": [], **{title: [] for title in titles}}
        for parameter in self.get_params(ctx):
            if not whole and _is_seldom(parameter):
                continue
            record = parameter.get_help_record(ctx)
            if record is not None and isinstance(parameter, click.Option):
                title = "Options"
                if isinstance(parameter, JobOption):
                    title = parameter.section if whole else USUAL_TITLE
                sections[title].append(record)
        for title, records in sections.items():
            if not records:
                continue
            with formatter.section(title):
                formatter.write_dl(records)


def _explain_words(
    verb: JobCommand, ctx: click.Context, args: Sequence[str], error: click.UsageError, *, has_command: bool
) -> click.UsageError | UsageError:
    """The error of these words: that a command stands there without its ``--``, where it does, or there are two jobs.

    What comes before the first word that is no option is holdfast's own; all behind it is the command's.
    """
    parser = verb.make_parser(ctx)
    parser.allow_interspersed_args = False
    (argument,) = (each for each in verb.params if isinstance(each, click.Argument))
    try:
        values, rest, _ = parser.parse_args(list(args))
    except click.UsageError:
        return error
    named = values.get(argument.name or "")
    what = "run" if argument.name == "run" else "job"
    words = rest if what == "run" else [str(named), *rest]
    if not rest or words[0].startswith("-") or not verb.takes_command:
        return error
    own = args[: len(args) - len(words)]
    if has_command or _is_job_file(words[0]):
        files = [word for word in words if _is_job_file(word)]
        if len(files) < 2 or isinstance(error, click.NoSuchOption):
            return error
        each = "; ".join(f"{ctx.command_path} {word}" for word in files)
        return UsageError(f"more than one {what}: {', '.join(files)}", hint=f"one at a time: {each}")
    program, *others = words
    line = shlex.join([*ctx.command_path.split(), *own, "--", *run_script(program), *others])
    if len(line) > LONGEST_HINT:
        line = f"{ctx.command_path} ... -- COMMAND"
    hint = f"write `--` before the command: {line}"
    if ctx.command_path == SWEEP_SUBMIT and not os.path.exists(program) and shutil.which(program) is None:
        hint = "`holdfast sweep --help` lists its verbs; holdfast sweep show NAME has the jobs of one, and the best"
    return UsageError(f"more than one {what}, or a command without `--`: {' '.join(words[:3])}", hint=hint)


def _is_job_file(word: str) -> bool:
    return word.lower().endswith(JOB_FILES)


def _is_seldom(parameter: click.Parameter) -> bool:
    if isinstance(parameter, JobOption):
        return not parameter.is_usual
    return bool(SELDOM & {*parameter.opts})


def _show_all(context: click.Context, _param: click.Parameter, value: bool) -> None:  # noqa: FBT001 - click's signature
    if value and not context.resilient_parsing:
        context.meta[HELP_ALL] = True
        click.echo(context.get_help())
        context.exit()


def job_options(function: Function) -> Function:
    """Give a click callback all the job's options, as parameters `job_...`; they come in as keywords."""
    return take_options(key for key in KEYS if key.option)(function)


def take_options(keys: Iterable[Key], *, prefix: str = "") -> Callable[[Function], Function]:
    """Give a click callback the options of these keys; `prefix` can be left out of their names (``--limit-memory``)."""
    options = [JobOption(key, key.option.removeprefix(prefix)) for key in keys]

    def decorate(function: Function) -> Function:
        parameters = getattr(function, "__click_params__", [])
        parameters.extend(reversed(options))
        function.__click_params__ = parameters  # type: ignore[attr-defined]  # where click keeps them
        return function

    return decorate


def resolve_job(
    job: str | None,
    command: Sequence[str],
    options: Mapping[str, object],
    *,
    elsewhere: bool = False,
    queued: bool = False,
) -> JobSpec:
    """The job that a verb's arguments describe; `options` are the parameters that `job_options` made.

    `elsewhere` is as in `read_job`. The user's own defaults hold where nothing else is said; of a job for the queue,
    which waits for cards anyway, but that one.

    Raises:
        UsageError: nothing to run, or a mistake in an option.
        JobFileError: a mistake in the file.
    """
    if job is None and not command:
        raise UsageError(
            "no job: name a job file, or write a command behind `--`",
            hint="such as: job.yaml, or: --gpus 1 -- python train.py",
        )
    if job is not None and command and not os.path.lexists(job):
        raise JobFileError(
            f"{job}: no such job file",
            hint=f"the command behind `--` needs none: leave {job!r} out; if it belongs to the value before it, put "
            "quotes around both",
        )
    used: list[str] = []
    under = read_queued_defaults() if queued else read_defaults()
    spec = read_job(job, collect_nodes(options), command=command, elsewhere=elsewhere, under=under, used=used)
    if used:
        note(f"by your own defaults: {', '.join(used)} (holdfast config ls)")
    return spec


def refuse_slurm(options: Mapping[str, object], place: str | None) -> None:
    """Refuse options of sbatch that were typed without a place; those of a job file mean nothing here, and may stay.

    Raises:
        UsageError: there are some.
    """
    if place is None and asks_slurm(options):
        raise UsageError("--slurm is for a place of kind slurm", hint="name it with --on PLACE")


def asks_slurm(options: Mapping[str, object]) -> bool:
    """Whether options of sbatch were typed."""
    return bool(options.get(_parameter(BY_PATH["slurm"])))


def resolve_change(
    before: JobSpec, job: str | None, command: Sequence[str], options: Mapping[str, object], *, cwd: str | None = None
) -> JobSpec:
    """A recorded job as a verb's arguments change it; relative paths of options count from `cwd`, or from here.

    Raises:
        UsageError: a mistake in an option, or another name: that makes another run.
        JobFileError: a mistake in the file.
    """
    under = {} if job is None else read_defaults()
    return change_job(before, job, _collect_changes(options), command=command, cwd=cwd, defaults=under)


def resolve_like(before: JobSpec, command: Sequence[str], options: Mapping[str, object]) -> JobSpec:
    """The job of another run with what a verb's arguments change of it; it may have another name. Says what differs.

    Raises:
        UsageError: a mistake in an option.
    """
    job, notes = leave_sweep(before, command)
    found = change_job(job, None, collect_nodes(options), command=command)
    for text in (*notes, *(f"changed: {line}" for line in describe_changes(list_changes(job, found)))):
        note(text)
    return found


def read_change_elsewhere(job: str, command: Sequence[str], options: Mapping[str, object]) -> tuple[JobSpec, bool]:
    """The job of a file and options for a run at a place, and whether the run's command stays; the name means nothing.

    Raises:
        UsageError, JobFileError: as of `resolve_change`.
    """
    under: dict[str, object] = {**read_defaults(), "name": "restarted", "command": KEPT}
    found = read_job(job, _collect_changes(options), command=command, under=under, elsewhere=True)
    return found, found.command == KEPT


def _collect_changes(options: Mapping[str, object]) -> dict[str, Node]:
    nodes = collect_nodes(options)
    if "name" in nodes:
        hint = "leave --name out; holdfast run --name NAME begins another run"
        raise UsageError("a run keeps its name, which is part of its id", hint=hint)
    return nodes


def collect_nodes(options: Mapping[str, object]) -> dict[str, Node]:
    """Key path to node, for the options that were given."""
    found = {}
    for path, key in BY_PATH.items():
        value = options.get(_parameter(key))
        if value is not None and value != ():
            found[path] = _to_node(key, value)
    env_file = options.get(PARAMETER)
    if env_file is not None:
        found["env"] = _lay_over(read_env_file(str(env_file)), found.get("env"))
    return found


def _lay_over(file: Node, stated: Node | None) -> Node:
    """The variables of ``--env-file`` with those of ``--env`` over them."""
    if stated is None:
        return file
    assert isinstance(file.value, dict)
    assert isinstance(stated.value, dict)
    return replace(file, value={**file.value, **stated.value})


def _to_node(key: Key, value: object) -> Node:
    where = _name_option(key)
    if key.kind is Kind.ENV:
        assert isinstance(value, tuple)
        return Node(dict(_split_variable(str(item)) for item in value), where)
    if key.kind is Kind.SBATCH:
        assert isinstance(value, tuple)
        pairs = (str(item).partition("=") for item in value)
        return Node({name.strip(): Node(text.strip(), where) for name, _, text in pairs}, where)
    if value == (key.word,):
        return Node(key.word, where, text=key.word)
    if isinstance(value, tuple):
        return Node([Node(str(item), where, text=str(item)) for item in value], where)
    if isinstance(value, bool):
        return Node(value, where, text=str(value).lower())
    text = str(value)
    return Node(resolve_plain(text) if key.kind in _NUMBERS else text, where, text=text)


def _name_option(key: Key) -> str:
    """The option as the verb that runs calls it: `limit` has ``--memory`` for ``--limit-memory``."""
    context = click.get_current_context(silent=True)
    named = [] if context is None else [item.opts[0] for item in context.command.params if item.name == _parameter(key)]
    return named[0] if named else f"--{key.option}"


def _split_variable(item: str) -> tuple[str, Node]:
    name, equals, text = item.partition("=")
    if not equals:
        raise UsageError(f"--env: {item!r} is not NAME=VALUE", hint=f"to pass on a variable as it is, `export {name}`")
    return name, Node(text, "--env", text=text)
