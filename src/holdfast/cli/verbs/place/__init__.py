"""``holdfast place``: the machines where jobs run, besides this one."""

from __future__ import annotations

from typing import Any

import click

from holdfast.cli.lazy_group import load_command, verb_group

VERBS = {
    "add": "Configure a place, and look whether it answers.",
    "login": "Log in by hand, for all calls of the next hours.",
    "ls": "List the places.",
    "probe": "Measure what a place is and has.",
    "rm": "Forget a place, and what is known of it.",
    "show": "Show what is configured and known of a place.",
    "trust": "Record the host key of a place, after a look at it.",
}
EPILOG = """\b
Examples:
  holdfast place add gpu1 me@gpu1.lab --root /data/me/runs
  holdfast place probe gpu1
  holdfast place trust gpu1              its host key is new, or has changed

A Host of ~/.ssh/config is a place without further ado: its jump hosts, keys and ports are as ssh has them."""


@verb_group(__name__, VERBS, EPILOG)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
@click.pass_context
def command(ctx: click.Context, *, as_json: bool) -> Any:  # noqa: ANN401 - what click hands on
    """Configure, measure and trust the machines where jobs run. Without a subcommand the same as `ls`.

    They stand in places.toml (below $XDG_CONFIG_HOME/holdfast, else ~/.config/holdfast), which may be written by hand.
    """
    if ctx.invoked_subcommand is not None:
        return 0
    return ctx.invoke(load_command(__name__, "ls"), as_json=as_json)
