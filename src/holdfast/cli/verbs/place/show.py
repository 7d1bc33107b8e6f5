"""``holdfast place show``: what is configured and known of one place."""

from __future__ import annotations

import click

from holdfast.cli.render import print_record
from holdfast.cli.render.places import print_place
from holdfast.desk.connect import find_place
from holdfast.desk.place_list import describe_place, view_place

from . import VERBS
from .options import json_option, place_argument


@click.command("show", short_help=VERBS["show"])
@place_argument
@json_option
def command(*, name: str, as_json: bool) -> int:
    """Show what is configured of a place, and what was measured of it last; it is not asked."""
    view = view_place(find_place(name))
    print_record(describe_place(view)) if as_json else print_place(view)
    return 0
