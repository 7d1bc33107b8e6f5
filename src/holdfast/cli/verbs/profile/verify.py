"""``holdfast profile verify``: a person has looked again, and says so."""

from __future__ import annotations

import click

from holdfast.cli.consent import confirm
from holdfast.cli.render import clean, note, print_record
from holdfast.cli.verbs.place.options import json_option
from holdfast.core.profile.stale import stale_facts
from holdfast.core.profile.statements import find_keys, state_fact
from holdfast.desk.author import name_author
from holdfast.desk.profiles.read import load_profile, today
from holdfast.desk.profiles.verify import write_verified
from holdfast.model.errors import NoSuchName
from holdfast.model.record import record

from . import VERBS
from .options import profile_argument

EPILOG = """\b
Examples:
  holdfast profile verify runpod                          all that is old
  holdfast profile verify runpod verbs.terminate tiers    these, each with all below it
  holdfast profile verify runpod verbs --source 'docs.runpod.io/pods/storage' --yes"""


@record
class VerifiedFacts:
    """Facts that were dated today in the file `path`; null: none was."""

    profile: str
    verified: tuple[str, ...]
    path: str | None


@click.command("verify", short_help=VERBS["verify"], epilog=EPILOG)
@profile_argument
@click.argument("facts", metavar="[FACT]...", nargs=-1)
@click.option("--source", metavar="TEXT", help="Where you looked.  [default: the provider's pages, and who you are]")
@click.option("--yes", is_flag=True, help="Do not ask: all of it is still so.")
@json_option
def command(*, name: str, facts: tuple[str, ...], source: str | None, yes: bool, as_json: bool) -> int:
    """Say that you have just looked, and FACTs of PROFILE are still so; without one all that are old.

    Each is shown as it is known, and asked about once. The day of today and the source are written into your own file
    of the profile (~/.config/holdfast/profiles), which stands over that of holdfast. What is not so any more you write
    there yourself.
    """
    profile = load_profile(name)
    found = find_keys(profile, facts)
    if wrong := [word for word, keys in found.items() if not keys]:
        raise NoSuchName(
            f"{name} has no fact {clean(wrong[0])}", hint=f"there are {', '.join(profile.facts)}; `verbs` is all verbs"
        )
    keys = (
        list(dict.fromkeys(key for word in facts for key in found[word])) if facts else [*stale_facts(profile, today())]
    )
    if not keys:
        print_record(VerifiedFacts(name, (), None)) if as_json else note(f"no fact of {name} is old")
        return 0
    if not as_json:
        for key in keys:
            print(clean(state_fact(profile, key, profile.facts[key])))
    confirm(
        "Have you looked at the provider's pages just now, and is all of this still so?",
        yes=yes,
        as_json=as_json,
        refusal="nothing was written: that a fact is still so is said by a person who has looked",
        plan=keys,
    )
    path = write_verified(name, keys, source or f"the provider's pages, as {name_author()} saw them")
    print_record(VerifiedFacts(name, tuple(keys), path)) if as_json else note(f"dated today in {path}")
    return 0
