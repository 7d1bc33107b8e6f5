"""``holdfast queue``: look at the queue, and change what waits in it."""

from __future__ import annotations

import time

import click

from holdfast.cli.queueing import checking
from holdfast.cli.queueing.opening import complete_cells, complete_groups

from . import SUMMARIES

EPILOG = """\b
Examples:
  holdfast queue                         what runs, what waits and why
  holdfast queue show train              everything about one cell
  holdfast queue pause night             start nothing more of a group
  holdfast queue cancel night/ --running --yes
  holdfast queue move eval --first
  holdfast queue retry --failed          every failed cell once more

Exit code 0: done; 1: nothing of what was named could be changed; 64: there is no such cell or group."""
LS_EPILOG = """\b
Examples:
  holdfast queue ls night --state failed
  holdfast queue ls --all --json
"""
EDIT_EPILOG = """\b
Examples:
  holdfast queue edit train --priority 10
  holdfast queue edit night/ --max-parallel 2 --hold-after 3
  holdfast queue edit train --not-before 22:00
"""
JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")


@click.group(short_help=SUMMARIES["queue"], epilog=EPILOG, invoke_without_command=True)
@JSON
@click.pass_context
def command(ctx: click.Context, *, as_json: bool) -> int:
    """Show the queue: counts, what runs, what waits next and why. Without a subcommand the same as `ls`.

    Cells are named as `queue ls` shows them: NAME in the default group, GROUP/NAME in others, GROUP/ for all of them.
    """
    if ctx.invoked_subcommand is not None:
        return 0
    from holdfast.cli.queueing.showing import show_list

    return show_list(None, states=(), everything=False, as_json=as_json)


@command.command("ls", short_help="List groups, what runs and what waits.", epilog=LS_EPILOG)
@click.argument("group", required=False, shell_complete=complete_groups)
@click.option("--state", "states", multiple=True, metavar="STATE", help="Only these: queued, held, failed, waiting...")
@click.option("--all", "everything", is_flag=True, help="Every cell, not only the first that wait.")
@JSON
def list_cells(*, group: str | None, states: tuple[str, ...], everything: bool, as_json: bool) -> int:
    """List the queue, or GROUP: counts, what runs with its progress, what waits next with the reason."""
    from holdfast.cli.queueing.showing import show_list

    return show_list(group, states=states, everything=everything, as_json=as_json)


@command.command("show", short_help="Show one cell and every reason why it waits.")
@click.argument("cell", shell_complete=complete_cells)
@JSON
def show(*, cell: str, as_json: bool) -> int:
    """Show everything about CELL: its job, every reason why it waits, who holds the cards since when, an estimate."""
    from holdfast.cli.queueing.showing import show_cell

    return show_cell(cell, as_json=as_json)


@command.command("pause", short_help="Start nothing new; what runs goes on.")
@click.argument("group", required=False, shell_complete=complete_groups)
@JSON
def pause(*, group: str | None, as_json: bool) -> int:
    """Start nothing more of GROUP, or of the whole queue. What runs goes on."""
    from holdfast.cli.queueing import changing

    return changing.report(changing.pause(group), as_json=as_json)


@command.command("resume", short_help="Let a group, a held cell or the queue go on.")
@click.argument("names", nargs=-1, metavar="[GROUP|CELL]...", shell_complete=complete_cells)
@click.option("--accept-changes", is_flag=True, help="Run with script and config as they are now.")
@click.option("--with-environment", is_flag=True, help="Give the cells the secrets of this shell's environment anew.")
@JSON
def resume(*, names: tuple[str, ...], accept_changes: bool, with_environment: bool, as_json: bool) -> int:
    """Let GROUPs, held CELLs or the whole queue go on, also after a drain; starts a worker when none is there."""
    from holdfast.cli.queueing import changing

    change = changing.resume(names, accept_changes=accept_changes, with_environment=with_environment)
    return changing.report(change, as_json=as_json)


@command.command("drain", short_help="Let what runs end, start nothing new.")
@click.option("--wait", "wait", is_flag=True, help="Come back when nothing runs any more.")
@JSON
def drain(*, wait: bool, as_json: bool) -> int:
    """Let the cells at work end and start nothing new; the worker then leaves. `queue resume` goes on."""
    from holdfast.cli.queueing import changing

    return changing.report(changing.drain(wait=wait), as_json=as_json)


