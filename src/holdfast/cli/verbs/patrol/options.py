"""The options that ``holdfast patrol`` and its verbs share."""

from __future__ import annotations

import click

JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
BY_CONFIG = click.option(
    "--notify", is_flag=True, help="Tell whoever your own defaults name (holdfast config ls) when a person is needed."
)
NOTIFY = click.option(
    "--notify-command",
    metavar="COMMAND",
    help="Run this when a person is needed, with the report as JSON on its input; split into words like a shell would.",
)
