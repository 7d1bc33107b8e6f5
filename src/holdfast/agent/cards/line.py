"""Who stands in line for the cards of this box: from the lease area alone, no card is asked."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.host.files.rules_file import read_rules
from holdfast.host.lease.area import open_existing_area
from holdfast.host.lease.share_policy import SharePolicy
from holdfast.host.lease.survey import survey_leases
from holdfast.model.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.core.rules.rules import Rules
    from holdfast.host.lease.tickets import FoundTicket
    from holdfast.model.lease import Ticket


def read_line() -> tuple[Ticket, ...]:
    """Who stands in line for cards, who is next first; no card is asked.

    Raises:
        HoldfastError, OSError: it cannot be read.
    """
    rules = read_rules(os.environ)
    area = open_existing_area(rules)
    return () if area is None else order_line(rules, survey_leases(area, ()).waiting)


def find_place_in_line(run_id: str) -> tuple[int, int] | None:
    """Which of how many a waiting run is, from 1; None when it has no ticket, or the line cannot be read."""
    try:
        names = [ticket.run_id for ticket in read_line()]
    except (HoldfastError, OSError):
        return None
    return (names.index(run_id) + 1, len(names)) if run_id in names else None


def order_line(rules: Rules, waiting: tuple[FoundTicket, ...]) -> tuple[Ticket, ...]:
    """The line as the rules of the box have it, who is next first."""
    area = open_existing_area(rules) if waiting else None
    ordered = waiting if area is None else SharePolicy(rules).order_line(area, waiting)
    return tuple(found.ticket for found in ordered)
