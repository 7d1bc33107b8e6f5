"""``holdfast config``: what you want of every job that says nothing about it, once for all."""

from __future__ import annotations

import click

from holdfast.cli.lazy_group import list_verbs, verb_group

VERBS = {
    "ls": "List the keys, what you stated, and what holds otherwise.",
    "get": "Print the value of one key.",
    "set": "State a default.",
    "unset": "Remove a default that you stated.",
    "path": "Print where the file is.",
}
EPILOG = """\b
Examples:
  holdfast config set notify.email me@example.org
  holdfast config set notify.slack secret:SLACK       the address: holdfast secret push local SLACK
  holdfast config set wait 2h                         as with run --wait 2h
  holdfast config set priority normal                 never be nice to others"""


@verb_group(__name__, VERBS, EPILOG)
@click.pass_context
def command(ctx: click.Context) -> int:
    """State your own defaults for jobs: messages, the wait for cards, the priority.

    They stand in config.toml in $XDG_CONFIG_HOME/holdfast, and hold where neither the command line nor the job file
    says anything. For a job at a place they are read here and travel with it.
    """
    return list_verbs(ctx)
