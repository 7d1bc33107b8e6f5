"""Are there cards for this job: present, healthy, free, idle? (PRE-03) What is busy now may be waited for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...core import cards
from ...core.rules import card_rules
from ...model.finding import Finding, Level
from ...model.gpu import InventorySource
from ...model.lease import LeasedDevice
from .situation import failed, passed, unknown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...model.gpu import Inventory
    from .situation import Situation

READ_WITHIN_S = 10.0
"""Initialising NVML takes seconds on a box without persistence mode."""


def check_cards(situation: Situation) -> Iterator[Finding]:
    """Enough cards are fit for the job now; each that is not is named with its reason."""
    wanted = situation.spec.gpus.wanted
    if not wanted:
        return
    inventory = situation.inventory
    if inventory is None and situation.run_dir is not None and "HOLDFAST_SIMULATED_GPUS" not in situation.environ:
        # The supervisor reads and judges the cards when it takes the lease; reading twice costs seconds.
        yield passed("cards", "cards", "judged when the lease is taken")
        return
    if inventory is None:
        from ...host.gpus import read_inventory

        inventory = read_inventory(READ_WITHIN_S)
    if not inventory.cards:
        report = failed if inventory.complete else unknown
        seen = inventory.reason or "this box has none"
        yield report("cards", "cards", f"{wanted} asked for; {seen}", "use a box with cards, or gpus: 0")
        return
    yield from _judge(situation, inventory)


def _judge(situation: Situation, inventory: Inventory) -> Iterator[Finding]:
    spec = situation.spec
    marked = " (simulated)" if inventory.source is InventorySource.SIMULATED else ""
    leased, problem = _read_leases(situation, inventory)
    if problem is not None:
        yield problem
    choice = cards.choose(
        spec.gpus,
        inventory,
        leased={} if spec.gpu.share else leased,
        rules=card_rules(spec, situation.rules),
        imposed=situation.environ.get("CUDA_VISIBLE_DEVICES"),
        device_order=situation.environ.get("CUDA_DEVICE_ORDER"),
    )
    if choice.devices:
        yield passed("cards", "cards" + marked, f"would take {', '.join(choice.devices)}")
        return
    enough = cards.is_worth_waiting(spec.gpus, inventory, choice)
    level = situation.busy_level if enough else Level.FAIL
    remedy = "wait for them: gpu: {wait: 2h}" if level is not Level.FAIL else "see `holdfast gpus`; ask for other cards"
    yield Finding("cards", level, "cards" + marked, choice.problem or "no card fits", remedy)
    for uuid, reason in choice.rejected:
        yield Finding("cards.rejected", Level.WARN, uuid + marked, reason, "see `holdfast gpus`")


def _read_leases(situation: Situation, inventory: Inventory) -> tuple[dict[str, str], Finding | None]:
    """Device UUID to who holds it; what cannot be read is a finding, not "free"."""
    from ...host.lease_area import open_area
    from ...host.lease_survey import survey
    from ...model.errors import HoldfastError

    devices = []
    for card in inventory.cards:
        devices.append(LeasedDevice(card.uuid, card.index, card.name))
        devices += [LeasedDevice(card.uuid, card.index, part.profile, part.uuid) for part in card.mig_slices]
    try:
        area = open_area(situation.rules.lease_dir, environ=situation.environ)
        seen = survey(area, tuple(devices))
    except HoldfastError as error:
        return {}, failed("cards.leases", "lease area", str(error), error.hint or "see docs/leases.md")
    leased = {}
    for uuid, busy in seen.busy.items():
        if busy:
            leased[uuid] = busy[0].holder + (f", since {busy[0].since}" if busy[0].since else "")
    return leased, None
