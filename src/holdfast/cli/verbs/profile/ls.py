"""``holdfast profile ls``: the profiles there are."""

from __future__ import annotations

import click

from holdfast.cli.render import print_record
from holdfast.cli.render.profiles import print_profiles
from holdfast.cli.verbs.place.options import json_option
from holdfast.desk.profiles.listing import read_profiles

from . import VERBS


@click.command("ls", short_help=VERBS["ls"])
@json_option
def command(*, as_json: bool = False) -> int:
    """List the profiles of holdfast and your own, with what ends the meter of each."""
    found = read_profiles()
    print_record(found) if as_json else print_profiles(found)
    return 0
