"""``holdfast adopt``: a new supervisor for a run whose old one died."""

from __future__ import annotations

import os

import click

from holdfast.cli.completion import complete_runs
from holdfast.cli.render import note, print_json

from . import SUMMARIES


@click.command(short_help=SUMMARIES["adopt"])
@click.argument("run", shell_complete=complete_runs)
@click.option("--runs", metavar="DIR", type=click.Path(), help="Look only under this directory of runs.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def command(*, run: str, runs: str | None, as_json: bool) -> int:
    """Give RUN (its id, the beginning of it, or its name) a new supervisor, because its old one is gone.

    The job is not touched: deadlines, limits, stop requests and the record go on from where they were. Refused when
    the run is supervised or has ended.
    """
    from holdfast.agent import acting
    from holdfast.cli.runs import find, require_own

    found = find(run, root=runs)
    if found.notice:
        note(found.notice)
    require_own(found)
    view = acting.adopt(found.run_dir, environ=os.environ)
    pid = None if view.state is None or view.state.supervisor is None else view.state.supervisor.pid
    if as_json:
        facts = {"run_id": found.run_id, "attempt": view.attempt, "condition": view.condition, "supervisor_pid": pid}
        print_json(facts)
    else:
        doing = f"supervisor {pid} has taken it up" if view.supervised else view.note
        print(f"{found.run_id} {view.condition}: {doing}")
    return 0
