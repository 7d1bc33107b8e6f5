"""``holdfast patrol``: one look at every run of this account on this box; and the clock's entry that calls it."""

from __future__ import annotations

from typing import Any

import click

from holdfast.cli.lazy_group import complete_places, load_command, verb_group
from holdfast.cli.path_type import PATH

from .options import BY_CONFIG, JSON, NOTIFY

EPILOG = """\b
holdfast patrol                        one line about all runs, then those that need a person
holdfast patrol --all                  a line about each run
holdfast patrol --since-last           tell an end without success only once
holdfast patrol --on gpu1              the runs of one place
holdfast patrol install --every 30m    have cron or systemd call it; shows the entry and asks
holdfast patrol uninstall              remove that entry"""

VERBS = {"install": "Have cron or systemd call it.", "uninstall": "Remove the entry that `install` made."}


@verb_group(__name__, VERBS, EPILOG)
@click.option("--runs", metavar="DIR", type=PATH, help="Look only under this directory of runs.")
@click.option("--on", metavar="PLACE", help="Only the runs of this place.", shell_complete=complete_places)
@click.option("--here", is_flag=True, help="Only the runs of this machine.")
@click.option("--since-last", is_flag=True, help="Say what is new since the last patrol with this option.")
@click.option("-a", "--all", "everything", is_flag=True, help="A line about each run.")
@NOTIFY
@BY_CONFIG
@JSON
@click.pass_context
def command(ctx: click.Context, /, **options: Any) -> Any:  # noqa: ANN401 - what click hands on
    """Look once at every run, and say who needs a person.

    All runs of this account on this box are looked at. A look reads only what is so now: the recorded processes by
    identity, the time since the last step, the last samples, the disks. Nothing is restarted, stopped or written; a
    command is proposed. The first line is always printed. A look takes half a minute at most, whatever hangs.

    On a desk these are the runs of this machine and of all places, which are asked at the same time. A place that does
    not answer is named, and nothing follows from it for its runs.

    Exit code 0: nothing needs a person. 1: something does, or a run could not be judged. 69: the place of --on does not
    answer. 74: no runs could be looked at.
    """
    return 0 if ctx.invoked_subcommand is not None else ctx.invoke(load_command(__name__, "look"), **options)
