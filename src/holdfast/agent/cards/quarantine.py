"""Takes cards out of use on this host, and gives them back."""

from __future__ import annotations

from holdfast.host.gpu import quarantine
from holdfast.host.gpu.quarantine import Quarantine
from holdfast.model.record import record

from .box import find_card, read_box


@record
class CardQuarantined:
    """A card was set aside. `answers`: a card with that UUID answers now."""

    quarantined: Quarantine
    answers: bool


@record
class CardCleared:
    """A card was given back. `cleared` is what was in the way; `left` are the words of others that stay."""

    uuid: str
    cleared: tuple[Quarantine, ...]
    left: tuple[Quarantine, ...]


def set_aside(card: str, reason: str) -> CardQuarantined:
    """Set a card (index or UUID) aside.

    Raises:
        UsageError: no card has that index.
        StorageError: it cannot be written down.
    """
    box = read_box()
    record = quarantine.quarantine(find_card(box, card), reason)
    return CardQuarantined(record, record.uuid in {place.uuid for place in box.places})


def give_back(card: str, reason: str) -> CardCleared:
    """Take our own word on a card (index or UUID) back; root everybody's.

    Raises:
        UsageError: no card has that index.
    """
    uuid = find_card(read_box(), card)
    removed = quarantine.clear(uuid, reason=reason)
    left = tuple(record for record in quarantine.list_quarantined() if record.uuid == uuid)
    return CardCleared(uuid, removed, left)
