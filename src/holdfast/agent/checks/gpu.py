"""Checks of the cards: present, healthy, free, idle (PRE-03, PRE-23). What is busy now may be waited for."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from holdfast.agent.plan import sharing_by_memory
from holdfast.agent.plan.card_fitness import mark_unfit
from holdfast.agent.plan.share_policy import WAIT_FOR_CARDS, build_policy, describe_reserved, judge_policy
from holdfast.agent.plan.sharing_by_memory import SharingSurvey
from holdfast.core.cards import choose
from holdfast.core.cards.packing import ASK_FOR_LESS, NEEDS_CARDS, find_impossible
from holdfast.core.control_characters import clean
from holdfast.core.rules.rules import card_rules
from holdfast.diagnosis.cards.fabric import judge_fabric, read_fabric
from holdfast.diagnosis.cards.health import judge_card_health
from holdfast.diagnosis.cards.witness import ask_kernel
from holdfast.diagnosis.kernel.log import read_kernel_log
from holdfast.host.gpu.allocation import find_unproven, imposed_allocation
from holdfast.host.gpu.inventory import read_inventory
from holdfast.host.gpu.processes import read_process_view
from holdfast.host.lease.area import open_area
from holdfast.host.lease.records import read_records
from holdfast.host.lease.survey import survey_leases
from holdfast.model.errors import HoldfastError
from holdfast.model.finding import Finding, Level
from holdfast.model.gpu import GpuProcess, Inventory, InventorySource, MigSlice
from holdfast.model.lease import LeasedDevice, LeaseRecord
from holdfast.model.record import record, replace

from .context import READ_WITHIN_S, CheckContext, failed, passed, unknown, warned

ASK_ROOT = "look as root, or as a member of group adm: `dmesg | grep NVRM`"


@record
class _TakenCards:
    """Device UUID to who holds it (`leased`), and who shares; `apart` says who lacks what lets two runs on a card.

    What cannot be read, or a rule that says no, is the `problem`: it is not "free".
    """

    leased: dict[str, str]
    shared: SharingSurvey | None = None
    problem: Finding | None = None
    apart: str = ""


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
    own = _find_ending_lease(situation)
    inventory = inventory if own is None else _end(inventory, own)
    if not inventory.cards:
        report = failed if inventory.complete else unknown
        seen = "this box has none" if inventory.complete else "they could not be read"
        seen += f": {inventory.reason}" if inventory.reason else ""
        remedy = NEEDS_CARDS if inventory.complete else "see `holdfast doctor`: the driver's answer"
        yield report("cards", "cards", f"{wanted} asked for; {seen}", remedy)
        return
    yield from _judge(situation, inventory, own)


def check_line(situation: CheckContext) -> Iterator[Finding]:
    """Nobody stands in line for the cards that a run has, and would get them once it has ended."""
    own = _find_ending_lease(situation)
    if own is None:
        return
    policy = build_policy(situation.spec, situation.rules, simulated=own.simulated)
    area = open_area(situation.rules.lease_dir, environ=situation.environ)
    first = policy.find_ahead(area, frozenset(device.card_uuid for device in own.devices), None)
    if first is not None:
        ticket = first.ticket
        seen = f"{clean(ticket.user)}, run {clean(ticket.run_id)}, stands in line and gets them first"
        yield failed("cards.line", "cards", seen, WAIT_FOR_CARDS)


def _find_ending_lease(situation: CheckContext) -> LeaseRecord | None:
    """The lease of the run that is to end first; None: it has none, or none that can be read."""
    if not situation.ending_run_id:
        return None
    try:
        found = read_records(open_area(situation.rules.lease_dir, environ=situation.environ))[0]
    except HoldfastError:
        return None
    mine = (seen.record for seen in found if seen.record.uid == os.geteuid())
    return next((lease for lease in mine if lease.run_id == situation.ending_run_id), None)


def _end(inventory: Inventory, own: LeaseRecord) -> Inventory:
    """The reading as it will be once the run of this lease has ended.

    A card of its own is idle then, whatever is seen on it now: inside a container nobody can tell whose that is. From
    one that it shares goes what is known to be its own.
    """
    ours = {device.uuid for device in own.devices}
    cards = []
    for card in inventory.cards:
        parts = tuple(_end_slice(part, own) if part.uuid in ours else part for part in card.mig_slices)
        ended = replace(card, mig_slices=parts)
        if card.uuid in ours:
            left = _list_others(card.processes or (), own) if own.share else ()
            used = _subtract(card.memory_used_bytes, card.processes or (), own)
            free = None if card.memory_total_bytes is None or used is None else card.memory_total_bytes - used
            load = card.utilisation_pct if left or card.utilisation_pct is None else 0
            ended = replace(ended, processes=left, memory_used_bytes=used, memory_free_bytes=free, utilisation_pct=load)
        cards.append(ended)
    return replace(inventory, cards=tuple(cards))


def _end_slice(part: MigSlice, own: LeaseRecord) -> MigSlice:
    left = _list_others(part.processes, own) if own.share else ()
    return replace(part, processes=left, memory_used_bytes=_subtract(part.memory_used_bytes, part.processes, own))


def _list_others(processes: Iterable[GpuProcess], own: LeaseRecord) -> tuple[GpuProcess, ...]:
    return tuple(process for process in processes if process.run_id != own.run_id)


def _subtract(used: int | None, processes: Iterable[GpuProcess], own: LeaseRecord) -> int | None:
    """The memory that is in use of a device of this lease after its end; None where it was not read."""
    if used is None or not own.share:
        return None if used is None else 0
    return max(0, used - sum(process.used_bytes or 0 for process in processes if process.run_id == own.run_id))


def check_allocation(situation: CheckContext) -> Iterator[Finding]:
    """A scheduler's variable counts only inside of its allocation: elsewhere leases decide, and that is said."""
    variable = find_unproven(situation.environ) if situation.spec.gpus.wanted else ""
    if variable:
        seen = f"is {situation.environ[variable]}, and nothing shows that this runs inside of that allocation"
        remedy = f"unset {variable}; or start it inside of the allocation, which then gives the cards"
        yield warned("allocation", variable, f"{seen}: it takes a lease as anywhere", remedy)


