"""``holdfast place probe``: measure a place now."""

from __future__ import annotations

import click

from holdfast.cli.render import print_record
from holdfast.cli.render.places import print_place
from holdfast.desk.connect import find_place, measure_box
from holdfast.desk.place_list import describe_place, view_place
from holdfast.model.record import replace

from . import VERBS
from .options import json_option, place_argument


@click.command("probe", short_help=VERBS["probe"])
@place_argument
@json_option
def command(*, name: str, as_json: bool) -> int:
    """Measure what a place is and has: interpreter, cards, disks, inodes, limits, locks, tools, clock.

    The bundle of holdfast is put there when it is not there yet, and then bundles and code that nothing needs any more
    are removed there. With `env_from = "login"` the environment of a login shell is read anew, and kept in memory there
    (/dev/shm). Nothing else is changed. What is found is kept for later. Warnings come first; they do not change the
    exit code. 69: it cannot be reached; 77: it does not let us in; 78: it
    has no Python that holdfast can use.
    """
    place = find_place(name)
    view = replace(view_place(place), facts=measure_box(place), problem="")
    print_record(describe_place(view)) if as_json else print_place(view)
    return 0
