"""``holdfast config unset``: state a default no more."""

from __future__ import annotations

import click

from holdfast.cli.job.user_defaults import find_key, unset_default
from holdfast.cli.render import note

from . import VERBS


@click.command("unset", short_help=VERBS["unset"])
@click.argument("key")
def command(*, key: str) -> int:
    """Take your default for KEY out of the file."""
    found = find_key(key)
    path = unset_default(found)
    note(f"{found.path} is {found.default} again ({path})")
    return 0