@command.command("cancel", short_help="Take cells out of the queue.")
@click.argument("names", nargs=-1, required=True, metavar="CELL|GROUP/...", shell_complete=complete_cells)
@click.option("--running", is_flag=True, help="Also stop those at work; without it they go on.")
@click.option("--now", is_flag=True, help="With --running: KILL at once, without grace.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@JSON
def cancel(*, names: tuple[str, ...], running: bool, now: bool, yes: bool, as_json: bool) -> int:
    """Take waiting CELLs out of the queue; with --running stop the runs of those at work, too.

    More than one cell, or one that runs, is asked for on a terminal; elsewhere --yes is needed. `queue retry` takes
    them back.
    """
    from holdfast.cli.queueing import changing

    return changing.report(changing.cancel(names, running=running, now=now, yes=yes, as_json=as_json), as_json=as_json)


@command.command("move", short_help="Put a cell before or behind others.")
@click.argument("name", metavar="CELL|GROUP/", shell_complete=complete_cells)
@click.option("--first", is_flag=True, help="Before all others of its priority.")
@click.option("--last", is_flag=True, help="Behind all others of its priority.")
@click.option("--before", metavar="CELL", shell_complete=complete_cells, help="Right before this one.")
@JSON
def move(*, name: str, first: bool, last: bool, before: str | None, as_json: bool) -> int:
    """Change the place of a waiting CELL among those of its priority."""
    from holdfast.cli.queueing import changing

    return changing.report(changing.move(name, first=first, last=last, before=before), as_json=as_json)


@command.command("edit", short_help="Change priority, time or limits.", epilog=EDIT_EPILOG)
@click.argument("name", metavar="CELL|GROUP/", shell_complete=complete_cells)
@click.option("--priority", type=click.IntRange(-1_000_000, 1_000_000), metavar="N", help="Higher starts first.")
@click.option("--not-before", metavar="TIME", help="Start then or later; `now` takes a time away.")
@click.option(
    "--max-parallel", type=click.IntRange(min=0), metavar="N", help="Cells of the group at once; 0: no limit."
)
@click.option(
    "--hold-after", type=click.IntRange(min=0), metavar="N", help="Failures in a row that stop the group; 0: none."
)
@JSON
def edit(
    *,
    name: str,
    priority: int | None,
    not_before: str | None,
    max_parallel: int | None,
    hold_after: int | None,
    as_json: bool,
) -> int:
    """Change what holds for a waiting CELL, or for a group (GROUP/)."""
    from holdfast.cli.queueing import changing
    from holdfast.cli.queueing.times import parse_moment

    values: dict[str, object] = {}
    if priority is not None:
        values["priority"] = priority
    if not_before is not None:
        values["not_before"] = parse_moment(not_before, time.time())
    if max_parallel is not None:
        values["max_parallel"] = max_parallel or None
    if hold_after is not None:
        values["hold_after"] = hold_after
    return changing.report(changing.edit(name, values), as_json=as_json)


@command.command("set", short_help="Set how many cells without cards run at once.")
@click.option("--cpu-slots", required=True, metavar="N|auto", help="CPU slots; auto: as many CPUs as are usable.")
@JSON
def set_slots(*, cpu_slots: str, as_json: bool) -> int:
    """Set what holds for the whole queue."""
    from holdfast.cli.queueing import changing

    return changing.report(changing.set_slots(changing.read_slots(cpu_slots)), as_json=as_json)


@command.command("retry", short_help="Queue failed, cancelled or held cells again.")
@click.argument("names", nargs=-1, metavar="[CELL|GROUP/]...", shell_complete=complete_cells)
@click.option("--failed", is_flag=True, help="Only failed ones; without a name all of the queue.")
@JSON
def retry(*, names: tuple[str, ...], failed: bool, as_json: bool) -> int:
    """Queue CELLs again that failed, were cancelled or are held. Each goes on as the next attempt of its run."""
    from holdfast.cli.queueing import changing

    return changing.report(changing.retry(names, failed=failed), as_json=as_json)


@command.command("clear", short_help="Take closed groups out of the list.")
@click.argument("groups", nargs=-1, metavar="[GROUP]...", shell_complete=complete_groups)
@JSON
def clear(*, groups: tuple[str, ...], as_json: bool) -> int:
    """Take GROUPs, or all of which no cell is open, out of the list. Their runs stay."""
    from holdfast.cli.queueing import changing

    return changing.report(changing.clear(groups), as_json=as_json)


for _one in (checking.check, checking.install, checking.uninstall, checking.work):
    command.add_command(_one)
