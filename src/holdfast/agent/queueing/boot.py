"""What has the queue go on after a restart of the box: an entry of cron or systemd, made only with consent.

It starts the worker and nothing else; which runs were lost with the box, and what becomes of them, the worker finds
from their files. The next `holdfast queue` or `submit` of a person does the same, so without an entry nothing is lost
but time.

Sources: crontab(5) (``@reboot``), systemd.service(5) (``oneshot``, ``RemainAfterExit``), systemd.kill(5), loginctl(1).
"""

from __future__ import annotations

import sys

from ...store.index import state_directory
from ..patrolling import entries
from ..patrolling.entries import Clock, Entry, Owner

UNIT = "holdfast-queue.service"
LAST = "queue-boot.txt"
"""What the last start said, in the state directory."""
BEGIN = "# holdfast queue: begin (made by `holdfast queue install`; `holdfast queue uninstall` removes it)"
END = "# holdfast queue: end"
QUEUE = Owner(BEGIN, END, " queue work --boot", (UNIT,), starts=False)
"""Neither enabling nor disabling its unit starts or ends anything now: jobs may be in its group."""
CARRIED = (*entries.CARRIED, "HOLDFAST_QUEUE")


def build(which: Clock) -> Entry:
    """The entry that starts the worker once after each restart of the box.

    Raises:
        UsageError: a path of ours holds a line break.
    """
    words = [sys.executable, "-m", "holdfast", "queue", "work", "--boot"]
    variables = entries.carry(CARRIED)
    entries.refuse_newlines([*words, *variables.values()])
    last = last_words()
    if which is Clock.CRON:
        return Entry(which, 0.0, f"{BEGIN}\n@reboot {entries.write_line(words, variables, last)}\n{END}\n", owner=QUEUE)
    # The worker and its runs stay in the group of the unit, which must neither end nor be emptied because of that.
    unit = (
        f"{BEGIN}\n[Unit]\nDescription=The holdfast queue of this account goes on\n\n[Service]\nType=oneshot\n"
        f"RemainAfterExit=yes\nKillMode=process\n{entries.write_service(words, variables, last)}"
        "TimeoutStartSec=120\n\n[Install]\nWantedBy=default.target\n"
    )
    return Entry(which, 0.0, files=((f"{entries.unit_directory()}/{UNIT}", unit),), owner=QUEUE)


def last_words() -> str:
    """The file that holds what the last start of the entry said."""
    return f"{state_directory()}/{LAST}"


def choose() -> Clock:
    """What this box has: a running user manager, else cron.

    Raises:
        UsageError: neither.
    """
    return entries.choose(hint="have whatever starts things here call `holdfast queue work --boot` as this account")


def find_installed() -> tuple[str, ...]:
    """Where an entry of the queue is, in words."""
    return entries.find_installed(QUEUE)


def uninstall() -> tuple[str, ...]:
    """Remove the queue's entries, and nothing else; answers what was removed.

    Raises:
        StorageError: one could not be removed.
    """
    return entries.uninstall(QUEUE)
