"""``holdfast results copy``: the copy of ended runs' results, made or proven again."""

from __future__ import annotations

import os

import click

from holdfast.agent.control.results.copy import copy_run
from holdfast.agent.queue.change.copied import look_again
from holdfast.agent.view.find import find_run, require_own, require_readable
from holdfast.cli.completion import complete_runs
from holdfast.cli.path_type import PATH
from holdfast.cli.render import note, print_record
from holdfast.cli.render.results import CopyMeter, print_copied

from . import VERBS


@click.command("copy", short_help=VERBS["copy"])
@click.argument("name", metavar="RUN", shell_complete=complete_runs)
@click.option("--to", metavar="DIR", type=PATH, help="Copy to DIR/<run-id>. [default: as its job says]")
@click.option("--runs", metavar="DIR", type=PATH, help="Look only under this directory of runs.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def command(*, name: str, to: str | None, runs: str | None, as_json: bool) -> int:
    """Copy the results of a run that succeeded, and prove them there.

    What is there already is proven, not copied again; a file that went bad there is, and is named. A run that failed
    only because its results were not copied counts as succeeded afterwards, and its job in the queue as done; nothing
    is trained again. A whole copy is never written over: where a result has changed since, the copy is refused.

    Exit code 0: every file is there, by size and SHA-256; 73: it was not copied, the source is as it was;
    64: the run has no proven results.
    """
    found = find_run(name, root=runs)
    if found.notice:
        note(found.notice)
    require_readable(found)
    require_own(found)
    meter = CopyMeter(silent=as_json)
    done = copy_run(found.run_dir, None if to is None else os.path.abspath(os.path.expanduser(to)), meter.show)
    meter.close()
    if done.made_good and done.job:
        for text in look_again(done.job, done.run_id):
            note(text)
    print_record(done) if as_json else print_copied(done)
    return done.exit_code
