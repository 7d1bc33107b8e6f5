"""``holdfast schema``: the form of a job file, for editors."""

from __future__ import annotations

import json

import click

from holdfast.cli.job.schema import build_json_schema

from . import SUMMARIES


@click.command(short_help=SUMMARIES["schema"])
@click.option("--json", "as_json", is_flag=True, help="Accepted for uniformity: the schema is JSON anyway.")
def command(as_json: bool) -> int:  # noqa: FBT001 - a flag of the command line
    """Print the JSON Schema (draft 2020-12) of job files.

    Save it beside your job files and begin them with `# yaml-language-server: $schema=holdfast.schema.json` to have an
    editor complete and check the keys.
    """
    del as_json
    print(json.dumps(build_json_schema(), indent=2))
    return 0
