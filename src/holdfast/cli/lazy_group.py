"""A click group whose commands are found by their file's name and imported only when used.

Listing and completing the commands work from the table of one-line helps alone: no command is imported for them.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from typing import Any

import click
from click.shell_completion import CompletionItem

from holdfast.core.near import find_near
from holdfast.model.errors import InternalError, UsageError

from .verbs import SUMMARIES

ONLY_HERE = frozenset(
    {
        "checkpoints",
        "completion",
        "config",
        "cost",
        "cp",
        "explain",
        "fault",
        "lifecycle",
        "notify",
        "place",
        "profile",
        "pull",
        "push",
        "results",
        "schema",
        "secret",
        "sweep",
        "teardown",
        "tunnel",
    }
)
"""The desk verbs of `desk.route.table`, which is not loaded for every command."""
GROUPS_OF_PLACES = frozenset({"checkpoints", "fault", "notify", "results", "sweep"})
"""Of these, groups that only list their verbs, which have places."""
ON_HELP = "Do it at this place, as if it were typed there."


class LazyGroup(click.Group):
    """A group whose command ``reset-request`` is `command` of `<package>.reset_request`.

    `summaries` has the commands in the order of the help page with their one-line helps; those in `unlisted` work and
    are not listed. `elsewhere` has words that people try, with the command that does it.
    """

    title = "Commands"
    elsewhere: Mapping[str, str] = {}

    def __init__(
        self,
        *args: Any,  # noqa: ANN401 - click's own
        package: str,
        summaries: Mapping[str, str],
        unlisted: frozenset[str] = frozenset(),
        **kwargs: Any,  # noqa: ANN401 - click's own
    ) -> None:
        """As of a click group, besides where its commands are."""
        super().__init__(*args, **kwargs)
        self.package, self.summaries, self.unlisted = package, summaries, unlisted
        self.route = package.partition(".verbs")[2].replace(".", " ").strip()

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """The commands of the help page, in its order."""
        return [name for name in self.summaries if name not in self.unlisted]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        """The command, imported now; None when there is no such."""
        if cmd_name not in self.summaries:
            return None
        return offer_places(load_command(self.package, cmd_name), f"{self.route} {cmd_name}".strip())

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does; a word that is no command is told with those that are."""
        word = args[0]
        if self.route and word not in self.summaries and not word.startswith("-") and not ctx.resilient_parsing:
            near = find_near(word, self.list_commands(ctx))
            near = f"`{self.elsewhere[word]}`" if word in self.elsewhere else near
            hint = f"did you mean {near}?" if near else f"it has {', '.join(self.list_commands(ctx))}"
            raise UsageError(f"`holdfast {self.route}` has no command {word!r}", hint=hint)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - click's signature
        """As click does; an error of a verb's options that names no verb is given it."""
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            verb = ctx.invoked_subcommand
            command = None if verb is None else self.get_command(ctx, verb)
            if error.ctx is None and command is not None:
                error.ctx = click.Context(command, parent=ctx, info_name=verb)
            raise

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The table of commands, from their summaries."""
        with formatter.section(self.title):
            formatter.write_dl([(name, self.summaries[name]) for name in self.list_commands(ctx)])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Commands that begin with `incomplete`, then the group's own options."""
        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        found = [CompletionItem(name, help=self.summaries[name]) for name in names]
        return found + click.Command.shell_complete(self, ctx, incomplete)


class ShortGroup(LazyGroup):
    """A group that can be typed without a verb: the first word that names none belongs to its `default` verb."""

    default = ""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the default's name before arguments that have none."""
        if args and args[0] not in self.summaries and args[0] not in ctx.help_option_names:
            word = args[0]
            us = f"holdfast {self.route}"
            near = "" if word.startswith("-") or os.path.exists(word) else find_near(word, self.summaries)
            meant = self.elsewhere.get(word) or (f"{us} {near}" if near else "")
            if meant and not os.path.exists(word) and not ctx.resilient_parsing:
                hint = f"did you mean `{meant}`? else: {us} {self.default} {word}"
                raise UsageError(f"`{us}` has no command {word!r}, and there is no such file", hint=hint)
            args = [self.default, *args]
        return super().parse_args(ctx, args)


def verb_group(
    package: str,
    summaries: Mapping[str, str],
    epilog: str | None = None,
    *,
    unlisted: frozenset[str] = frozenset(),
    cls: type[LazyGroup] = LazyGroup,
) -> Callable[[Callable[..., Any]], click.Group]:
    """Make a verb of one that has verbs of its own, in `package`, whose last part is its name; it may stand alone."""
    return click.group(
        cls=cls,
        package=package,
        summaries=summaries,
        unlisted=unlisted,
        short_help=SUMMARIES[package.rpartition(".")[2]],
        epilog=epilog,
        invoke_without_command=True,
    )


def list_verbs(ctx: click.Context) -> int:
    """What a verb does that stands alone and means nothing by itself: it lists its verbs, and is a usage error."""
    if ctx.invoked_subcommand is not None:
        return 0
    click.echo(ctx.get_help(), err=True)
    return UsageError.exit_code


def offer_places(command: click.Command, name: str) -> click.Command:
    """The command, with ``--on`` in its help and at a TAB where it may be at a place; the router reads it."""
    here = name in ONLY_HERE or name.partition(" ")[0] in ONLY_HERE - GROUPS_OF_PLACES
    if here or any("--on" in parameter.opts for parameter in command.params):
        return command
    command.params.append(
        click.Option(
            ["--on"],
            metavar="PLACE",
            expose_value=False,
            help=ON_HELP,
            shell_complete=complete_places,
            callback=_refuse_on,
        )
    )
    return command


def _refuse_on(_context: click.Context, _param: click.Parameter, value: str | None) -> None:
    """The router takes it out of the command line: here nobody may act on this machine instead."""
    if value is not None:
        raise InternalError(f"--on {value} was not routed", hint="nothing was done")


def complete_places(_context: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The names of places that begin so."""
    from holdfast.desk.places.names import list_place_names  # lazy: at a TAB alone

    try:
        return [CompletionItem(name, help=about) for name, about in list_place_names(incomplete)]
    except Exception:  # noqa: BLE001 - a TAB must never print an error into somebody's command line
        return []


def load_command(package: str, name: str) -> click.Command:
    """`command` of the module for `name` in `package`."""
    command = importlib.import_module(f"{package}.{name.replace('-', '_')}").command
    assert isinstance(command, click.Command)
    return command
