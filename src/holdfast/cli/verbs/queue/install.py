"""``holdfast queue install``: have a clock of this box start the worker after a reboot."""

from __future__ import annotations

import click

from holdfast.agent.queue.change.boot_entry import install_entry, plan_entry
from holdfast.cli.consent import confirm_entry
from holdfast.cli.render import note, print_record

from . import VERBS
from .options import JSON, YES

EPILOG = """\b
holdfast queue install                 shows the entry and asks
holdfast queue install --cron --yes    an @reboot line of cron, without a question"""


@click.command("install", short_help=VERBS["install"], epilog=EPILOG)
@click.option("--cron", "clock", flag_value="cron", help="An @reboot line of cron.")
@click.option("--systemd", "clock", flag_value="systemd", help="A unit of the systemd user manager.")
@YES
@JSON
def command(*, clock: str | None, yes: bool, as_json: bool) -> int:
    """Have this account's queue go on by itself after a restart of the box. The exact entry is shown first.

    The entry starts the queue's worker once. That settles the runs which were lost with the box and begins their next
    attempts, within the bounds of docs/queue.md. Without an entry the next `holdfast queue` does the same. Without
    --cron or --systemd: systemd where its user manager runs, else cron. An earlier entry is replaced. With --on PLACE
    the entry is made there, for the queue there.
    """
    planned = plan_entry(clock)
    confirm_entry(planned.entry, planned.notes, yes=yes, as_json=as_json)
    made = install_entry(planned)
    print_record(made) if as_json else note("installed; `holdfast queue uninstall` removes it")
    return 0
