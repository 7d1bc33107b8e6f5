"""``holdfast secret check``: whether a secret works, proven by what it can do."""

from __future__ import annotations

import click

from holdfast.cli.render import note
from holdfast.cli.verbs.place.options import complete_places
from holdfast.desk.connect import find_place, open_box
from holdfast.desk.secrets import check_secret

from . import VERBS


@click.command("check", short_help=VERBS["check"])
@click.argument("place", shell_complete=complete_places)
@click.argument("name")
@click.option("--url", required=True, metavar="URL", help="Where it must be accepted: https://HOST/PATH.")
def command(*, place: str, name: str, url: str) -> int:
    """Ask URL from PLACE, with the secret NAME as a bearer token, and say whether it is accepted.

    One GET with `Authorization: Bearer`; no redirection is followed, and nothing of the answer but its status is read.
    Exit code 0: accepted (2xx); 77: refused (401, 403); 74: it cannot be told; 78: there is no such secret there.
    """
    status = check_secret(open_box(find_place(place)), name, url)
    note(f"{place}: {name} is accepted there ({status})")
    return 0
