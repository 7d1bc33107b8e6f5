"""``holdfast show``: everything known about one run."""

from __future__ import annotations

import click

from holdfast.cli.completion import complete_runs
from holdfast.cli.render import note, print_json

from . import SUMMARIES


@click.command(short_help=SUMMARIES["show"])
@click.argument("run", shell_complete=complete_runs)
@click.option("--attempt", type=click.IntRange(min=1), metavar="N", help="Which attempt. [default: the newest]")
@click.option("--diff", is_flag=True, help="Print the saved difference of the code from its commit, and nothing else.")
@click.option("--env", "environment", is_flag=True, help="Show the recorded part of the job's environment too.")
@click.option("--events", is_flag=True, help="Show every event, not the last ones.")
@click.option("--runs", metavar="DIR", type=click.Path(), help="Look only under this directory of runs.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def command(
    *,
    run: str,
    attempt: int | None,
    diff: bool,
    environment: bool,
    events: bool,
    runs: str | None,
    as_json: bool,
) -> int:
    """Show RUN (its id, the beginning of it, or its name): state, processes, phases, limits, cards, checks, files.

    What somebody wants, what the supervisor last wrote, and what can be seen now are shown apart. Files that cannot be
    read are named, and the rest is shown.
    """
    from holdfast.cli.dossier import gather
    from holdfast.cli.runs import find
    from holdfast.cli.showing import print_diff, print_dossier

    found = find(run, root=runs)
    if found.notice:
        note(found.notice)
    dossier = gather(found, attempt)
    if diff:
        return print_diff(dossier, as_json=as_json)
    if as_json:
        print_json(dossier.encode())
    else:
        print_dossier(dossier, environment=environment, every_event=events)
    return 0
