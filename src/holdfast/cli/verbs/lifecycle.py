"""``holdfast lifecycle``: which phase a place or a run is in, by which evidence, and what is missing."""

from __future__ import annotations

import os
from functools import partial

import click

from holdfast.cli.lazy_group import complete_places
from holdfast.cli.render import print_record
from holdfast.cli.render.lifecycle import print_lifecycle
from holdfast.desk.connect import find_place, open_box
from holdfast.desk.lifecycle import find_lifecycle
from holdfast.desk.profiles.read import profile_of_place, today
from holdfast.desk.route.router import split_run
from holdfast.desk.teardown.ids import find_id, is_run_here
from holdfast.desk.teardown.look import look_at, prove_home
from holdfast.model.errors import UsageError
from holdfast.model.place import LOCAL

from . import SUMMARIES


@click.command(short_help=SUMMARIES["lifecycle"])
@click.argument("place", metavar="PLACE", shell_complete=complete_places)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def command(*, place: str, as_json: bool) -> int:
    """Show the phases of PLACE, -1 to 5: plan, prepare, push, launch, watch, verify, tear down.

    Each phase is a list of checks that run now, with their evidence. The phase is the first of which something does not
    hold; the command that is next stands behind it. With PLACE:RUN only that run is looked at, and with RUN alone that
    run of this machine, where no place is called so.
    """
    name, run = split_run(place)
    try:
        known = find_place(place if name is None else name)
    except UsageError:
        if name is not None or not is_run_here(place):
            raise
        name, known = LOCAL, find_place(LOCAL)
    run_id = find_id(known.name, run) if name is not None else None
    looks = partial(look_at, known, open_box=open_box, prove_home=prove_home, code_at=[os.getcwd()], only=run_id)
    found = find_lifecycle(known, run_id, profile_of_place(known.profile, known.name), looks, today())
    print_record(found) if as_json else print_lifecycle(found)
    return 0
