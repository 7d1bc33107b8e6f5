"""``holdfast results collect``: the results of many runs in one directory."""

from __future__ import annotations

import os

import click

from holdfast.agent.queue.sweep.collect import collect
from holdfast.agent.view.find import find_run, require_own
from holdfast.cli.completion import complete_anything
from holdfast.cli.path_type import PATH
from holdfast.cli.render import print_record
from holdfast.cli.render.results import CopyMeter, print_collected

from . import VERBS


@click.command("collect", short_help=VERBS["collect"])
@click.argument("names", nargs=-1, required=True, metavar="RUN|JOB|GROUP/...", shell_complete=complete_anything)
@click.option("--to", metavar="DIR", type=PATH, required=True, help="Gather below DIR, a directory for each.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def command(*, names: tuple[str, ...], to: str, as_json: bool) -> int:
    """Gather the proven results of many runs below DIR, and count what landed of what was expected.

    Every job of a group or sweep is expected. One that is not proven done, or of which not every file landed, is
    listed as incomplete. What is there is proven and left, so the command can be said again at any time; a file that
    went bad there is copied again, and named.

    Exit code 0: all complete; 1: some are not; 73: nothing landed.
    """

    def find(name: str) -> str:
        found = find_run(name)
        require_own(found)
        return found.run_dir

    meter = CopyMeter(silent=as_json)
    done = collect(names, os.path.abspath(os.path.expanduser(to)), find, meter.show_run)
    meter.close()
    print_record(done) if as_json else print_collected(done)
    return done.exit_code
