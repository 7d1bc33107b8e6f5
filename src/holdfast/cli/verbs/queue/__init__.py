"""``holdfast queue``: look at the queue, and change what waits in it."""

from __future__ import annotations

from typing import Any

import click

from holdfast.cli.lazy_group import LazyGroup, load_command, verb_group

EPILOG = """\b
Examples:
  holdfast queue                         what runs, what waits and why
  holdfast queue show train              everything about one job
  holdfast queue pause night             start nothing more of a group
  holdfast queue pause train             hold one job; `queue resume train` lets it go
  holdfast queue cancel night/ --running --yes
  holdfast queue move eval --first
  holdfast queue retry --failed          every failed job once more
  holdfast queue retry --from night/c4   this job of its group and all behind it

Exit code 0: done; 1: nothing of what was named could be changed; 64: no job that was named is in a state for it;
66: there is no such job or group."""
VERBS = {
    "accept": "Take a job as done whose exit code 0 is in doubt.",
    "cancel": "Take jobs out of the queue.",
    "check": "Hold the roster against what is on disk.",
    "clear": "Take closed groups out of the list.",
    "drain": "Let what runs end, start nothing new.",
    "edit": "Change priority, start time, parallel jobs or hold-after.",
    "install": "Have cron or systemd go on after a reboot.",
    "ls": "List groups, what runs and what waits.",
    "move": "Put a job before or behind others.",
    "pause": "Start nothing new, or hold single jobs.",
    "resume": "Let a group, a held job or the queue go on.",
    "retry": "Queue failed, cancelled or held jobs again.",
    "set": "Set how many jobs without cards run at once.",
    "show": "Show one job and every reason why it waits.",
    "uninstall": "Remove the entry that `install` made.",
    "work": "See that a worker is at work (internal).",
}
HIDDEN = frozenset({"work"})


class QueueGroup(LazyGroup):
    """The verbs of the queue, and what other tools call them."""

    elsewhere = {  # noqa: RUF012 - of a class, never changed
        **dict.fromkeys(("rm", "remove", "delete", "stop", "kill"), "holdfast queue cancel JOB"),
        **dict.fromkeys(("add", "submit"), "holdfast submit"),
        **dict.fromkeys(("list", "status"), "holdfast queue ls"),
    }


@verb_group(__name__, VERBS, EPILOG, unlisted=HIDDEN, cls=QueueGroup)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
@click.pass_context
def command(ctx: click.Context, *, as_json: bool) -> Any:  # noqa: ANN401 - what click hands on
    """Show the queue: counts, what runs, what waits next and why. Without a subcommand the same as `ls`.

    Jobs are named as `queue ls` shows them: NAME in the default group, GROUP/NAME in others, GROUP/ for all of them.
    """
    if ctx.invoked_subcommand is not None:
        return 0
    return ctx.invoke(load_command(__name__, "ls"), as_json=as_json)
