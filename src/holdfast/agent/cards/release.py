"""Releases the lease of a run whose holder is gone; no process is signalled."""

from __future__ import annotations

from holdfast.host.lease import records
from holdfast.host.lease.area import LeaseArea, open_existing_area
from holdfast.host.lease.force_release import BrokenLease, break_lease
from holdfast.model.errors import NoSuchRun, UsageError
from holdfast.model.ids import name_of

from .box import read_box


def release_lease(run: str, *, force: bool, reason: str) -> BrokenLease:
    """End the lease of `run`: its id, its name, or the index of a card that it leases.

    Raises:
        NoSuchRun: there is no such lease.
        UsageError: several lessees have that name.
        HoldfastError: it still holds, or is not ours to end.
    """
    area = open_existing_area()
    if area is None:
        raise NoSuchRun(f"no lease of {run}: nobody has leased on this box", hint="holdfast gpus shows the cards")
    return break_lease(area, _find_lessee(area, run), force=force, reason=reason)


def _find_lessee(area: LeaseArea, text: str) -> str:
    """A run id as it is; for a name the lessee of that name; for a card's index, the run that leases the card."""
    if not (text.isascii() and text.isdigit()):
        leased = {found.record.run_id for found in records.read_records(area)[0]}
        named = sorted(run_id for run_id in leased if name_of(run_id) == text)
        if len(named) > 1:
            raise UsageError(f"{len(named)} lessees are named {text!r}: {', '.join(named)}", hint="say its id")
        return named[0] if named else text
    held = {place.lease.run_id for place in read_box().places if place.lease and place.index == int(text)}
    if len(held) != 1:
        what = "is not leased" if not held else f"is leased by several runs: {', '.join(sorted(held))}"
        raise NoSuchRun(f"card {text} {what}", hint="holdfast gpus shows the cards and their runs")
    return held.pop()
