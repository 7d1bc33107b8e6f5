"""Checks of the cards: present, healthy, free, idle (PRE-03, PRE-23). What is busy now may be waited for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from holdfast.agent.plan import sharing_by_memory
from holdfast.agent.plan.card_fitness import mark_unfit
from holdfast.agent.plan.share_policy import build_policy, describe_reserved, judge_policy
from holdfast.agent.plan.sharing_by_memory import SharingSurvey
from holdfast.core.cards import choose
from holdfast.core.cards.packing import find_impossible
from holdfast.core.rules.rules import card_rules
from holdfast.diagnosis.cards.fabric import judge_fabric, read_fabric
from holdfast.diagnosis.cards.health import judge_card_health
from holdfast.diagnosis.cards.witness import ask_kernel
from holdfast.diagnosis.kernel.log import read_kernel_log
from holdfast.host.gpu.allocation import find_unproven
from holdfast.host.gpu.inventory import read_inventory
from holdfast.host.gpu.processes import read_process_view
from holdfast.host.lease.area import open_area
from holdfast.host.lease.survey import survey_leases
from holdfast.model.errors import HoldfastError
from holdfast.model.finding import Finding, Level
from holdfast.model.gpu import Card, GpuProcess, Inventory, InventorySource
from holdfast.model.lease import LeasedDevice
from holdfast.model.record import replace

from .context import CheckContext, failed, passed, unknown, warned

READ_WITHIN_S = 10.0
"""Initialising NVML takes seconds on a box without persistence mode."""
ASK_FOR_LESS = "ask for what this box has: see `holdfast gpus`"
ASK_ROOT = "look as root, or as a member of group adm: `dmesg | grep NVRM`"


def check_cards(situation: CheckContext) -> Iterator[Finding]:
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
        inventory = read_inventory(READ_WITHIN_S)

    inventory = mark_unfit(inventory, situation.rules, situation.environ)
    if situation.ending_run_id:
        inventory = replace(inventory, cards=tuple(_free(card, situation.ending_run_id) for card in inventory.cards))
    if not inventory.cards:
        report = failed if inventory.complete else unknown
        seen = inventory.reason or "this box has none"
        remedy = (
            "use a box with cards, or gpus: 0" if inventory.complete else "see `holdfast doctor`: the driver's answer"
        )
        yield report("cards", "cards", f"{wanted} asked for; {seen}", remedy)
        return
    yield from _judge(situation, inventory)


def _free(card: Card, run_id: str) -> Card:
    """The card with the memory that it has once this run has ended: all that no process of another has.

    Slices as the card. What nobody accounts for counts as the run's: a start judges it again.
    """
    slices = (
        replace(part, memory_used_bytes=_sum_others(part.processes, run_id)) if _is_on(part.processes, run_id) else part
        for part in card.mig_slices
    )
    card = replace(card, mig_slices=tuple(slices))
    if card.memory_total_bytes is None or not _is_on(card.processes or (), run_id):
        return card
    return replace(card, memory_free_bytes=card.memory_total_bytes - _sum_others(card.processes or (), run_id))


def _is_on(processes: Iterable[GpuProcess], run_id: str) -> bool:
    return any(process.run_id == run_id for process in processes)


def _sum_others(processes: Iterable[GpuProcess], run_id: str) -> int:
    return sum(process.used_bytes or 0 for process in processes if process.run_id != run_id)


def check_allocation(situation: CheckContext) -> Iterator[Finding]:
    """A scheduler's variable counts only inside of its allocation: elsewhere leases decide, and that is said."""
    variable = find_unproven(situation.environ) if situation.spec.gpus.wanted else ""
    if variable:
        seen = f"is {situation.environ[variable]}, and nothing shows that this runs inside of that allocation"
        remedy = f"unset {variable}; or start it inside of the allocation, which then gives the cards"
        yield warned("allocation", variable, f"{seen}: it takes a lease as anywhere", remedy)


