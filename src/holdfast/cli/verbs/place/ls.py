"""``holdfast place ls``: every place, and what was last measured of it."""

from __future__ import annotations

import click

from holdfast.cli.render import print_record
from holdfast.cli.render.places import print_places
from holdfast.desk.place_list import PlaceList, ask_places, describe_place, view_places

from . import VERBS
from .options import json_option


@click.command("ls", short_help=VERBS["ls"])
@click.option("--probe", is_flag=True, help="Ask each whether it answers now, for 10 s at most.")
@json_option
def command(*, probe: bool = False, as_json: bool) -> int:
    """List the places of places.toml, and the aliases of ssh of which something is known.

    Nobody is asked without --probe: what is shown was measured when it says.
    """
    views = view_places()
    if probe:
        views = ask_places(views)
    if as_json:
        print_record(PlaceList(tuple(map(describe_place, views))))
    else:
        print_places(views, asked=probe)
    return 0
