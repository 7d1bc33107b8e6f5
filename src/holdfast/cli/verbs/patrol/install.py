"""``holdfast patrol install``: have a clock of this account call the patrol."""

from __future__ import annotations

import click

from holdfast.agent.patrol.report import install_entry, plan_entry
from holdfast.cli.consent import confirm_entry
from holdfast.cli.duration_option import parse_duration_option
from holdfast.cli.job.notify_option import read_ways, read_words
from holdfast.cli.render import note, print_record

from . import VERBS
from .options import JSON, NOTIFY


@click.command("install", short_help=VERBS["install"])
@click.option("--every", default="30m", show_default=True, metavar="DURATION", help="How often to look.")
@click.option("--cron", "clock", flag_value="cron", help="An entry of cron.")
@click.option("--systemd", "clock", flag_value="systemd", help="A timer of the systemd user manager.")
@NOTIFY
@click.option("-y", "--yes", is_flag=True, help="Do not ask. Needed without a terminal.")
@JSON
def command(*, every: str, clock: str | None, notify_command: str | None, yes: bool, as_json: bool) -> int:
    """Have a clock of this account call `holdfast patrol --since-last --here`. The exact entry is shown first.

    It looks at the runs of this box. With --on PLACE the entry is made there, for the runs there: it goes on while this
    desk is closed, and names holdfast as it was sent there, which is then kept.

    Without --cron or --systemd: systemd where its user manager runs, else cron. The minute is this account's own and
    never :00 or :30. An entry of an earlier install is replaced. Without --notify-command
    whoever your own defaults name is told (`holdfast config ls`).
    """
    notify_command = read_words(notify_command)
    every_s = parse_duration_option(every, "--every")
    assert every_s is not None
    by_config = notify_command is None and read_ways() is not None
    planned = plan_entry(clock, every_s, notify_command, by_config=by_config)
    confirm_entry(planned.entry, planned.notes, yes=yes, as_json=as_json)
    made = install_entry(planned)
    print_record(made) if as_json else note("installed; `holdfast patrol uninstall` removes it")
    return 0
