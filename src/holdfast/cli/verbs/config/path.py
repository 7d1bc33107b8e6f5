"""``holdfast config path``: where the file is."""

from __future__ import annotations

import click

from holdfast.cli.job.user_defaults import defaults_path

from . import VERBS


@click.command("path", short_help=VERBS["path"])
def command() -> int:
    """Print the path of config.toml, whether or not there is one."""
    click.echo(defaults_path())
    return 0
