"""``holdfast wait``: sleep until cells, groups or runs are proven done, and say what is not."""

from __future__ import annotations

import click

from holdfast.cli.queueing.opening import complete_anything

from . import SUMMARIES

EPILOG = """\b
Examples:
  holdfast wait                     everything in the queue
  holdfast wait night/              a group, with every cell that it gets meanwhile
  holdfast wait train eval          two cells
  holdfast wait 20261120-104501-digits-3fa2   a run: its exit code passes through
  holdfast wait night/ --timeout 8h && holdfast submit -- ./publish.sh

Exit code 0 only when every cell is proven done; 1: something failed, was cancelled, or cannot go on by itself;
66: there is nothing of that name; 124: not within --timeout. A single run: its own exit code."""


@click.command(short_help=SUMMARIES["wait"], epilog=EPILOG)
@click.argument("names", nargs=-1, metavar="[RUN|CELL|GROUP/]...", shell_complete=complete_anything)
@click.option("--all", "everything", is_flag=True, help="Every cell of the queue; the same as no name.")
@click.option("--timeout", metavar="DURATION", help="The most to wait; what is waited for goes on.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing; only the exit code answers.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def command(*, names: tuple[str, ...], everything: bool, timeout: str | None, quiet: bool, as_json: bool) -> int:
    """Wait until runs, cells or groups have ended, and say whether every one is proven done.

    A cell is done when its run succeeded, its declared results are there and its configuration is the one that was
    handed in; an exit code of 0 alone is not enough. When something cannot go on by itself (paused, held, blocked by a
    failure) the wait ends with that reason. Ctrl-C ends the wait and nothing else.
    """
    from holdfast.cli.queueing.awaiting import wait_for_names

    return wait_for_names(names, everything=everything, timeout=timeout, quiet=quiet, as_json=as_json)
