"""``holdfast ls``: runs, newest first, live ones always among them."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from holdfast.agent.view.find import point_at_group
from holdfast.agent.view.runs.listing import RunFilter, find_runs_using, read_runs
from holdfast.agent.view.runs.roots import choose_root, list_roots
from holdfast.cli.completion import complete_runs
from holdfast.cli.lazy_group import complete_places
from holdfast.cli.named_run import list_named_ids
from holdfast.cli.path_type import PATH
from holdfast.cli.render import note, print_record
from holdfast.cli.render.runs import print_runs, print_users
from holdfast.core.moments import is_date, parse_past
from holdfast.desk.caller import CALLER
from holdfast.desk.runs.presence import has_places
from holdfast.model.errors import NoSuchName, NoSuchRun, UsageError
from holdfast.model.place import LOCAL

from . import SUMMARIES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

DEFAULT_LIMIT = 30
EPILOG = """\b
holdfast ls --state failed --since 7d   what failed this week
holdfast ls 'lr-*'                      the runs whose name begins with lr-"""


@click.command(short_help=SUMMARIES["ls"], epilog=EPILOG)
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=complete_runs)
@click.option("-a", "--all", "everything", is_flag=True, help="Show every run, however old; ask every place.")
@click.option(
    "-n", "--limit", default=DEFAULT_LIMIT, show_default=True, type=click.IntRange(min=1), metavar="N", help="How many."
)
@click.option("-s", "--state", "states", multiple=True, metavar="STATE", help="Only these: running, failed, live, ...")
@click.option("--since", metavar="TIME", help="Only runs that began since then: 7d, 12h, 22:00, today, 2026-11-01.")
@click.option("--until", metavar="TIME", help="Only runs that began before then, or not after that date.")
@click.option(
    "--using", metavar="PATH", type=PATH, help="Only live runs that execute files below PATH; exit 75 if any."
)
@click.option("--runs", metavar="DIR", type=PATH, help="Look only under this directory of runs.")
@click.option("--on", metavar="PLACE", shell_complete=complete_places, help="Only the runs of this place.")
@click.option("--all-users", is_flag=True, help="The runs of every account of this box, as far as they can be seen.")
@click.option("--here", is_flag=True, help="Only the runs of this machine.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def command(  # noqa: PLR0913 - one for each option
    *,
    names: tuple[str, ...],
    everything: bool,
    limit: int,
    states: tuple[str, ...],
    since: str | None,
    until: str | None,
    using: str | None,
    runs: str | None,
    on: str | None,
    all_users: bool,
    here: bool,
    as_json: bool,
) -> int:
    """List runs, newest first.

    Runs that have not ended are always shown; of the ended ones the newest --limit. A STATE is a lifecycle state or an
    outcome as shown, the class of a failure (`refused`, `bug`), or `live` for every run that has not ended; give the
    option several times for several. LEFT is how long a run still takes, by the steps that it reports or until its time
    limit ends it sooner, and START when its newest attempt began.

    A NAME is that of runs, an id or the beginning of one, a pattern of names (`'lr-*'`) or, from its year on, of ids
    (`'20261120-10*'`), GROUP/ for the runs of a group or sweep, or GROUP/NAME for that of one job. What NAME, --state,
    --since and --until say must be true together, also of live runs. Exit code 66 where no run is called NAME;
    a pattern that fits none is an empty list (0).

    On a desk these are the runs of this machine and of all places. Asked are the places with runs that had not ended,
    with --all every one; the others are shown as they were seen last, with the age of that. A place that does not
    answer delays nobody, and nothing follows from it for its runs. Exit code 69 if a place of --on does not answer.

    With --all-users the runs of every account of this machine, each with its user: of those that are closed to this
    account only what their leases say. Root sees all, and stops one with `holdfast stop --reason TEXT RUN`.

    Before a deploy: `holdfast ls --using /srv/code` names the live runs whose files would be overwritten under them,
    and its exit code is then 75.
    """
    if all_users and (on not in (None, LOCAL) or runs is not None or using is not None):
        raise UsageError("--all-users is about all runs of this machine", hint="leave --on, --runs and --using out")
    if using is not None and (names or since is not None or until is not None):
        raise UsageError("--using is about all live runs", hint="leave NAME, --since and --until out")
    if runs is not None and not os.path.lexists(os.path.expanduser(runs)):
        raise NoSuchName(f"there is no directory {runs}", hint="holdfast ls lists the runs of all that are known")
    now_s = time.time()
    since_s = None if since is None else parse_past(since, now_s)
    until_s = None if until is None else parse_past(until, now_s, option="--until", ends=True)
    until = f"the end of {until}" if until is not None and is_date(until) else until
    meant = _find_grouped(names, runs, on)
    chosen = RunFilter(states, meant, since_s, since or "", until_s, until or "", names)
    only_here = all_users or here or CALLER.place is not None or using is not None or runs is not None
    if on not in (None, LOCAL) and here:
        raise UsageError(f"--on {on} and --here contradict each other", hint="leave one out")
    if not only_here and on != LOCAL and (on is not None or has_places()):
        from holdfast.cli.placed.ls import list_placed  # lazy: who has no places does not pay for them

        with _pointing_at_groups(chosen, runs):
            return list_placed(on, everything=everything, limit=limit, chosen=chosen, as_json=as_json)
    if using is not None:
        users = find_runs_using(using, runs, choose_root(None), states)
        if users.notice:
            note(users.notice)
        print_record(users) if as_json else print_users(users)
        return users.exit_code
    most = None if everything else limit
    if all_users:
        from holdfast.agent.view.runs.accounts import read_all_accounts  # lazy: for --all-users alone

        found = read_all_accounts(chosen, most)
    else:
        with _pointing_at_groups(chosen, runs):
            found = read_runs(runs, choose_root(None), chosen, most)
    if found.notice:
        note(found.notice)
    print_record(found) if as_json else print_runs(found, chosen)
    return 0


@contextmanager
def _pointing_at_groups(chosen: RunFilter, runs: str | None) -> Iterator[None]:
    """Say of a name that no run has, and a group of jobs, what is to be typed for that."""
    try:
        yield
    except NoSuchRun as error:
        groups = (point_at_group(name, list_roots(runs)) for name in chosen.names if repr(name) in str(error))
        raise NoSuchRun(str(error), hint=next(filter(None, groups), error.hint)) from error


def _find_grouped(names: Sequence[str], runs: str | None, on: str | None) -> tuple[str, ...]:
    """The names, with the ids of the runs for each ``GROUP/`` and ``GROUP/NAME``.

    Raises:
        NoSuchRun: there is no such group or job, or it has no run.
    """
    found: list[str] = []
    for name in names:
        if on not in (None, LOCAL) and name.count("/") == 1 and ":" not in name:
            what = "group" if name.endswith("/") else "job"
            hint = f"leave --on out for those of groups here; those of groups there: holdfast queue ls --on {on}"
            raise UsageError(f"{name} is a {what} of this machine's, and the list is one of {on}", hint=hint)
        found += list_named_ids(name, runs)
    return tuple(found)
