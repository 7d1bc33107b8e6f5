"""``holdfast patrol``: one look at every run of this account on this box; and the clock's entry that calls it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from holdfast.cli.consent import confirm, remove_entries
from holdfast.cli.render import note, print_json
from holdfast.model.errors import StorageError

from . import SUMMARIES

if TYPE_CHECKING:
    from holdfast.agent import patrol

EPILOG = """\b
holdfast patrol                        one line about all runs, then those that need a person
holdfast patrol --all                  a line about each run
holdfast patrol --since-last           tell an end without success only once
holdfast patrol install --every 30m    have cron or systemd call it; shows the entry and asks
holdfast patrol uninstall              take that entry away"""

_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
_NOTIFY = click.option(
    "--notify-command",
    metavar="COMMAND",
    help="Run this when a person is needed, with the tick as JSON on its input; split into words like a shell would.",
)


@click.group(short_help=SUMMARIES["patrol"], invoke_without_command=True, epilog=EPILOG)
@click.option("--runs", metavar="DIR", type=click.Path(), help="Look only under this directory of runs.")
@click.option("--since-last", is_flag=True, help="Say what is new since the last patrol with this option.")
@click.option("-a", "--all", "everything", is_flag=True, help="A line about each run.")
@_NOTIFY
@_JSON
@click.pass_context
def command(
    ctx: click.Context,
    *,
    runs: str | None,
    since_last: bool,
    everything: bool,
    notify_command: str | None,
    as_json: bool,
) -> int:
    """Look once at every run, and say who needs a person.

    All runs of this account on this box are looked at. A look reads only what is so now: the recorded processes by
    identity, the time since the last step, the last samples, the disks. Nothing is restarted, stopped or written; a
    command is proposed. The first line is always printed. A look takes half a minute at most, whatever hangs.

    Exit code 0: nothing needs a person. 1: something does, or a run could not be judged. 74: no runs could be looked
    at.
    """
    if ctx.invoked_subcommand is not None:
        return 0
    from holdfast.agent import patrol
    from holdfast.cli.patrol_showing import encode_brief, encode_tick, print_tick
    from holdfast.cli.runs import list_roots
    from holdfast.cli.sentinels import check_words

    check_words(notify_command)
    if runs is not None and not os.path.isdir(runs):
        raise StorageError(f"{runs} is no directory that can be looked at", hint="holdfast ls shows where runs are")
    tick = patrol.tick(list_roots(runs))
    if since_last:
        tick = _compare(tick)
    print_json(encode_tick(tick)) if as_json else print_tick(tick, everything=everything, news_only=since_last)
    if notify_command and (tick.blind or any(seen.news for seen in tick.escalations)):
        _notify(notify_command, encode_brief(tick))
    return tick.exit_code


def _compare(tick: patrol.Tick) -> patrol.Tick:
    from holdfast.agent import patrol
    from holdfast.agent.patrolling import memory

    before = memory.load()
    found = patrol.since(tick, before)
    try:
        memory.save(found, before)
    except OSError as error:
        note(f"what was told cannot be remembered ({error.strerror}); the next patrol tells it again")
    return found


def _notify(command: str, message: dict[str, object]) -> None:
    from holdfast.agent.telling import tell

    problem = tell(command, {"event": "patrol", **message})
    if problem:
        note(f"nobody was told: {problem}")


@command.command("install", short_help="Have cron or systemd call it.")
@click.option("--every", default="30m", show_default=True, metavar="DURATION", help="How often to look.")
@click.option("--cron", "clock", flag_value="cron", help="An entry of cron.")
@click.option("--systemd", "clock", flag_value="systemd", help="A timer of the systemd user manager.")
@_NOTIFY
@click.option("-y", "--yes", is_flag=True, help="Do not ask. Needed without a terminal.")
@_JSON
def install(*, every: str, clock: str | None, notify_command: str | None, yes: bool, as_json: bool) -> int:
    """Have a clock of this account call `holdfast patrol --since-last`. The exact entry is shown first.

    Without --cron or --systemd: systemd where its user manager runs, else cron. The minute is this account's own and
    never :00 or :30. An entry of an earlier install is replaced.
    """
    from holdfast.agent.patrolling import entries
    from holdfast.cli.sentinels import check_words
    from holdfast.cli.stopping import parse_wait
    from holdfast.host.processes import user_name

    check_words(notify_command)
    every_s = parse_wait(every)
    assert every_s is not None
    which = entries.Clock(clock) if clock else entries.choose()
    arguments = ["--notify-command", notify_command] if notify_command else []
    entry = entries.build(which, every_s, arguments, seed=f"{user_name(os.geteuid())}@{os.uname().nodename}")
    if not as_json:
        print(entry.text, end="" if entry.text.endswith("\n") else "\n")
    _explain(which, told=bool(notify_command))
    confirm(f"Install this {which.value} entry?", yes=yes, as_json=as_json)
    entries.install(entry)
    if as_json:
        print_json({"installed": True, "clock": which.value, "every_s": every_s, "entry": entry.text})
    else:
        note("installed; `holdfast patrol uninstall` removes it")
    return 0


def _explain(which: object, *, told: bool) -> None:
    """What the entry will and will not do."""
    from holdfast.agent.patrolling.armed import LAST
    from holdfast.agent.patrolling.entries import Clock
    from holdfast.host.processes import user_name
    from holdfast.host.sessions import is_lingering
    from holdfast.store.index import state_directory

    note(f"what the last patrol said will stand in {state_directory()}/{LAST}")
    if not told:
        note("nobody is told of it: add --notify-command COMMAND for that")
    user = user_name(os.geteuid())
    if which is Clock.SYSTEMD and not is_lingering(user):
        note(f"timers of {user} run only while {user} is logged in; `loginctl enable-linger {user}` changes that")


@command.command("uninstall", short_help="Take that entry away.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask. Needed without a terminal.")
@_JSON
def uninstall(*, yes: bool, as_json: bool) -> int:
    """Take away what `holdfast patrol install` made, and nothing else."""
    from holdfast.agent.patrolling import entries

    question = "Remove the patrol's entry from there?"
    return remove_entries(entries.find_installed(), entries.uninstall, question, yes=yes, as_json=as_json)
