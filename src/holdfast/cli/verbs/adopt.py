"""``holdfast adopt``: a new supervisor for a run whose old one died."""

from __future__ import annotations

import os

import click

from holdfast.agent.control.adopt import adopt_run
from holdfast.cli.completion import complete_runs
from holdfast.cli.named_run import find_own
from holdfast.cli.path_type import PATH
from holdfast.cli.render import print_record

from . import SUMMARIES


@click.command(short_help=SUMMARIES["adopt"])
@click.argument("run", shell_complete=complete_runs)
@click.option("--runs", metavar="DIR", type=PATH, help="Look only under this directory of runs.")
@click.option(
    "--gone",
    metavar="REASON",
    help="End a run of another box instead, on your word that its place is gone for good; the word is kept.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def command(*, run: str, runs: str | None, gone: str | None, as_json: bool) -> int:
    """Give RUN (its id, the beginning of it, or its name) a new supervisor, because its old one is gone.

    The job is not touched: deadlines, limits, stop requests and the record go on from where they were. Refused when
    the run is supervised or has ended.

    From another box nobody can tell whether a run lives: its pod may be deleted, or its host out of reach for a while.
    It stays as it was last seen until you say, with --gone, that the place is no more. Refused while its lock is held,
    and while anything of it was written in the last two minutes.
    """
    found = find_own(run, runs)
    done = adopt_run(found.run_dir, environ=os.environ, gone=gone)
    if as_json:
        print_record(done)
        return 0
    doing = f"supervisor {done.supervisor_pid} has taken it up" if done.supervised else done.note
    print(f"{done.run_id} {done.condition}: {doing}")
    return 0
