"""``holdfast profile show``: all of one profile."""

from __future__ import annotations

import click

from holdfast.cli.render import print_record
from holdfast.cli.render.profiles import print_profile
from holdfast.cli.verbs.place.options import json_option
from holdfast.desk.profiles.read import SUFFIX, is_own, load_profile, user_directory

from . import VERBS
from .options import profile_argument


@click.command("show", short_help=VERBS["show"])
@profile_argument
@json_option
def command(*, name: str, as_json: bool) -> int:
    """Show all that PROFILE says, with what it inherits and what you say over it, and from where each fact is."""
    profile = load_profile(name)
    own = f"{user_directory()}/{name}{SUFFIX}" if is_own(name) else ""
    print_record(profile) if as_json else print_profile(profile, own)
    return 0
