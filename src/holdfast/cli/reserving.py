"""``holdfast gpus reserve``, ``reservations`` and ``unreserve``: cards kept for a span of time."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

import click

from holdfast.cli.completion import complete_reservations
from holdfast.cli.render import clean, note, print_json, table

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.core.rules import Rules
    from holdfast.host.lease_area import Area
    from holdfast.model.gpu import GpuRequest

EPILOG = """\b
Examples:
  holdfast gpus reserve --cards 2 --from 22:00 --for 8h --reason "final evaluation"
  holdfast gpus reserve --gpus 0,1 --from "2026-11-24 09:00" --for 2h
  holdfast gpus unreserve r1f2e3d4c
"""
DAY_S = 86400.0
READING_S = 10.0


@click.command("reserve", short_help="Keep cards for a span of time.", epilog=EPILOG)
@click.option("--cards", type=click.IntRange(min=1, max=64), metavar="N", help="So many cards, whichever can be had.")
@click.option("--gpus", metavar="WHICH", help="any:2, or indexes or UUIDs: 0,1.")
@click.option("--from", "begin", default="now", metavar="TIME", show_default=True, help="22:00, 2026-11-24 09:00, +2h.")
@click.option("--for", "length", required=True, metavar="DURATION", help="For how long: 8h, 90m.")
@click.option("--reason", default="", metavar="TEXT", help="What for; everybody on this box can read it.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def reserve(*, cards: int | None, gpus: str | None, begin: str, length: str, reason: str, as_json: bool) -> int:
    """Keep cards for your own runs for a span of time; it ends by itself.

    Others' runs are not given these cards when they may reach into the span, and go on where they are: a card that
    somebody holds then, with no end before it, cannot be reserved. `any:2` is decided now. Like every lease it binds
    whoever uses holdfast. Exit code 75 when somebody has the cards, 64 when the rules do not allow it.
    """
    from holdfast.cli.cards import open_existing_area
    from holdfast.host import lease_area, reservations
    from holdfast.host.clock import epoch_s

    request = _parse_request(cards, gpus)
    now_s = epoch_s()
    begin_s = parse_time(begin, now_s)
    span = begin_s, begin_s + _parse_length(length)
    rules = _read_rules()
    choose = _build_choice(request)
    area = open_existing_area(rules) or lease_area.open_area(rules.lease_dir)
    reservations.sweep(area)
    made = reservations.reserve(area, rules, span=span, choose=choose, reason=reason)
    if as_json:
        print_json({"reservation": made})
        return 0
    when = f"from {reservations.format_time(made.begin_s)} to {reservations.format_time(made.end_s)}"
    print(f"reserved {made.id}: {', '.join(made.cards)} {when}")
    return 0


@click.command("reservations", short_help="List what is reserved.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def list_all(*, as_json: bool) -> int:
    """List the reservations that are not over: who, which cards, from when to when, what for.

    Those that do not count (too long, over an earlier one, written in another's name) are named with the reason.
    """
    from holdfast.host import reservations

    area, rules = _open()
    valid, wrong = ((), ()) if area is None else reservations.list_reservations(area, rules)
    if as_json:
        print_json({"reservations": valid, "warnings": wrong})
        return 0
    if not valid:
        print("nothing is reserved")
    else:
        rows = [
            (
                item.id,
                item.user,
                reservations.format_time(item.begin_s),
                reservations.format_time(item.end_s),
                ", ".join(item.cards),
                item.reason or None,
            )
            for item in valid
        ]
        table(["id", "user", "from", "to", "cards", "reason"], rows)
    for text in wrong:
        note(text)
    return 0


@click.command("unreserve", short_help="End a reservation.")
@click.argument("name", metavar="ID", shell_complete=complete_reservations)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def unreserve(*, name: str, as_json: bool) -> int:
    """End reservation ID: yours, or as root anybody's. Runs are not touched."""
    from holdfast.host import reservations
    from holdfast.model.errors import NoSuchRun

    area, _ = _open()
    if area is None:
        raise NoSuchRun(f"there is no reservation {name}", hint="nothing has been leased or reserved on this box")
    ended = reservations.remove(area, name)
    if as_json:
        print_json({"ended": ended})
    else:
        print(clean(f"{ended.id} is over: {', '.join(ended.cards)}"))
    return 0


def _read_rules() -> Rules:
    import os

    from holdfast.host.rulesfile import read_rules

    return read_rules(os.environ)


def _open() -> tuple[Area | None, Rules]:
    from holdfast.cli.cards import open_existing_area

    rules = _read_rules()
    return open_existing_area(rules), rules


def _parse_request(cards: int | None, gpus: str | None) -> GpuRequest:
    from holdfast.core.cards import parse_request
    from holdfast.model.errors import UsageError
    from holdfast.model.gpu import GpuRequest

    if (cards is None) == (gpus is None):
        raise UsageError("say which cards: --cards N or --gpus WHICH, one of them", hint="--cards 2, or --gpus 0,1")
    if cards is not None:
        return GpuRequest(count=cards)
    try:
        request = parse_request(gpus or "")
    except ValueError as error:
        raise UsageError(f"--{error}", hint="--gpus any:2, or --gpus 0,1; card 0 alone is 0,") from error
    if request.wanted < 1:
        raise UsageError("--gpus: no card is asked for", hint="--gpus any:2, or --gpus 0,1; card 0 alone is 0,")
    return request


def _build_choice(request: GpuRequest) -> Callable[[dict[str, str]], tuple[str, ...]]:
    """Chooses among the cards that answer now.

    Raises:
        StorageError: no card answers.
    """
    from holdfast.core.reservations import choose_cards
    from holdfast.host.gpus import read_inventory
    from holdfast.model.errors import ResourceBusy, StorageError, UsageError

    inventory = read_inventory(READING_S)
    known = sorted((card.index, card.uuid) for card in inventory.cards if card.uuid)
    if not known:
        raise StorageError(f"no card answers: {inventory.reason or 'this box has none'}", hint="see `holdfast gpus`")

    def choose(taken: dict[str, str]) -> tuple[str, ...]:
        if request.count > len(known):
            raise UsageError(f"{request.count} cards are asked for; this box has {len(known)}", hint="ask for fewer")
        chosen, why = choose_cards(request, known, taken)
        if not chosen:
            error = UsageError if why.startswith("there is no card") else ResourceBusy
            raise error(f"cannot be reserved: {why}", hint="see `holdfast gpus reservations` and `holdfast gpus`")
        return chosen

    return choose


def _parse_length(text: str) -> float:
    from holdfast.model.errors import UsageError
    from holdfast.model.units import parse_duration

    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise UsageError(f"--for: {error}", hint="write it like 8h or 90m") from error
    if seconds < 60:
        raise UsageError(f"--for: {text} is no span to reserve", hint="a minute at least")
    return seconds


def parse_time(text: str, now_s: float) -> float:
    """Epoch seconds of ``now``, ``+2h``, ``22:00`` (today or tomorrow) or ``2026-11-24 09:00``, local time.

    Raises:
        UsageError: it is none of these, or has passed.
    """
    from holdfast.model.errors import UsageError
    from holdfast.model.units import parse_duration

    cleaned = text.strip()
    found: float | None = None
    try:
        if cleaned == "now":
            found = now_s
        elif cleaned.startswith("+"):
            found = now_s + parse_duration(cleaned[1:])
        elif match := re.fullmatch(r"(\d{1,2}):(\d\d)", cleaned, re.ASCII):
            found = _next_time(int(match[1]), int(match[2]), now_s)
        else:
            found = time.mktime(time.strptime(cleaned.replace("T", " "), "%Y-%m-%d %H:%M"))
    except (ValueError, OverflowError):
        found = None
    if found is None:
        raise UsageError(f"--from: {text!r} is no time", hint='write it like 22:00, "2026-11-24 09:00", +2h or now')
    if found < now_s - 60:
        raise UsageError(f"--from: {text} has passed", hint="say a time that comes")
    return found


def _next_time(hour: int, minute: int, now_s: float) -> float | None:
    if hour > 23 or minute > 59:
        return None
    day = time.localtime(now_s)
    for ahead in (0, 1):
        found = time.mktime((day.tm_year, day.tm_mon, day.tm_mday + ahead, hour, minute, 0, 0, 0, -1))
        if found > now_s - 60:
            return found
    return None
