"""What has the queue go on after a restart of the box: an entry of cron or systemd, made only with consent.

It starts the worker and nothing else; which runs were lost with the box, and what becomes of them, the worker finds
from their files. The next `holdfast queue` or `submit` of a person does the same, so without an entry nothing is lost
but time.

Sources: crontab(5) (``@reboot``), systemd.service(5) (``oneshot``, ``RemainAfterExit``), systemd.kill(5), loginctl(1).
"""

from __future__ import annotations

import os

from holdfast.agent.patrol import schedule
from holdfast.agent.patrol.schedule import EntryOwner, ScheduledEntry, TimerKind
from holdfast.host.formats.own_bundle import build_own_command
from holdfast.host.process.processes import user_name
from holdfast.host.process.sessions import is_lingering
from holdfast.model.record import record
from holdfast.store.index import state_directory

UNIT = "holdfast-queue.service"
LAST = "queue-boot.txt"
"""What the last start said, in the state directory."""
BEGIN = "# holdfast queue: begin (made by `holdfast queue install`; `holdfast queue uninstall` removes it)"
END = "# holdfast queue: end"
QUEUE = EntryOwner(BEGIN, END, " queue work --boot", (UNIT,), starts=False)
"""Neither enabling nor disabling its unit starts or ends anything now: jobs may be in its group."""
CARRIED = (*schedule.CARRIED, "HOLDFAST_QUEUE")


@record
class Planned:
    """The entry that would be made, and what is to be known before it is."""

    entry: ScheduledEntry
    notes: tuple[str, ...]


def plan_entry(clock: str | None) -> Planned:
    """The entry for a clock (``cron``, ``systemd``; None: the one that works here).

    Raises:
        UsageError: no clock works here.
    """
    which = TimerKind(clock) if clock else choose_timer_kind()
    notes = [
        f"what it says will stand in {last_words()}",
        "a job whose environment had secrets is held after a reboot: they are kept in memory only",
    ]
    user = user_name(os.geteuid())
    if which is TimerKind.SYSTEMD and not is_lingering(user):
        notes.append(
            f"units of {user} start at the first login of {user}, not at boot, and their processes end with the last"
            f" logout; `loginctl enable-linger {user}` changes both"
        )
    return Planned(build_boot_entry(which), tuple(notes))


@record
class Installed:
    """An entry that was written."""

    installed: bool
    clock: TimerKind
    entry: str


def install_entry(planned: Planned) -> Installed:
    """Write the entry, in the place of an earlier one.

    Raises:
        StorageError: the clock refused it, or a file cannot be written.
    """
    schedule.install_entry(planned.entry)
    return Installed(True, planned.entry.clock, planned.entry.text)


def build_boot_entry(which: TimerKind) -> ScheduledEntry:
    """The entry that starts the worker once after each restart of the box.

    Raises:
        UsageError: a path of ours holds a line break.
    """
    words = build_own_command("queue", "work", "--boot")
    variables = schedule.read_carried(CARRIED)
    schedule.refuse_newlines([*words, *variables.values()])
    last = last_words()
    if which is TimerKind.CRON:
        return ScheduledEntry(
            which, 0.0, f"{BEGIN}\n@reboot {schedule.write_line(words, variables, last)}\n{END}\n", owner=QUEUE
        )
    # The worker and its runs stay in the group of the unit, which must neither end nor be emptied because of that.
    unit = (
        f"{BEGIN}\n[Unit]\nDescription=The holdfast queue of this account goes on\n\n[Service]\nType=oneshot\n"
        f"RemainAfterExit=yes\nKillMode=process\n{schedule.write_service(words, variables, last)}"
        "TimeoutStartSec=120\n\n[Install]\nWantedBy=default.target\n"
    )
    return ScheduledEntry(which, 0.0, files=((f"{schedule.unit_directory()}/{UNIT}", unit),), owner=QUEUE)


def last_words() -> str:
    """The file that holds what the last start of the entry said."""
    return f"{state_directory()}/{LAST}"


def choose_timer_kind() -> TimerKind:
    """What this box has: a running user manager, else cron.

    Raises:
        UsageError: neither.
    """
    return schedule.choose_timer_kind(
        hint=f"have whatever starts things here call `{schedule.name_own_command('queue', 'work', '--boot')}` "
        "as this account"
    )


def find_installed() -> tuple[str, ...]:
    """Where an entry of the queue is, in words."""
    return schedule.find_installed(QUEUE)


def remove_boot_entries() -> tuple[str, ...]:
    """Remove the queue's entries, and nothing else; answers what was removed.

    Raises:
        StorageError: one could not be removed.
    """
    return schedule.remove_entries(QUEUE)
