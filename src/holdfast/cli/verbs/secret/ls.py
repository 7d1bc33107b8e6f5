"""``holdfast secret ls``: the names of the secrets at a place."""

from __future__ import annotations

import click

from holdfast.cli.render import note, print_record, table
from holdfast.cli.verbs.place.options import complete_places, json_option
from holdfast.desk.connect import find_place, open_box
from holdfast.desk.secrets import list_secrets

from . import VERBS


@click.command("ls", short_help=VERBS["ls"])
@click.argument("place", shell_complete=complete_places)
@json_option
def command(*, place: str, as_json: bool) -> int:
    """List the secrets at PLACE: their names, when they were written, and the mode of their files."""
    found = list_secrets(open_box(find_place(place)))
    if as_json:
        print_record(found)
    elif not found.secrets:
        note(f"{place} has no secrets; holdfast secret push {place} NAME gives it one")
    else:
        table(("SECRET", "WRITTEN", "MODE"), [(row.name, row.written_at, row.mode) for row in found.secrets])
    return 0
