"""``holdfast profile survives``: does a path outlive an act?"""

from __future__ import annotations

import click

from holdfast.cli.render import print_record
from holdfast.cli.render.profiles import print_survival
from holdfast.cli.verbs.place.options import json_option
from holdfast.core.profile.survive import survives
from holdfast.desk.profiles.read import load_profile

from . import VERBS
from .options import profile_argument

EPILOG = """\b
Examples:
  holdfast profile survives slurm '$TMPDIR' end-of-job
  holdfast profile survives runpod /workspace/model stop"""
LOST = 1


@click.command("survives", short_help=VERBS["survives"], epilog=EPILOG)
@profile_argument
@click.argument("path", metavar="PATH")
@click.argument("act", metavar="VERB")
@json_option
def command(*, name: str, path: str, act: str, as_json: bool) -> int:
    """Say whether what lies at PATH is there after VERB, an act of PROFILE: yes, no or depends.

    Exit code 0 for yes alone, else 1: what depends on the machine is no until somebody has looked. PATH is as it is
    there; ~ and $NAME may stand in it, and are not those of this machine. The longest beginning of a tier counts.
    """
    profile = load_profile(name)
    found = survives(profile, path, act)
    print_record(found) if as_json else print_survival(profile, found)
    return 0 if found.proven else LOST
