"""``holdfast secret rm``: remove a secret at a place."""

from __future__ import annotations

import click

from holdfast.cli.render import note
from holdfast.cli.verbs.place.options import complete_places
from holdfast.desk.connect import find_place, open_box
from holdfast.desk.secrets import remove_secret

from . import VERBS


@click.command("rm", short_help=VERBS["rm"])
@click.argument("place", shell_complete=complete_places)
@click.argument("name")
def command(*, place: str, name: str) -> int:
    """Remove the secret NAME at PLACE. Jobs that run there keep what they were given."""
    removed = remove_secret(open_box(find_place(place)), name)
    note(f"{place}: {name} was removed" if removed else f"{place} has no secret {name}")
    return 0
