"""``holdfast gpus idle``: who holds cards and does nothing with them, for how long as far as that is known."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from holdfast.cli.render import clean, note, print_json

if TYPE_CHECKING:
    from holdfast.cli.cards import Place

EPILOG = """\b
Examples:
  holdfast gpus idle                  held for 30 min or more and at rest now
  holdfast gpus idle --min 2h --for 30s
"""
LEAST_BYTES = 256 * 1024**2
"""What an idle driver and a context without data may hold; a stranger with less hoards nothing."""
HISTORY_BYTES = 1024 * 1024
READING_S = 10.0


@dataclass(frozen=True, slots=True)
class Hoard:
    """A card that somebody holds and that rests. Seconds; `idle_s` None where only this moment was seen.

    `held_s` None where nothing says since when. `gpu_hours` is what was lost, at least (by `idle_s`) or at most.
    """

    index: int
    uuid: str
    user: str
    run_id: str | None
    pids: tuple[int, ...]
    memory_bytes: int | None
    held_s: float | None
    idle_s: float | None
    known_from: str
    message: str
    simulated: bool = False


@click.command("idle", short_help="Who holds cards and does nothing with them.", epilog=EPILOG)
@click.option("--min", "least", default="30m", metavar="DURATION", show_default=True, help="Idle or held for as long.")
@click.option("--for", "window", default="4s", metavar="DURATION", show_default=True, help="How long to watch now.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def command(*, least: str, window: str, as_json: bool) -> int:
    """Show leases and other programs that hold a card at rest, with a message that can be sent to their owner.

    Every card is watched for some seconds now. For how long it has rested before is known only of runs of this account
    (all runs, for root) by their health samples; of others it is said since when they hold it. Nobody is disturbed.
    """
    from holdfast.cli.card_health import parse_window, watch_cards
    from holdfast.cli.cards import read_box
    from holdfast.core.idling import is_idle_now

    least_s = _parse_least(least)
    seconds = parse_window(window)
    box = read_box(deadline_s=READING_S)
    watched = watch_cards(seconds)
    found, unread = [], []
    for place in box.places:
        if place.part is not None:
            continue
        seen = [card.utilisation_pct for card in watched.samples.get(place.uuid, ())]
        if not seen or None in seen:
            unread.append(place.index)
        elif is_idle_now(seen):
            found += _judge(place, least_s)
    if as_json:
        complete = box.inventory.complete and not unread
        print_json({"idle": found, "watched_s": watched.elapsed_s, "complete": complete, "unread": unread})
        return 0
    for warning in box.warnings[:20]:
        note(warning)
    if unread:
        note(f"how busy they are could not be read of card {', '.join(map(str, unread))}")
    if not box.places:
        print(f"no cards: {box.inventory.reason or 'none were found'}")
    elif not found:
        print(f"no card is held at rest for {least} or more, as far as it could be read")
    for hoard in found:
        print(clean(f"card {hoard.index}: {_describe(hoard)}"))
        print(clean(f"  {hoard.message}"))
    return 0


def _parse_least(text: str) -> float:
    from holdfast.model.errors import UsageError
    from holdfast.model.units import parse_duration

    try:
        return parse_duration(text)
    except ValueError as error:
        raise UsageError(f"--min: {error}", hint="write it like 30m or 2h") from error


def _judge(place: Place, least_s: float) -> list[Hoard]:
    """Who holds this card that rests now: its lessees, and processes of no run that have memory on it."""
    from holdfast.host.clock import epoch_s, parse_utc

    found = []
    records = (place.lease, *place.sharing) if place.lease is not None else ()
    for record in records:
        try:
            held_s: float | None = max(0.0, epoch_s() - parse_utc(record.since))
        except (ValueError, IndexError):
            held_s = None
        idle_s = _read_idle(record.run_dir, record.attempt, place.uuid) if _is_readable(record.uid) else None
        known_s = held_s if idle_s is None else idle_s
        if known_s is not None and known_s < least_s:
            continue
        pids = tuple(process.pid for process in place.processes if process.run_id == record.run_id)
        found.append(_build(place, record.user, record.run_id, pids, held_s, idle_s))
    for process in place.processes:
        used = place.memory[0] if process.used_bytes is None else process.used_bytes
        if process.run_id is not None or (used is not None and used < LEAST_BYTES):
            continue
        if process.age_s is None or process.age_s >= least_s:
            found.append(_build(place, process.user or "unknown", None, (process.pid,), process.age_s, None))
    return found


def _is_readable(uid: int) -> bool:
    return os.geteuid() in (0, uid)


def _read_idle(run_dir: str, attempt: int, uuid: str) -> float | None:
    """For how long a card of a run of ours has rested up to its last health sample; None when nothing says so."""
    from holdfast.core.idling import find_idle_since
    from holdfast.host.clock import parse_utc
    from holdfast.host.files import read_tail
    from holdfast.model import wire

    if not os.path.isabs(run_dir):
        return None
    samples: list[tuple[float, int | None]] = []
    for line in read_tail(f"{wire.attempt_dir(run_dir, attempt)}/{wire.HEALTH}", HISTORY_BYTES).splitlines():
        try:
            value = json.loads(line)
            card = next((card for card in value.get("cards") or () if card.get("uuid") == uuid), None)
            use = None if card is None else card.get("utilisation_pct")
            samples.append((parse_utc(str(value["utc"])), use if isinstance(use, int) else None))
        except (ValueError, KeyError, AttributeError, IndexError, TypeError, RecursionError):
            continue
    if not samples:
        return None
    since = find_idle_since(samples)
    return 0.0 if since is None else samples[-1][0] - since


def _build(  # noqa: PLR0917 - the facts of one line
    place: Place, user: str, run_id: str | None, pids: tuple[int, ...], held_s: float | None, idle_s: float | None
) -> Hoard:
    used = place.memory[0]
    return Hoard(
        index=place.index,
        uuid=place.uuid,
        user=user,
        run_id=run_id,
        pids=pids,
        memory_bytes=used,
        held_s=held_s,
        idle_s=idle_s,
        known_from="its health samples" if idle_s is not None else "this moment only",
        message=_write_message(place.index, user, run_id, pids, held_s, idle_s),
        simulated=place.simulated,
    )


def _describe(hoard: Hoard) -> str:
    from holdfast.model.units import format_bytes, format_duration

    what = f"run {hoard.run_id}" if hoard.run_id else f"pid {', '.join(map(str, hoard.pids))}, no holdfast run"
    memory = "" if hoard.memory_bytes is None else f", {format_bytes(hoard.memory_bytes)} in use"
    held = "since when is not known" if hoard.held_s is None else f"for {format_duration(hoard.held_s)}"
    if hoard.idle_s is not None:
        idle = f"idle for {format_duration(hoard.idle_s)}: {hoard.idle_s / 3600:.1f} GPU-hours lost"
    else:
        lost = "" if hoard.held_s is None else f": {hoard.held_s / 3600:.1f} GPU-hours at most"
        idle = f"idle now, before that not known{lost}"
    mark = " (simulated)" if hoard.simulated else ""
    return f"{hoard.user}, {what}{mark}, held {held}{memory}; {idle}"


def _write_message(  # noqa: PLR0917 - the facts of one line
    index: int, user: str, run_id: str | None, pids: tuple[int, ...], held_s: float | None, idle_s: float | None
) -> str:
    from holdfast.model.units import format_duration

    what = f"your run {run_id}" if run_id else f"your process {', '.join(map(str, pids))}"
    rests = "is idle at the moment" if idle_s is None else f"has been idle for {format_duration(idle_s)}"
    since = "" if held_s is None else f" (held for {format_duration(held_s)})"
    act = f"`holdfast stop {run_id}`" if run_id else "ending it"
    return (
        f"to {user}: Hello {user}, card {index} on {os.uname().nodename}, held by {what}{since}, {rests}. "
        f"If you do not need it just now, {act} would free it for others. Thank you!"
    )
