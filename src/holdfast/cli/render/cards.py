"""What ``holdfast gpus`` and its verbs say of the cards of a box: records in, words out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from holdfast.core.cards.holder_words import NEEDS_ADVICE, advise_on_process, describe_process
from holdfast.core.cards.packing import describe_sharer
from holdfast.core.moments import at_zone
from holdfast.model.finding import Finding, Level
from holdfast.model.lease import name_labels
from holdfast.model.units import format_bytes, format_count, format_duration

from . import clean, fits, note, pairs, table
from .findings import print_levels

if TYPE_CHECKING:
    from holdfast.agent.cards.card_list import CardLine, CardList
    from holdfast.agent.cards.health import CardHealthReport
    from holdfast.agent.cards.idle import IdleCard, IdleCards
    from holdfast.agent.cards.reserved import Reservations
    from holdfast.agent.cards.usage import UsageReport

SPARED = ("since", "use", "name")
"""Left out in this order where a terminal is too narrow: `holdfast show RUN` and ``--json`` have them."""
SIMULATED = "SIMULATED cards (HOLDFAST_SIMULATED_GPUS): no hardware behind them"
SHORT = " (simulated)"
BAR_JOBS = 24
MOST_NAMED = 20
RESERVED = "reserved by "
MOST_CARDS = 64
"""An account may write any names of cards into its own ledger; no box has so many."""
MOST_WARNINGS = MOST_WAITING = 20
"""Anybody can put files into the lease area; so many are told of one by one."""


def print_cards(box: CardList) -> None:
    """Every card as a row, then what is to be said of each, and the line."""
    if box.simulated:
        print(SIMULATED)
    for warning in box.warnings[:MOST_WARNINGS]:
        note(warning)
    if len(box.warnings) > MOST_WARNINGS:
        note(f"{len(box.warnings) - MOST_WARNINGS} more like these; --json lists them all")
    if not box.cards:
        print(clean(describe_none(box.reason, complete=box.complete)))
    elif not box.complete:
        note(f"this reading is incomplete: {box.reason}")
    if box.unread:
        note(box.unread)
    if box.cards:
        _print_table(box)
    for place in () if box.unread else box.cards:
        details = _details(place)
        if details:
            print(f"card {_title(place)}:")
            pairs(details, indent=2)
    _print_unlisted(box)
    _print_reserved(box)
    for position, ticket in enumerate(box.waiting[:MOST_WAITING], start=1):
        wanted = f"{ticket.count} of {format_count(len(ticket.candidates), 'card')}"
        print(clean(f"in line {position}: {ticket.user}, run {ticket.run_id}, {wanted}"))
    if len(box.waiting) > MOST_WAITING:
        note(f"{len(box.waiting) - MOST_WAITING} more wait; --json lists them all")


def describe_none(reason: str | None, *, complete: bool) -> str:
    """Why no card is shown: there is none, or it could not be read whether there are any."""
    words = "no cards" if complete else "whether there are cards could not be read"
    return f"{words}: {reason or 'none were found'}"


def _print_unlisted(box: CardList) -> None:
    """The leases on cards that were not read; the table has no row for them."""
    listed = {place.uuid for place in box.cards}
    for lease in box.unlisted[:MOST_WAITING]:
        hidden = [device for device in lease.devices if device.uuid not in listed]
        cards = name_labels([f"card {device.index}" for device in hidden])
        kind = f"{'simulated, ' if lease.simulated else ''}not seen here"
        print(clean(f"{cards} ({kind}): held by {lease.user}, run {lease.run_id}, since {lease.since[:19]}Z"))
    if len(box.unlisted) > MOST_WAITING:
        note(f"{len(box.unlisted) - MOST_WAITING} more leases on cards that are not seen here; --json lists them all")


def _print_reserved(box: CardList) -> None:
    """What is reserved and stands in nobody's way yet: later, or one's own."""
    told = " ".join(busy.holder for place in box.cards for busy in place.busy)
    indexes = {place.uuid: place.index for place in box.cards}
    shown = [item for item in box.reservations if item.id not in told]
    for item in shown[:MOST_WAITING]:
        cards = ", ".join(str(indexes.get(card, card)) for card in item.cards) + (SHORT if item.simulated else "")
        span = f"from {format_time(item.begin_s)} to {format_time(item.end_s)}"
        reason = f": {item.reason}" if item.reason else ""
        print(clean(f"reserved: card {cards} for {item.user} {span} ({item.id}){reason}"))
    if len(shown) > MOST_WAITING:
        note(f"{len(shown) - MOST_WAITING} more are reserved; holdfast gpus reservations lists them")


def _print_table(box: CardList) -> None:
    """A row for each card, without the columns that a narrow terminal has no room for."""
    headers = ["card", "name", "held by", "since", "run", "memory", "use", "available"]
    rows = [_line(place, unread=bool(box.unread)) for place in box.cards]
    for spared in SPARED:
        if fits(headers, rows):
            break
        at = headers.index(spared)
        if spared == "name":
            print(clean(", ".join(dict.fromkeys(str(row[at]) for row in rows))))
        headers, rows = headers[:at] + headers[at + 1 :], [row[:at] + row[at + 1 :] for row in rows]
    table(headers, rows)


def _title(place: CardLine) -> str:
    mark = SHORT if place.simulated else ""
    return f"{place.index}{f' slice {place.uuid}' if place.slice else ''}{mark}"


def _line(place: CardLine, *, unread: bool) -> tuple[object, ...]:
    used, total = place.memory_used_bytes, place.memory_total_bytes
    memory = "unknown" if used is None or total is None else f"{format_bytes(used)} / {format_bytes(total)}"
    utilisation = place.card.utilisation_pct
    lease = place.lease
    mark = SHORT if place.simulated else ""
    return (
        f"{place.index}{'/' + place.uuid if place.slice else ''}",
        place.name + (mark if "simulated" not in place.name.lower() else ""),
        f"{lease.user}{f' +{len(place.sharing)} sharing' if place.sharing else ''}"
        if lease
        else _foreign_holder(place),
        lease.since[:19] + "Z" if lease else next((busy.since for busy in place.busy if busy.since), None),
        lease.run_id if lease else None,
        memory,
        None if utilisation is None else f"{utilisation} %",
        "not known" if unread else "yes" if place.available else "no",
    )


def _foreign_holder(place: CardLine) -> str | None:
    """Who is in the way without a lease, in short: the line below the table has it all."""
    if place.busy and place.busy[0].holder.startswith(RESERVED):
        return f"reserved by {place.busy[0].holder.removeprefix(RESERVED).split(' ', 1)[0]}"
    return place.busy[0].holder.partition(" (")[0] if place.busy else None


def _details(place: CardLine) -> list[tuple[str, str]]:
    found = [("not available", reason) for reason in place.unavailable]
    for lease in (place.lease, *place.sharing) if place.lease is not None else ():
        gone = ", which is gone" if place.unsupervised else ""
        phase = f"phase {lease.phase.value}, supervisor pid {lease.supervisor.pid}{gone}"
        who = f"shared by {lease.user}, run {lease.run_id}: " if lease.share else ""
        ends = _describe_until(lease.until, unsupervised=place.unsupervised)
        found.append(("runs", f"{who}{lease.command or 'command not recorded'} ({phase}{ends})"))
    if place.sharers:
        found += [("memory", describe_sharer(sharer)) for sharer in place.sharers]
    for process in place.processes:
        found.append(("process", describe_process(process)))
        if process.kind in NEEDS_ADVICE:
            found.append(("to do", f"about pid {process.pid}: {advise_on_process(process, own=False)}"))
    if not place.slice:
        found += [("fault", fault) for fault in place.card.faults]
        found += [("throttled", reason) for reason in place.card.throttle]
    return found


def _describe_until(until: str | None, *, unsupervised: bool) -> str:
    if unsupervised:
        return "; nobody ends it at its time: its owner's `holdfast adopt` or `stop` does"
    return f", free by {until} at the latest: its time limit, and time to save" if until else ""


def print_health(health: CardHealthReport) -> None:
    """The findings, what is well of a card in one line."""
    for text in health.notes:
        note(text)
    if health.simulated:
        print(SIMULATED)
    if health.findings and health.readings and not health.complete:
        note(f"this reading is incomplete: {health.reason}")
    if not health.findings:
        print(f"no cards: {health.reason or 'none to look at'}")
        return
    print_levels(_shorten(health.findings))


def _shorten(findings: Sequence[Finding]) -> list[Finding]:
    """For people: what is not well as it is, and one line for all that is well of a card."""
    well: dict[str, list[str]] = {}
    for finding in findings:
        if finding.level is Level.PASS:
            well.setdefault(finding.subject, []).append(finding.id.removeprefix("gpu."))
    passed = [Finding("gpu", Level.PASS, subject, f"well: {', '.join(names)}") for subject, names in well.items()]
    return [*passed, *(finding for finding in findings if finding.level is not Level.PASS)]


def print_idle(found: IdleCards, least: str) -> None:
    """Each card that is held at rest for `least` or longer, with the message to its owner."""
    for warning in found.warnings[:MOST_WARNINGS]:
        note(warning)
    if found.unread:
        note(f"how busy they are could not be read of card {', '.join(map(str, found.unread))}")
    if not found.cards:
        print(clean(describe_none(found.reason, complete=found.complete)))
    elif not found.idle:
        print(f"no card is held at rest for {least} or more, as far as it could be read")
    for hoard in found.idle:
        print(clean(f"card {hoard.index}: {_describe_hoard(hoard)}"))
        print(clean(f"  {hoard.message}"))


def _describe_hoard(hoard: IdleCard) -> str:
    what = f"run {hoard.run_id}" if hoard.run_id else f"pid {', '.join(map(str, hoard.pids))}, no holdfast run"
    memory = "" if hoard.memory_bytes is None else f", {format_bytes(hoard.memory_bytes)} in use"
    held = "since when is not known" if hoard.held_s is None else f"for {format_duration(hoard.held_s)}"
    if hoard.idle_s is not None:
        idle = f"idle for {format_duration(hoard.idle_s)}: {hoard.idle_s / 3600:.1f} GPU-hours lost"
    else:
        lost = "" if hoard.held_s is None else f": {hoard.held_s / 3600:.1f} GPU-hours at most"
        idle = f"idle now, before that not known{lost}"
    mark = SHORT if hoard.simulated else ""
    return f"{hoard.user}, {what}{mark}, held {held}{memory}; {idle}"


def print_usage(found: UsageReport) -> None:
    """The table of hours, then how busy each card was."""
    _print_hours(found)
    for text in found.warnings[:MOST_NAMED]:
        note(text)


def _print_hours(found: UsageReport) -> None:
    totals = [total for week in found.weeks for total in week.accounts]
    if not totals:
        print("nobody has leased a card in that time")
        return
    simulated = sum(total.simulated_hours for total in totals)
    if simulated > 0 or found.simulated:
        print(f"SIMULATED cards: {simulated:.2f} of these GPU-hours have no hardware behind them")
    most = max(total.hours for total in totals)
    rows = [
        (
            f"{at_zone(total.begin_s):%Y-%m-%d}",
            total.user,
            f"{total.hours:.2f}",
            _draw_bar(total.hours, most),
            total.leases,
            total.cards_now or None,
        )
        for total in totals
    ]
    table(["from", "user", "GPU-hours", "", "leases", "cards now"], rows, right=(2, 4, 5))
    for card, part in list(found.cards.items())[:MOST_CARDS]:
        mark = SHORT if card in found.simulated else ""
        print(clean(f"{card}{mark}: leased {100 * part:.0f} % of the time"))
    if len(found.cards) > MOST_CARDS:
        note(f"{len(found.cards) - MOST_CARDS} more names of cards stand in the ledgers; --json lists them")
    if found.guessed:
        note(f"the end of {found.guessed} of {found.uses} leases is the last sign of life: their supervisors died")


def _draw_bar(hours: float, most: float) -> str:
    """A bar in proportion to the largest; at least one job for whatever is not nothing."""
    jobs = round(BAR_JOBS * hours / most) if most > 0 else 0
    return "#" * max(jobs, 1 if hours > 0 else 0)


def print_reservations(found: Reservations, indexes: Mapping[str, int]) -> None:
    """A row for each reservation that counts, a note for each that does not; `indexes` are cards' numbers by UUID."""
    if not found.reservations:
        print("nothing is reserved")
    else:
        rows = [
            (
                item.id,
                item.user,
                format_time(item.begin_s),
                format_time(item.end_s),
                ", ".join(str(indexes.get(card, card)) for card in item.cards) + (SHORT if item.simulated else ""),
                item.reason or None,
            )
            for item in found.reservations
        ]
        table(["id", "user", "from", "to", "cards", "reason"], rows)
    for text in found.warnings:
        note(text)


def format_time(at_s: float) -> str:
    """An epoch time as who reads it has it on the clock."""
    return f"{at_zone(at_s):%Y-%m-%d %H:%M}"
