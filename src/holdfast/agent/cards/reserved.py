"""Which cards are kept for a span of time, from the lease area alone: no card is asked, so that it suits a TAB."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.host.files.rules_file import read_rules
from holdfast.host.lease import reservations
from holdfast.host.lease.area import open_existing_area
from holdfast.model.record import record

if TYPE_CHECKING:
    from holdfast.core.cards.reservations import Reservation


@record
class Reservations:
    """What is reserved; `warnings` name those that do not count, each with the reason."""

    reservations: tuple[Reservation, ...]
    warnings: tuple[str, ...]


def list_reservations() -> Reservations:
    """What is reserved and not over."""
    rules = read_rules(os.environ)
    area = open_existing_area(rules)
    return Reservations(*(((), ()) if area is None else reservations.list_reservations(area, rules)))
