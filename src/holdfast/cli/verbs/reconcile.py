"""``holdfast reconcile``: records and watchers in line with what is so."""

from __future__ import annotations

import click

from holdfast.cli.lazy_group import complete_places
from holdfast.cli.path_type import PATH
from holdfast.cli.render import print_record
from holdfast.cli.render.reconcile import print_reconciled, print_reconciled_place
from holdfast.model.errors import UsageError
from holdfast.model.place import LOCAL

from . import SUMMARIES

EPILOG = """\b
holdfast reconcile              put everything in line, and list what was done
holdfast reconcile --dry-run    only list what would be done
holdfast reconcile gpu1         what this desk knows of gpu1, made again from gpu1"""


@click.command(short_help=SUMMARIES["reconcile"], epilog=EPILOG)
@click.argument("place", required=False, shell_complete=complete_places)
@click.option("--dry-run", is_flag=True, help="Show what would be done, and do nothing.")
@click.option("--runs", metavar="DIR", type=PATH, help="Look only under this directory of runs.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def command(*, place: str | None, dry_run: bool, runs: str | None, as_json: bool) -> int:
    """Bring records and watchers up to date with what really runs.

    For this account's runs on this box: one whose supervisor died while its job lives gets a new supervisor, as
    `holdfast adopt` does it; one of which nobody is left has its end written. Sentinels that wait for what cannot come
    are ended, one that was killed before it told its outcome is begun anew, records without a process are removed. A
    queue whose worker was killed before it noted or told the ends of jobs gets another. Records that a full disk
    refused are brought from memory to their run. What killed commands left is removed: unfinished directories and
    temporary files that nobody has touched for an hour, empty control groups. No run is started again, but for an
    attempt that a killed supervisor was about to begin by itself (retries). Every repair is listed.

    With a PLACE nothing of any run is changed: what this desk knows of the runs there is made again from the place,
    for a second desk or one that lost its state, and orders that got no answer are asked about. For the repairs of runs
    there: `holdfast reconcile --on PLACE`.

    Exit code 0: everything is in line now. 1: something is not (with --dry-run: there is something to do).
    """
    if place is not None and place != LOCAL:
        if dry_run or runs is not None:
            raise UsageError("--dry-run and --runs are about runs of one machine", hint=f"say them with --on {place}")
        return _reconcile_place(place, as_json=as_json)
    from holdfast.agent.patrol.reconcile import reconcile_runs  # lazy: a desk without Linux cannot load it
    from holdfast.agent.queue.change.work import add_queue  # lazy: a desk without Linux cannot load it

    found = reconcile_runs(runs, dry_run=dry_run)
    if runs is None:
        found = add_queue(found, dry_run=dry_run)
    print_record(found) if as_json else print_reconciled(found)
    return found.exit_code


def _reconcile_place(name: str, *, as_json: bool) -> int:
    from holdfast.cli.placed.reconcile import reconcile_named  # lazy: who has no places does not pay for them

    done = reconcile_named(name)
    print_record(done) if as_json else print_reconciled_place(done)
    return 0
