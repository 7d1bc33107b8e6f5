"""``holdfast show``: everything known about one run."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from holdfast.agent.patrol.memory import say_untold_of
from holdfast.agent.view.page.comparison import compare_runs
from holdfast.agent.view.page.dossier import Dossier, read_diff, read_dossier
from holdfast.cli.completion import complete_runs
from holdfast.cli.named_run import find_readable
from holdfast.cli.path_type import PATH
from holdfast.cli.render import clean, note, print_record
from holdfast.cli.render.job_change import describe_changes
from holdfast.cli.render.run import describe_git, print_dossier
from holdfast.desk.terminal import write_fully

from . import SUMMARIES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.model.origin import KeyChange

MOST_VARIABLES = 20


@click.command(short_help=SUMMARIES["show"])
@click.argument("run", shell_complete=complete_runs)
@click.option("--attempt", type=click.IntRange(min=1), metavar="N", help="Which attempt. [default: the newest]")
@click.option("--diff", is_flag=True, help="Print the saved difference of the code from its commit, and nothing else.")
@click.option(
    "--against", metavar="RUN", help="Show what job, code and environment have other than this earlier run's, alone."
)
@click.option("--env", "environment", is_flag=True, help="Show the recorded part of the job's environment too.")
@click.option("--events", is_flag=True, help="Show every event, not the last ones.")
@click.option("--runs", metavar="DIR", type=PATH, help="Look only under this directory of runs.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def command(
    *,
    run: str,
    attempt: int | None,
    diff: bool,
    against: str | None,
    environment: bool,
    events: bool,
    runs: str | None,
    as_json: bool,
) -> int:
    """Show RUN (its id, the beginning of it, or its name): state, processes, phases, limits, cards, checks, files.

    What somebody wants, what the supervisor last wrote, and what can be seen now are shown apart. Files that cannot be
    read are named, and the rest is shown. Commit, changes and files of the code are those of the attempt that is shown;
    --against compares the newest attempts, or that of RUN which --attempt names; `show RUN --attempt 1 --against RUN`
    tells what attempt 1 had other than the newest.
    """
    found = find_readable(run, runs)
    if against is not None:
        return _print_comparison(found.run_dir, find_readable(against, runs).run_dir, attempt, as_json=as_json)
    dossier = read_dossier(found.run_dir, attempt)
    if diff:
        return _print_diff(dossier, as_json=as_json)
    print_record(dossier) if as_json else print_dossier(dossier, environment=environment, every_event=events)
    if words := say_untold_of(dossier.run_dir):
        note(f"a patrol had news of it: {words}")
    return 0


def _print_comparison(run_dir: str, against: str, attempt: int | None, *, as_json: bool) -> int:
    found = compare_runs(run_dir, against, attempt)
    if as_json:
        print_record(found)
        return 0
    one = found.run_id == found.against
    if one and found.attempt == found.against_attempt:
        earlier = f"holdfast show {found.run_id} --attempt N --against {found.run_id}"
        hint = f"; what an earlier one had: {earlier}" if found.attempt > 1 else ""
        note(f"both are attempt {found.attempt} of {found.run_id}{hint}")
        return 0
    asked = found.run_id if attempt is None else f"attempt {found.attempt} of {found.run_id}"
    new, old = (f"attempt {found.attempt}", f"attempt {found.against_attempt}") if one else (asked, found.against)
    if one and (found.changed or found.others or found.environment):
        note(f"{old} -> {new}:")
    for line in (*describe_changes(found.changed), *found.others, *_list_variables(found.environment)):
        print(clean(line))
    if not found.changed and not found.others:
        note(f"{new} has the job and the code of {old}")
    for words in found.uncompared:
        note(words)
    return 0


def _list_variables(changes: tuple[KeyChange, ...]) -> Iterator[str]:
    """A line for each variable that has another value, the first ones of many."""
    for change in changes[:MOST_VARIABLES]:
        was, now = ("not set" if value is None else value or "''" for value in (change.before, change.after))
        yield f"environment {change.key} {was} -> {now}"
    if len(changes) > MOST_VARIABLES:
        yield f"environment: and {len(changes) - MOST_VARIABLES} more (--json has all)"


def _print_diff(dossier: Dossier, *, as_json: bool) -> int:
    found, data = read_diff(dossier)
    if as_json:
        print_record(found)
    elif data:
        sys.stdout.flush()
        write_fully(sys.stdout.buffer, data)
    else:
        print(describe_git(found.git) + "; no difference was saved")
    return 0
