"""``holdfast profile probe``: a profile of one's own from what a place is."""

from __future__ import annotations

import click

from holdfast.cli.render import note, print_record
from holdfast.cli.verbs.place.options import json_option, place_argument
from holdfast.desk.connect import find_place, measure_box
from holdfast.desk.profiles.read import load_profile
from holdfast.desk.profiles.scaffold import write_scaffold
from holdfast.model.record import record

from . import VERBS


@record
class BegunProfile:
    """A profile of the user's own that was begun in the file `path`, with the names of its tiers."""

    profile: str
    path: str
    tiers: tuple[str, ...]


@click.command("probe", short_help=VERBS["probe"])
@place_argument
@click.option("--name", "named", metavar="PROFILE", help="Its name.  [default: that of the place]")
@click.option("--replace", is_flag=True, help="Write it anew where there is one.")
@json_option
def command(*, name: str, named: str | None, replace: bool, as_json: bool) -> int:
    """Measure PLACE, and begin a profile of your own with its disks: paths, sizes, kind.

    It inherits from the profile of the place, else from generic-ssh. What a disk outlives cannot be measured from
    inside: that stands as depends until you have looked it up and written it there.
    """
    place = find_place(name)
    chosen = named or name
    path = write_scaffold(place, measure_box(place), chosen, replace=replace)
    profile = load_profile(chosen)
    if as_json:
        print_record(BegunProfile(chosen, path, tuple(tier.name for tier in profile.tiers)))
        return 0
    print(path)
    note(f'say in there what each tier outlives, then: profile = "{chosen}" of {name} in places.toml')
    return 0
