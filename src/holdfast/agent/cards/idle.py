"""Leased cards that nobody uses: who holds them, and for how long as far as that is known."""

from __future__ import annotations

import json
import os

from holdfast.core.patrol.idle import find_idle_since, is_idle_now
from holdfast.host.clock import epoch_s, parse_utc
from holdfast.host.files.files import read_tail
from holdfast.model import wire
from holdfast.model.errors import PlaceError
from holdfast.model.record import record
from holdfast.model.units import format_duration

from .box import LeasableDevice, read_box
from .watch import watch_cards

LEAST_BYTES = 256 * 1024**2
"""What an idle driver and a context without data may hold; a stranger with less hoards nothing."""
HISTORY_BYTES = 1024 * 1024
READING_S = 10.0


@record
class IdleCard:
    """A card that somebody holds and that rests. Seconds; `idle_s` None where only this moment was seen.

    `held_s` None where nothing says since when: the first is what was lost at least, the second what at most.
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


@record
class IdleCards:
    """The cards that are held at rest. Of the cards in `unread` nobody knows how busy they are; not `complete` then.

    `cards` is how many were looked at; `reason` says why there are none, or, not `complete`, why some may be missing.
    Where the leases cannot be read it is not `complete` either, and `warnings` say why; `exit_code` is 69 then, and
    where it could not be read whether there is a card.
    """

    idle: tuple[IdleCard, ...]
    watched_s: float
    complete: bool
    unread: tuple[int, ...]
    cards: int
    reason: str | None
    warnings: tuple[str, ...]
    exit_code: int = 0


def find_idle(least_s: float, window_s: float) -> IdleCards:
    """Watch every card for `window_s` seconds; those at rest that are held or idle for `least_s` or longer."""
    box = read_box(deadline_s=READING_S)
    hidden = box.unread if box.places else ""
    watched = watch_cards(window_s)
    found: list[IdleCard] = []
    unread = []
    for place in box.places:
        if place.part is not None:
            continue
        seen = [card.utilisation_pct for card in watched.samples.get(place.uuid, ())]
        if not seen or None in seen:
            unread.append(place.index)
        elif is_idle_now(seen):
            found += _judge(place, least_s)
    return IdleCards(
        idle=tuple(found),
        watched_s=watched.elapsed_s,
        complete=box.inventory.complete and not unread and not hidden,
        unread=tuple(unread),
        cards=len(box.places),
        reason=box.inventory.reason,
        warnings=(*box.warnings, *((hidden,) if hidden else ())),
        exit_code=PlaceError.exit_code if hidden or not (box.places or box.inventory.complete) else 0,
    )


def _judge(place: LeasableDevice, least_s: float) -> list[IdleCard]:
    """Who holds this card that rests now: its lessees, and processes of no run that have memory on it."""
    found = []
    records = (place.lease, *place.sharing) if place.lease is not None else ()
    for lease in records:
        try:
            held_s: float | None = max(0.0, epoch_s() - parse_utc(lease.since))
        except (ValueError, IndexError):
            held_s = None
        idle_s = _read_idle(lease.run_dir, lease.attempt, place.uuid) if _is_readable(lease.uid) else None
        known_s = held_s if idle_s is None else idle_s
        if known_s is not None and known_s < least_s:
            continue
        pids = tuple(process.pid for process in place.processes if process.run_id == lease.run_id)
        found.append(_build(place, lease.user, lease.run_id, pids, held_s, idle_s))
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
    if since is None:
        return 0.0
    # One sample spans no time.
    return None if len(samples) == 1 else samples[-1][0] - since


def _build(  # noqa: PLR0917 - the facts of one line
    place: LeasableDevice,
    user: str,
    run_id: str | None,
    pids: tuple[int, ...],
    held_s: float | None,
    idle_s: float | None,
) -> IdleCard:
    used = place.memory[0]
    return IdleCard(
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


def _write_message(  # noqa: PLR0917 - the facts of one line
    index: int, user: str, run_id: str | None, pids: tuple[int, ...], held_s: float | None, idle_s: float | None
) -> str:
    what = f"your run {run_id}" if run_id else f"your process {', '.join(map(str, pids))}"
    rests = "is idle at the moment" if idle_s is None else f"has been idle for {format_duration(idle_s)}"
    since = "" if held_s is None else f" (held for {format_duration(held_s)})"
    act = f"`holdfast stop {run_id}`" if run_id else "ending it"
    return (
        f"to {user}: Hello {user}, card {index} on {os.uname().nodename}, held by {what}{since}, {rests}. "
        f"If you do not need it just now, {act} would free it for others. Thank you!"
    )