def check_whole(situation: CheckContext) -> Iterator[Finding]:
    """Who says how much memory a job uses may think that others get the rest: that is so on shared cards alone."""
    spec = situation.spec
    if not spec.gpus.wanted or spec.gpu.share or spec.gpu.memory_bytes is None:
        return
    if imposed_allocation(situation.environ) is None:
        seen = "without --share each card is taken whole, for this run alone"
        remedy = "two runs are on one card where both have --share; of a whole card --min-free says as much"
        yield warned("cards.whole", "gpu.memory", seen, remedy)


def _judge(situation: CheckContext, inventory: Inventory, own: LeaseRecord | None) -> Iterator[Finding]:
    spec = situation.spec
    marked = " (simulated)" if inventory.source is InventorySource.SIMULATED else ""

    if impossible := find_impossible(spec, inventory, situation.rules):
        for why in impossible:
            yield failed("cards", "cards" + marked, why, ASK_FOR_LESS)
        return
    found = _read_leases(situation, inventory, own)
    shared = found.shared
    if found.problem is not None:
        yield found.problem
    choice = choose.choose_cards(
        spec.gpus,
        inventory if shared is None else shared.inventory,
        leased=found.leased,
        rules=card_rules(spec, situation.rules),
        imposed=situation.environ.get("CUDA_VISIBLE_DEVICES"),
        device_order=situation.environ.get("CUDA_DEVICE_ORDER"),
        rooms=None if shared is None else shared.rooms,
    )
    if choice.devices:
        yield passed("cards", "cards" + marked, f"would take {', '.join(choice.devices)}")
        yield from _check_health(situation, inventory, choice.devices)
        return
    enough = choose.is_worth_waiting(spec.gpus, inventory, choice)
    level = situation.busy_level if enough else Level.FAIL
    remedy = WAIT_FOR_CARDS if level is not Level.FAIL else "see `holdfast gpus`; ask for other cards"
    seen = "; ".join(filter(None, (choice.problem or "no card fits", found.apart)))
    yield Finding("cards", level, "cards" + marked, seen, remedy)
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


def _read_leases(situation: CheckContext, inventory: Inventory, own: LeaseRecord | None) -> _TakenCards:
    """Who holds what, and who shares; the lease `own` is about to end and counts as none."""
    devices = []
    for card in inventory.cards:
        devices.append(LeasedDevice(card.uuid, card.index, card.name))
        devices += [LeasedDevice(card.uuid, card.index, part.profile, part.uuid) for part in card.mig_slices]
    try:
        area = open_area(situation.rules.lease_dir, environ=situation.environ)
        seen = survey_leases(area, tuple(devices))
    except HoldfastError as error:
        unread = failed("cards.leases", "lease area", str(error), error.hint or "see holdfast's docs/leases.md")
        return _TakenCards({}, problem=unread)
    spec, shared = situation.spec, None
    if own is not None:
        left = {uuid: tuple(item for item in busy if item.run_id != own.run_id) for uuid, busy in seen.busy.items()}
        seen = replace(seen, busy=left)
    held = seen.busy
    if spec.gpu.share:
        who = ("", 0) if own is None else (own.run_id, own.attempt)
        asker = sharing_by_memory.SharingRequest(*who, spec.gpu.memory_bytes)
        shared = sharing_by_memory.survey_sharing(area, inventory, asker, card_rules(spec, situation.rules))
        held = sharing_by_memory.drop_sharers(seen)
    leased = {}
    for uuid, busy in held.items():
        if busy:
            leased[uuid] = busy[0].holder + (f", since {busy[0].since}" if busy[0].since else "")
    policy = build_policy(spec, situation.rules, simulated=inventory.source is InventorySource.SIMULATED)
    leased.update(describe_reserved(policy, area, devices))
    barred = next(judge_policy(policy, area, spec.gpus.wanted, situation.busy_level, own=own), None)
    named = {choose.find_device(name, inventory) for name in spec.gpus.devices}
    blocking = tuple(item for uuid, busy in held.items() if not named or uuid in named for item in busy)
    return _TakenCards(leased, shared, barred, sharing_by_memory.describe_sharing(area, blocking, spec.gpu))
