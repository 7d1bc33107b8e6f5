"""Cards kept for somebody for a span of time: which reservations count, and against which requests. Pure.

A reservation is a person's word in a file that everybody reads. Because nobody checks it when it is written, it is
checked whenever it is read: longer than the rules allow, too many cards, or over an earlier one, and it does not count.
It never takes a card from a run: whoever has a card keeps it until the run ends.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from holdfast.model.record import record
from holdfast.model.units import format_count, format_duration

if TYPE_CHECKING:
    from holdfast.core.rules.rules import Rules
    from holdfast.model.gpu import GpuRequest

LONGEST_S = 24 * 3600.0
"""For which a card may be reserved where the rules say nothing (`reserve_max`)."""
FARTHEST_S = 7 * 86400.0
"""How far ahead one may begin: each keeps requests of unknown length off its cards from the day on which it is made."""
MOST_CARDS = 64
"""In one reservation, whatever the rules say: more is no box that we know."""


@record
class Reservation:
    """Who keeps which cards, from when to when. Epoch seconds; `cards` are UUIDs of whole cards, or `simulated` ones.

    `boot_id` and `made_boot_s` (seconds since that boot) say when it was made on a clock that nobody can set: on the
    same boot it is over after its time has passed, also where the wall clock was set back.
    """

    id: str
    uid: int
    user: str
    cards: tuple[str, ...]
    begin_s: float
    end_s: float
    made_s: float
    boot_id: str = ""
    made_boot_s: float = 0.0
    reason: str = ""
    simulated: bool = False


def is_over(found: Reservation, now_s: float, boot_id: str, boot_s: float) -> bool:
    """Whether its time has passed, by the wall clock or by this boot's."""
    passed = found.boot_id == boot_id and boot_s - found.made_boot_s >= found.end_s - found.made_s
    return now_s >= found.end_s or passed


def find_excess(found: Reservation, rules: Rules) -> str:
    """What a reservation asks beyond the rules, in words; empty when nothing."""
    source = ", ".join(rules.sources) or "holdfast without a rules file"
    longest_s = LONGEST_S if rules.reserve_max_s is None else rules.reserve_max_s
    most = MOST_CARDS if rules.reserve_cards_max is None else min(rules.reserve_cards_max, MOST_CARDS)
    length_s = found.end_s - found.begin_s
    if not found.cards or not length_s > 0:
        return "it names no card or no time"
    if length_s > longest_s:
        return f"{format_duration(length_s)} are asked for; {source} allows {format_duration(longest_s)} (reserve_max)"
    if found.begin_s - found.made_s > FARTHEST_S:
        return f"it begins {format_duration(found.begin_s - found.made_s)} ahead; a week is the most"
    if len(found.cards) > most:
        wanted = format_count(len(found.cards), "card is", "cards are")
        return f"{wanted} asked for; {source} allows {most} (reserve_cards_max)"
    return ""


def sort_out(
    reservations: Iterable[Reservation], rules: Rules
) -> tuple[tuple[Reservation, ...], tuple[tuple[Reservation, str], ...]]:
    """Those that count, in the order in which they were made, and those that do not, each with the reason.

    The first to be made wins a card; an account has no more cards at once than `reserve_cards_max`.
    """
    valid: list[Reservation] = []
    void: list[tuple[Reservation, str]] = []
    for found in sorted(reservations, key=lambda item: (item.made_s, item.id)):
        why = find_excess(found, rules) or _find_clash(found, valid, rules)
        if why:
            void.append((found, why))
        else:
            valid.append(found)
    return tuple(valid), tuple(void)


def _find_clash(found: Reservation, earlier: Sequence[Reservation], rules: Rules) -> str:
    meeting = [other for other in earlier if other.begin_s < found.end_s and found.begin_s < other.end_s]
    taken = next((other for other in meeting if set(other.cards) & set(found.cards)), None)
    if taken is not None:
        return f"{taken.user} reserved one of its cards before ({taken.id})"
    most = rules.reserve_cards_max
    own = {card for other in meeting if other.uid == found.uid for card in other.cards}
    if most is not None and len(own | set(found.cards)) > most:
        count = format_count(len(own | set(found.cards)), "card")
        return f"with its others {count} at once; the rules allow {most} (reserve_cards_max)"
    return ""


def find_against(
    reservations: Iterable[Reservation], uid: int, card: str, now_s: float, hold_s: float | None
) -> Reservation | None:
    """The first reservation of somebody else that a use of `card` from now on, for `hold_s`, would reach into.

    None for `hold_s` is "for as long as it takes": that may reach into every one of them.
    """
    for found in sorted(reservations, key=lambda item: item.begin_s):
        reaches = hold_s is None or now_s + hold_s > found.begin_s
        if found.uid != uid and card in found.cards and now_s < found.end_s and reaches:
            return found
    return None


def find_own(reservations: Iterable[Reservation], uid: int, now_s: float) -> frozenset[str]:
    """The cards that are kept for this account now."""
    now = [found for found in reservations if found.uid == uid and found.begin_s <= now_s < found.end_s]
    return frozenset(card for found in now for card in found.cards)


def choose_reserved(
    request: GpuRequest, cards: Sequence[tuple[int, str]], taken: Mapping[str, str], used: Collection[str] = ()
) -> tuple[tuple[str, ...], str]:
    """The UUIDs to reserve, or none and why. `cards` are (index, UUID); `taken` UUIDs with who has them, in words.

    Those that a run has now (`used`), be it one of this account's own, are chosen last.
    """
    if not request.devices:
        free = sorted((uuid for _, uuid in cards if uuid not in taken), key=lambda uuid: uuid in used)
        if len(free) >= request.count > 0:
            return tuple(free[: request.count]), ""
        reasons = "; ".join(f"card {index}: {taken[uuid]}" for index, uuid in cards if uuid in taken)
        wanted = format_count(request.count, "card is", "cards are")
        return (), f"{wanted} asked for, {len(free)} of {len(cards)} can be had then: {reasons}"
    chosen = []
    for name in request.devices:
        found = [(index, uuid) for index, uuid in cards if name == str(index) or uuid == name]
        if len(found) != 1:
            return (), f"there is no card {name} here"
        index, uuid = found[0]
        if uuid in taken:
            return (), f"card {index}: {taken[uuid]}"
        chosen.append(uuid)
    return tuple(dict.fromkeys(chosen)), ""
