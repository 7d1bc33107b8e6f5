"""Are there cards for this job: present, well, free, idle? (PRE-03, PRE-23) What is busy now may be waited for."""

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
    from ..packing import Shared
    from .situation import Situation

READ_WITHIN_S = 10.0
"""Initialising NVML takes seconds on a box without persistence mode."""
ASK_ROOT = "look as root, or as a member of group adm: `dmesg | grep NVRM`"


def check_cards(situation: Situation) -> Iterator[Finding]:
    """Enough cards are fit for the job now; each that is not is named with its reason."""
    wanted = situation.spec.gpus.wanted
    if not wanted:
        return
    inventory = situation.inventory
    if inventory is None and situation.run_dir is not None and "HOLDFAST_SIMULATED_GPUS" not in situation.environ:
        # The supervisor reads and judges the cards when it takes the lease; reading twice costs seconds.
        yield passed("cards", "cards", "judged when the lease is taken")
        yield from _check_log()
        return
    if inventory is None:
        from ...host.gpus import read_inventory

        inventory = read_inventory(READ_WITHIN_S)
    from ..unfit import mark_unfit

    inventory = mark_unfit(inventory, situation.rules, situation.environ)
    if not inventory.cards:
        report = failed if inventory.complete else unknown
        seen = inventory.reason or "this box has none"
        remedy = (
            "use a box with cards, or gpus: 0" if inventory.complete else "see `holdfast doctor`: the driver's answer"
        )
        yield report("cards", "cards", f"{wanted} asked for; {seen}", remedy)
        return
    yield from _judge(situation, inventory)


def _judge(situation: Situation, inventory: Inventory) -> Iterator[Finding]:
    spec = situation.spec
    marked = " (simulated)" if inventory.source is InventorySource.SIMULATED else ""
    from ...core.packing import find_impossible

    if impossible := find_impossible(spec, inventory, situation.rules):
        for why in impossible:
            yield failed("cards", "cards" + marked, why, "ask for what this box has: see `holdfast gpus`")
        return
    leased, shared, problem = _read_leases(situation, inventory)
    if problem is not None:
        yield problem
    choice = cards.choose(
        spec.gpus,
        inventory if shared is None else shared.inventory,
        leased=leased,
        rules=card_rules(spec, situation.rules),
        imposed=situation.environ.get("CUDA_VISIBLE_DEVICES"),
        device_order=situation.environ.get("CUDA_DEVICE_ORDER"),
        rooms=None if shared is None else shared.rooms,
    )
    if choice.devices:
        yield passed("cards", "cards" + marked, f"would take {', '.join(choice.devices)}")
        yield from _check_health(situation, inventory, choice.devices)
        return
    enough = cards.is_worth_waiting(spec.gpus, inventory, choice)
    level = situation.busy_level if enough else Level.FAIL
    remedy = "wait for them: gpu: {wait: 2h}" if level is not Level.FAIL else "see `holdfast gpus`; ask for other cards"
    yield Finding("cards", level, "cards" + marked, choice.problem or "no card fits", remedy)
    for uuid, reason in choice.rejected:
        yield Finding("cards.rejected", Level.WARN, uuid + marked, reason, "see `holdfast gpus`")


def _check_log() -> Iterator[Finding]:
    """Whether the kernel's log can be asked at all about the cards that the lease will choose from.

    Which cards it speaks against is found when the lease is taken; they are not chosen.
    """
    from ...diagnosis.kernel.log import read_kernel_log

    log = read_kernel_log()
    if log.known:
        yield passed("gpu.xid", "cards", "the kernel log can be read")
    else:
        yield unknown("gpu.xid", "cards", f"whether the cards had errors (Xid) is not known: {log.unread}", ASK_ROOT)


def _check_health(situation: Situation, inventory: Inventory, devices: tuple[str, ...]) -> Iterator[Finding]:
    """How well the chosen cards are, by one reading and the kernel's log: what is wrong, or one line that all is well.

    More than one reading would cost seconds at each start; `holdfast gpus health` takes its time.
    """
    from ...diagnosis.cards.health import judge_card_health
    from ...diagnosis.cards.witness import ask_kernel

    chosen = [card for card in inventory.cards if {card.uuid, *(part.uuid for part in card.mig_slices)} & {*devices}]
    overrides = situation.rules.xids
    witnesses = {} if inventory.source is InventorySource.SIMULATED else ask_kernel(chosen, overrides=overrides)
    troubled = False
    for card in chosen:
        for finding in judge_card_health([card], None, card, witnesses.get(card.uuid)):
            if finding.level is not Level.PASS:
                troubled = True
                yield finding
    fabric = _check_fabric(situation) if len(chosen) > 1 else None
    if fabric is not None:
        troubled = troubled or fabric.level is not Level.PASS
        yield fabric
    if not troubled:
        yield passed("gpu", f"{len(chosen)} cards", "well by one reading: no fault, and no error that is known")


def _check_fabric(situation: Situation) -> Finding | None:
    """A job on several cards behind an NVSwitch needs the fabric manager (GPUH-10)."""
    from ...diagnosis.cards.fabric import judge_fabric, read_fabric
    from ...host.gpu_processes import read_process_view

    return judge_fabric(read_fabric(dev=f"{situation.root}/dev", sees_everyone=read_process_view().complete))


def _read_leases(situation: Situation, inventory: Inventory) -> tuple[dict[str, str], Shared | None, Finding | None]:
    """Device UUID to who holds it, and who shares; what cannot be read is a finding, not "free"."""
    from ...host.lease_area import open_area
    from ...host.lease_survey import survey
    from ...model.errors import HoldfastError
    from ..sharing import build_house, describe_reserved, judge_house

    devices = []
    for card in inventory.cards:
        devices.append(LeasedDevice(card.uuid, card.index, card.name))
        devices += [LeasedDevice(card.uuid, card.index, part.profile, part.uuid) for part in card.mig_slices]
    try:
        area = open_area(situation.rules.lease_dir, environ=situation.environ)
        seen = survey(area, tuple(devices))
    except HoldfastError as error:
        return {}, None, failed("cards.leases", "lease area", str(error), error.hint or "see docs/leases.md")
    held, shared, spec = seen.busy, None, situation.spec
    if spec.gpu.share:
        from .. import packing

        asker = packing.Asker("", 0, spec.gpu.memory_bytes)
        shared = packing.look(area, inventory, asker, card_rules(spec, situation.rules))
        held = packing.drop_sharers(seen)
    leased = {}
    for uuid, busy in held.items():
        if busy:
            leased[uuid] = busy[0].holder + (f", since {busy[0].since}" if busy[0].since else "")
    house = build_house(spec, situation.rules, simulated=inventory.source is InventorySource.SIMULATED)
    leased.update(describe_reserved(house, area, devices))
    barred = next(judge_house(house, area, spec.gpus.wanted, situation.busy_level), None)
    return leased, shared, barred
