"""``holdfast wait``: sleep until jobs, groups or runs are proven done, and say what is not."""

from __future__ import annotations

import time

import click

from holdfast.cli.completion import complete_anything
from holdfast.cli.duration_option import parse_duration_option
from holdfast.cli.lazy_group import complete_places
from holdfast.cli.wait import tell_end, wait
from holdfast.desk.caller import CALLER
from holdfast.model.place import LOCAL

from . import SUMMARIES

EPILOG = """\b
Examples:
  holdfast wait                     everything in the queue
  holdfast wait night/              a group, with every job that it gets meanwhile
  holdfast wait train eval          two jobs
  holdfast wait 20261120-104501-digits-3fa2   a run: its exit code passes through
  holdfast wait gpu1:digits gpu2:night/   at two other places
  holdfast wait night/ --timeout 8h && holdfast submit -- ./publish.sh

Exit code 0 only when every job is proven done; 1: something failed, was cancelled, or cannot go on by itself;
66: there is nothing of that name; 69: a place gave no answer; 124: not within --timeout. A single run: its own code."""


@click.command(short_help=SUMMARIES["wait"], epilog=EPILOG)
@click.argument("names", nargs=-1, metavar="[RUN|JOB|GROUP/]...", shell_complete=complete_anything)
@click.option("--all", "everything", is_flag=True, help="Every job of the queue; the same as no name.")
@click.option(
    "--on",
    metavar="PLACE",
    shell_complete=complete_places,
    help="Every name is of this place; without names everything in its queue.",
)
@click.option("--timeout", metavar="DURATION", help="The most to wait; what is waited for goes on.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing; only the exit code answers.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def command(
    *, names: tuple[str, ...], everything: bool, on: str | None, timeout: str | None, quiet: bool, as_json: bool
) -> int:
    """Wait until runs, jobs or groups have ended, and say whether every one is proven done.

    A job is done when its run succeeded, its declared results are there and its configuration is the one that was
    handed in; an exit code of 0 alone is not enough. When something cannot go on by itself (paused, held, blocked by a
    failure) the wait ends with that reason. Ctrl-C ends the wait and nothing else.

    PLACE:NAME is waited for at its place, several places at once. A link that ends is made again, and the wait goes on;
    a place that cannot be reached for an hour ends it, with exit code 69, which says nothing of the run.
    """
    deadline = None if timeout is None else time.monotonic() + parse_duration_option(timeout, "--timeout")
    wanted = () if everything else names
    if CALLER.place is None and (on not in (None, LOCAL) or any(":" in name for name in names)):
        from holdfast.cli.placed.wait import group_names, wait_placed  # lazy: who has no places does not pay for them

        places = group_names(wanted, on)
        if list(places) != [LOCAL]:
            return wait_placed(places, deadline=deadline, quiet=quiet, as_json=as_json)
        wanted = places[LOCAL]
    code = wait(wanted, deadline=deadline, quiet=quiet, as_json=as_json)
    if CALLER.follows:
        tell_end()
    return code
