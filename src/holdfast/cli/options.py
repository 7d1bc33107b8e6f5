"""Every key of a job file as an option of `run` and `preflight`, from the same table.

An option's text goes through the same readers as the file's values, so both understand the same notations and answer
with the same words. `JobCommand` splits off the job's command at the first ``--`` before click sees it: whatever
stands behind it is the job's, untouched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import click

from holdfast.model.errors import UsageError

from .documents import Node, resolve_plain
from .jobfile import read_job
from .schema import BY_PATH, KEYS, LIST_KINDS, SECTIONS, Key, Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from holdfast.model.job import JobSpec

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
    Kind.URL: "URL",
    Kind.EVERY: "EVERY",
}
LONGEST_METAVAR = 24
_PREFIX = "job_"
_NUMBERS = frozenset({Kind.INT, Kind.NUMBER})


class JobOption(click.Option):
    """An option made from a key; `section` is its place in the help page."""

    def __init__(self, key: Key) -> None:
        flag = key.kind is Kind.BOOL
        declaration = f"--{key.option}/--no-{key.option}" if flag else f"--{key.option}"
        choices = "|".join(key.choices)
        metavar = METAVARS.get(key.kind) or (choices if len(choices) <= LONGEST_METAVAR else "WORD")
        help_text = f"{key.help}  [default: {key.default}]" if key.default else key.help
        if metavar == "WORD":
            help_text = f"{key.help} ({', '.join(key.choices)})  [default: {key.default}]"
        super().__init__(
            [declaration, _parameter(key)],
            default=None,
            multiple=key.kind in LIST_KINDS or key.kind is Kind.ENV,
            type=_click_type(key),
            metavar=None if flag else metavar,
            help=help_text,
        )
        self.section = key.section


def _click_type(key: Key) -> click.ParamType[Any] | None:
    """Only for completion: values are checked by `values`, with the words that the file's values get."""
    if key.kind is Kind.BOOL:
        return None
    if key.kind in {Kind.PATH, Kind.PATHS, Kind.IMAGE}:
        return click.Path()
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
    """A verb that takes a job: ``[OPTIONS] [JOB] [-- COMMAND...]``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Split at the first ``--``; what follows becomes the parameter `command`."""
        command: tuple[str, ...] = ()
        if "--" in args:
            at = args.index("--")
            args, command = args[:at], tuple(args[at + 1 :])
            if not command and not ctx.resilient_parsing:
                raise UsageError("nothing stands behind `--`", hint="write the command there: -- python train.py")
        try:
            rest = super().parse_args(ctx, args)
        except click.UsageError as error:
            if "unexpected extra argument" in str(error.message).lower():
                raise UsageError(
                    f"more than one job: {error.format_message()}",
                    hint=f"to run a command, write `--` before it: {ctx.command_path} [OPTIONS] -- COMMAND ARGUMENTS",
                ) from error
            raise
        ctx.params["command"] = command
        return rest

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """As click does, and the command."""
        return [*super().collect_usage_pieces(ctx), "[-- COMMAND...]"]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The verb's own options first, then the job's in their sections."""
        sections: dict[str, list[tuple[str, str]]] = {"Options": [], **{title: [] for title in SECTIONS}}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None and isinstance(parameter, click.Option):
                sections[getattr(parameter, "section", "Options")].append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


def job_options(function: Function) -> Function:
    """Give a click callback all the job's options, as parameters `job_...`; they come in as keywords."""
    parameters = getattr(function, "__click_params__", [])
    parameters.extend(JobOption(key) for key in reversed(KEYS) if key.option)
    function.__click_params__ = parameters  # type: ignore[attr-defined]  # where click keeps them
    return function


def resolve_job(job: str | None, command: Sequence[str], options: Mapping[str, object]) -> JobSpec:
    """The job that a verb's arguments describe; `options` are the parameters that `job_options` made.

    Raises:
        UsageError: nothing to run, or a mistake in an option.
        JobFileError: a mistake in the file.
    """
    if job is None and not command:
        raise UsageError(
            "no job: name a job file, or write a command behind `--`",
            hint="holdfast run job.yaml, or holdfast run --gpus 1 -- python train.py",
        )
    return read_job(job, collect_nodes(options), command=command)


def collect_nodes(options: Mapping[str, object]) -> dict[str, Node]:
    """Key path to node, for the options that were given."""
    found = {}
    for path, key in BY_PATH.items():
        value = options.get(_parameter(key))
        if value is not None and value != ():
            found[path] = _to_node(key, value)
    return found


def _to_node(key: Key, value: object) -> Node:
    where = f"--{key.option}"
    if key.kind is Kind.ENV:
        assert isinstance(value, tuple)
        return Node(dict(_split_variable(str(item)) for item in value), where)
    if isinstance(value, tuple):
        return Node([Node(str(item), where, text=str(item)) for item in value], where)
    if isinstance(value, bool):
        return Node(value, where, text=str(value).lower())
    text = str(value)
    return Node(resolve_plain(text) if key.kind in _NUMBERS else text, where, text=text)


def _split_variable(item: str) -> tuple[str, Node]:
    name, equals, text = item.partition("=")
    if not equals:
        raise UsageError(f"--env: {item!r} is not NAME=VALUE", hint=f"to pass on a variable as it is, `export {name}`")
    return name, Node(text, "--env", text=text)
