"""The full reading of the cards, in a child of its own: a driver that hangs takes nobody with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.agent.plan.card_fitness import mark_unfit
from holdfast.host.gpu import probe_client
from holdfast.host.gpu.inventory import read_inventory, sample_utilisation
from holdfast.model import wire
from holdfast.model.record import replace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.core.rules.rules import Rules

FIRST_READING_S = 20.0
"""nvmlInit takes seconds on a box without persistence mode; the first reading is worth waiting for."""


def read_and_sample(window_s: float, rules: Rules, environ: Mapping[str, str]) -> object:
    """The child's work: one full reading with what the host knows of its cards, then their utilisation over a window.

    Of the samples the highest counts.
    """
    probe_client.disown()
    inventory = mark_unfit(read_inventory(FIRST_READING_S), rules, environ)
    if inventory.cards and window_s > 0:
        samples = sample_utilisation([card.uuid for card in inventory.cards], window_s)
        inventory = replace(
            inventory,
            cards=tuple(
                replace(card, utilisation_pct=max((s for s in samples[card.uuid] if s is not None), default=None))
                if any(s is not None for s in samples[card.uuid])
                else card
                for card in inventory.cards
            ),
        )
    return wire.encode(inventory)
