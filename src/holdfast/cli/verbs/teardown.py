"""``holdfast teardown``: what must hold before a rented place is ended, one approval, and the provider's own verb."""

from __future__ import annotations

import click

from holdfast.cli.duration_option import parse_duration_option
from holdfast.cli.lazy_group import complete_places
from holdfast.cli.path_type import PATH
from holdfast.cli.teardown import check, teardown
from holdfast.desk.connect import find_place
from holdfast.desk.route.router import split_run
from holdfast.desk.teardown.gate import Wish
from holdfast.desk.teardown.ids import find_id
from holdfast.model.errors import UsageError

from . import SUMMARIES

EPILOG = """\b
holdfast teardown gpu1 --verb destroy --dry-run    what holds, what is missing, the plan
holdfast teardown gpu1 --verb destroy              approve it at the terminal, then see the provider's verb
holdfast teardown gpu1 --check                     afterwards: is it gone?
holdfast teardown gpu1:digits                      one run: may what it made be removed there?"""


@click.command(short_help=SUMMARIES["teardown"], epilog=EPILOG)
@click.argument("place", metavar="PLACE", shell_complete=complete_places)
@click.option("--verb", metavar="NAME", help="The provider's verb, as the profile has it: stop, destroy, ...")
@click.option("--dry-run", is_flag=True, help="Only look: conditions, plan, and the hash that approves it.")
@click.option(
    "--leave", "left", multiple=True, metavar="RUN", help="Leave this run behind, whatever of it is not home."
)
@click.option("--reason", metavar="TEXT", help="Why; it stands in the approval.")
@click.option(
    "--verified",
    multiple=True,
    metavar="FACT",
    help="You have just looked: this old fact still holds, or this checkpoint (RUN/PATH) loads.",
)
@click.option("--code", "code_at", multiple=True, metavar="DIR", type=PATH, help="Look for the code in DIR, too.")
@click.option("--approve", "approval", metavar="HASH", help="Use the approval of this plan, which --dry-run printed.")
@click.option("--check", "checks", is_flag=True, help="Ask the provider's status whether it is gone.")
@click.option("--wait", default="2m", show_default=True, metavar="TIME", help="With --check: for how long.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def command(  # noqa: PLR0913 - one keyword an option
    *,
    place: str,
    verb: str | None,
    dry_run: bool,
    left: tuple[str, ...],
    reason: str | None,
    verified: tuple[str, ...],
    code_at: tuple[str, ...],
    approval: str | None,
    checks: bool,
    wait: str,
    as_json: bool,
) -> int:
    """Look whether PLACE may be ended, and print the provider's own verb for it. holdfast itself ends nothing.

    All must hold: no live run, an empty queue, of each run that ended a receipt that still counts, its code here, its
    tracker sent, its results copied. What is missing is named, with the next command; exit code 78. When all holds you
    approve this one act: at a terminal by the place's name, else by --approve with the hash that --dry-run printed.
    Then you see the verb, what it destroys and keeps, and what goes on being billed.

    With PLACE:RUN only that run is looked at, and there is nothing to approve. Exit code of --check: 0 gone (stopped,
    after such a verb), 75 still there, 69 it could not be told.
    """
    name, run = split_run(place)
    known = find_place(place if name is None else name)
    if checks:
        return check(known, parse_duration_option(wait, "--wait"), as_json=as_json)
    if bool(left) != bool(reason):
        raise UsageError("--leave and --reason go together", hint="--leave RUN --reason 'why it is not needed'")
    if left and name is not None:
        raise UsageError(
            "--leave is for ending a place, and one run ends nothing",
            hint=f"holdfast teardown {known.name} --leave {run} --reason TEXT",
        )
    wish = Wish(
        known,
        find_id(known.name, run) if name is not None else None,
        verb,
        {find_id(known.name, each): reason or "" for each in left},
        verified,
    )
    return teardown(wish, code_at, approval, dry_run=dry_run, as_json=as_json)
