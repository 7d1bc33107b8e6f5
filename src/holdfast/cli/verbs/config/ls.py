"""``holdfast config ls``: the keys, what is stated, and what holds otherwise."""

from __future__ import annotations

import click

from holdfast.cli.job.user_defaults import DEFAULT_KEYS, list_defaults
from holdfast.cli.render import note, print_record, table

from . import VERBS


@click.command("ls", short_help=VERBS["ls"])
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def command(*, as_json: bool) -> int:
    """List every key that can have a default of yours."""
    found = list_defaults()
    if as_json:
        print_record(found)
        return 0
    rows = [(path, found.stated.get(path, ""), key.default, f"--{key.option}") for path, key in DEFAULT_KEYS.items()]
    table(("key", "yours", "otherwise", "as option"), rows)
    note(found.path)
    return 0
