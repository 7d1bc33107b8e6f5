"""What keeps devices from being taken: other leases, reservations, and what the cards themselves say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.agent.plan.sharing_by_memory import drop_sharers
from holdfast.core.cards.choose import judge_card, judge_slice
from holdfast.host.lease.survey import survey_leases
from holdfast.model.lease import BusyReason, Witness
from holdfast.model.record import record

from .devices import is_wanted, list_devices

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.agent.plan.sharing_by_memory import SharingSurvey
    from holdfast.host.lease.area import LeaseArea
    from holdfast.host.lease.share_policy import SharePolicy
    from holdfast.model.gpu import CardChoice, CardRules, GpuRequest, Inventory
    from holdfast.model.lease import LeasedDevice


@record
class TakenDevices:
    """What is taken by leases and reservations: `words` by device, as `choose_cards` wants them, and all `reasons`."""

    words: dict[str, str]
    reasons: tuple[BusyReason, ...]


def find_taken(
    area: LeaseArea,
    inventory: Inventory,
    policy: SharePolicy,
    lost: Mapping[str, BusyReason],
    *,
    shares: bool,
) -> TakenDevices:
    """Who has what just now. `lost` are devices that somebody else was quicker at; who `shares` minds no sharers."""
    everything = list_devices(inventory)
    survey = survey_leases(area, everything)
    reserved = policy.find_reserved(area, everything)
    held = drop_sharers(survey) if shares else survey.busy
    words = {uuid: _phrase(busy[0]) for uuid, busy in held.items() if busy}
    words.update({uuid: _phrase(busy) for uuid, busy in {**lost, **reserved}.items()})
    for card in inventory.cards:
        # A leased slice makes the whole card busy, but not its other slices: `choose_cards` knows that by itself.
        if any(part.uuid not in words for part in card.mig_slices):
            words.pop(card.uuid, None)
    reasons = (*(busy for several in held.values() for busy in several), *lost.values(), *reserved.values())
    return TakenDevices(words, reasons)


def explain_choice(
    choice: CardChoice, taken: TakenDevices, inventory: Inventory, request: GpuRequest, shared: SharingSurvey | None
) -> tuple[BusyReason, ...]:
    """Why nothing could be chosen, device by device: who has it, else what the choice said of it."""
    reasons = taken.reasons
    if shared is not None:
        known = {item.device for item in reasons}
        wanted = (d for d in list_devices(inventory) if d.uuid not in known and is_wanted(d, request.devices))
        reasons = (*reasons, *shared.busy(wanted))
    named = tuple(item for item in reasons if item.device in {uuid for uuid, _ in choice.rejected})
    have = {item.device for item in named}
    return (*named, *(BusyReason(uuid, Witness.CARD, why) for uuid, why in choice.rejected if uuid not in have))


def judge_devices(
    devices: tuple[LeasedDevice, ...],
    inventory: Inventory,
    rules: CardRules,
    shared: SharingSurvey | None,
    *,
    run_id: str,
) -> tuple[BusyReason, ...]:
    """Which of these devices are busy by a reading under the lock, and why."""
    found: list[BusyReason] = []
    for device in devices:
        card = next((card for card in inventory.cards if card.uuid == device.card_uuid), None)
        if card is None:
            found.append(BusyReason(device.uuid, Witness.CARD, f"not in the last reading ({inventory.reason})"))
            continue
        part = next((part for part in card.mig_slices if part.uuid == device.slice_uuid), None)
        if part is None:
            reasons = judge_card(card, rules, own_run_id=run_id)
        else:
            reasons = judge_slice(card, part, rules, own_run_id=run_id)
        if reasons:
            pids = tuple(process.pid for process in card.processes or ())
            found.append(BusyReason(device.uuid, Witness.CARD, "; ".join(reasons), pids=pids))
        elif shared is not None:
            found += shared.busy((device,))
    return tuple(found)


def _phrase(busy: BusyReason) -> str:
    return busy.holder + (f", since {busy.since}" if busy.since else "")
