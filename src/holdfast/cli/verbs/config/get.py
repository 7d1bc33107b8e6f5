"""``holdfast config get``: the value of one key."""

from __future__ import annotations

import click

from holdfast.cli.job.user_defaults import find_key, read_stated
from holdfast.cli.render import note

from . import VERBS


@click.command("get", short_help=VERBS["get"])
@click.argument("key")
def command(*, key: str) -> int:
    """Print what you stated for KEY.

    Exit code 0: it is stated. 1: it is not; what holds then is said on standard error. 66: there is no such key.
    """
    found = find_key(key)
    text = next((item.text for item in read_stated() if item.key == found.path), None)
    if text is None:
        note(f"{found.path} is not stated; it is {found.default}")
        return 1
    click.echo(text)
    return 0