def _judge(situation: CheckContext, inventory: Inventory) -> Iterator[Finding]:
    spec = situation.spec
    marked = " (simulated)" if inventory.source is InventorySource.SIMULATED else ""

    if impossible := find_impossible(spec, inventory, situation.rules):
        for why in impossible:
            yield failed("cards", "cards" + marked, why, ASK_FOR_LESS)
        return
    leased, shared, problem = _read_leases(situation, inventory)
    if problem is not None:
        yield problem
    choice = choose.choose_cards(
        spec.gpus,
        inventory if shared is None else shared.inventory,
        leased=leased,
        rules=card_rules(spec, situation.rules),
        imposed=situation.environ.get("CUDA_VISIBLE_DEVICES"),
        device_order=situation.environ.get("CUDA_DEVICE_ORDER"),
        own_run_id=situation.ending_run_id or None,
        rooms=None if shared is None else shared.rooms,
    )
    if choice.devices:
        yield passed("cards", "cards" + marked, f"would take {', '.join(choice.devices)}")
        yield from _check_health(situation, inventory, choice.devices)
        return
    enough = choose.is_worth_waiting(spec.gpus, inventory, choice)
    level = situation.busy_level if enough else Level.FAIL
    remedy = "wait for them: gpu: {wait: 2h}" if level is not Level.FAIL else "see `holdfast gpus`; ask for other cards"
    yield Finding("cards", level, "cards" + marked, choice.problem or "no card fits", remedy)
    for uuid, reason in choice.rejected:
        yield Finding("cards.rejected", Level.WARN, uuid + marked, reason, "see `holdfast gpus`")


def _check_log() -> Iterator[Finding]:
    """Whether the kernel's log can be asked at all about the cards that the lease will choose from.

    Which cards it speaks against is found when the lease is taken; they are not chosen.
    """
    log = read_kernel_log()
    if log.known:
        yield passed("gpu.xid", "cards", "the kernel log can be read")
    else:
        yield unknown("gpu.xid", "cards", f"whether the cards had errors (Xid) is not known: {log.unread}", ASK_ROOT)


def _check_health(situation: CheckContext, inventory: Inventory, devices: tuple[str, ...]) -> Iterator[Finding]:
    """How well the chosen cards are, by one reading and the kernel's log: what is wrong, or one line that all is well.

    More than one reading would cost seconds at each start; `holdfast gpus health` takes its time.
    """
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
        what = "1 card" if len(chosen) == 1 else f"{len(chosen)} cards"
        yield passed("gpu", what, "well by one reading: no fault, and no error that is known")


def _check_fabric(situation: CheckContext) -> Finding | None:
    """A job on several cards behind an NVSwitch needs the fabric manager (GPUH-10)."""
    return judge_fabric(read_fabric(dev=f"{situation.root}/dev", sees_everyone=read_process_view().complete))


def _read_leases(
    situation: CheckContext, inventory: Inventory
) -> tuple[dict[str, str], SharingSurvey | None, Finding | None]:
    """Device UUID to who holds it, and who shares; what cannot be read is a finding, not "free"."""
    devices = []
    for card in inventory.cards:
        devices.append(LeasedDevice(card.uuid, card.index, card.name))
        devices += [LeasedDevice(card.uuid, card.index, part.profile, part.uuid) for part in card.mig_slices]
    try:
        area = open_area(situation.rules.lease_dir, environ=situation.environ)
        seen = survey_leases(area, tuple(devices))
    except HoldfastError as error:
        return {}, None, failed("cards.leases", "lease area", str(error), error.hint or "see docs/leases.md")
    ending, spec, shared = situation.ending_run_id, situation.spec, None
    own = next((one.seen.record for one in seen.leases if one.seen.record.run_id == ending), None) if ending else None
    if own is not None:
        left = {uuid: tuple(item for item in busy if item.run_id != ending) for uuid, busy in seen.busy.items()}
        seen = replace(seen, busy=left)
    held = seen.busy
    if spec.gpu.share:
        attempt = 0 if own is None else own.attempt
        asker = sharing_by_memory.SharingRequest(ending, attempt, spec.gpu.memory_bytes)
        shared = sharing_by_memory.survey_sharing(area, inventory, asker, card_rules(spec, situation.rules))
        held = sharing_by_memory.drop_sharers(seen)
    leased = {}
    for uuid, busy in held.items():
        if busy:
            leased[uuid] = busy[0].holder + (f", since {busy[0].since}" if busy[0].since else "")
    policy = build_policy(spec, situation.rules, simulated=inventory.source is InventorySource.SIMULATED)
    leased.update(describe_reserved(policy, area, devices))
    barred = next(judge_policy(policy, area, spec.gpus.wanted, situation.busy_level, own=own), None)
    return leased, shared, barred
