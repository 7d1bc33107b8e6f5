"""Which of several runs of one name is meant: the one that lives; when none does, the newest that was not refused."""

from __future__ import annotations

import os
from collections.abc import Sequence

from holdfast.agent.view.observe import observe_run
from holdfast.agent.view.run_view import UNREADABLE
from holdfast.agent.view.scheduled import is_open
from holdfast.model import wire
from holdfast.model.errors import UsageError

MOST_SHOWN = 5
MOST_READ = 300
"""Of more runs of one name the newest are looked at: each takes about a tenth of a millisecond."""


def choose_namesake(name: str, named: Sequence[tuple[str, str]]) -> tuple[str, str, str]:
    """The run of this name that is meant, its root, and a sentence that says so; `named` are ids with their roots.

    A run whose end is not on record lives, unless its processes were seen to be gone: what cannot be told may live.

    Raises:
        UsageError: several of them live.
    """
    ordered = sorted(named, key=_read_age, reverse=True)[:MOST_READ]
    views = {each: observe_run(f"{each[1]}/{each[0]}") for each in ordered}
    living = [each for each in ordered if not views[each].over and not views[each].vanished]
    if len(living) > 1:
        unread = ", or cannot be read" if any(views[each].condition == UNREADABLE for each in living) else ""
        shown = ", ".join(run_id for run_id, _ in living[:MOST_SHOWN]) + (", ..." if living[MOST_SHOWN:] else "")
        raise UsageError(
            f"{len(living)} runs named {name!r} have not ended{unread}: {shown}", hint="name one by its whole id"
        )
    again = [each for each in ordered if is_open(views[each])]
    begun = [each for each in ordered if not views[each].was_refused]
    run_id, root = (living or again or begun or ordered)[0]
    others = [other for other, _ in ordered if other != run_id]
    what = "this is the one that has not ended" if living else "all have ended; this is the newest"
    if living and views[living[0]].condition == UNREADABLE:
        what = "this is the one of which it cannot be read whether it has ended"
    if again and not living:
        what = "this is the newest that its scheduler may begin again"
    elif not living and run_id != ordered[0][0]:
        what = "all have ended; this is the newest of which anything was begun"
    return run_id, root, f"{len(named)} runs are named {name!r}; {what}, {run_id}; the next is {others[0]}"


def _read_age(found: tuple[str, str]) -> tuple[str, int, str]:
    """By the second in the id; of one second by when the run's record was written, once for ever."""
    run_id, root = found
    try:
        written = os.stat(f"{root}/{run_id}/{wire.RUN}").st_mtime_ns
    except OSError:
        written = 0
    return run_id[: len("YYYYMMDD-HHMMSS")], written, run_id
