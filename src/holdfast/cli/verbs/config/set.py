"""``holdfast config set``: state a default."""

from __future__ import annotations

import os
import shutil

import click

from holdfast.cli.job.user_defaults import find_key, read_channels, set_default
from holdfast.cli.render import note

from . import VERBS


@click.command("set", short_help=VERBS["set"])
@click.argument("key")
@click.argument("values", nargs=-1, required=True, metavar="VALUE...")
def command(*, key: str, values: tuple[str, ...]) -> int:
    """State VALUE as your default for KEY; several where the key takes a list.

    A key is written as in a job file (gpu.wait) or as its option (wait). What else is in the file stays as it is.
    """
    found = find_key(key)
    stated = set_default(found, values)
    note(f"{stated.key} = {stated.text} in {stated.where}; it holds for jobs that are started from now on")
    program = next(iter(read_channels()[0].command), "") if found.path == "notify.command" else ""
    if program and shutil.which(os.path.expanduser(program)) is None:
        note(f"warning: there is no program {program} on this machine that can be run; nobody here is told by it")
    return 0
