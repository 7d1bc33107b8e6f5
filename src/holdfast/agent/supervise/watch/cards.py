"""Watches the leased cards with each sample: faults, throttling, idleness, and whether the job is slower than it was.

Each is told once and again only after it was over. One reading decides nothing but a hard fault: the reasons for a
lowered clock come and go, and a card between two batches is idle.
"""

from __future__ import annotations

import json
from collections import deque
from typing import TYPE_CHECKING

from holdfast.core.cards.packing import sum_use
from holdfast.core.run.trend import Alarm, find_median
from holdfast.diagnosis.cards.throttling import judge_load, judge_throttling
from holdfast.host.clock import monotonic_s
from holdfast.host.files import files
from holdfast.model import wire
from holdfast.model.finding import Finding, Level
from holdfast.model.gpu import Card
from holdfast.model.record import replace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from holdfast.agent.supervise.context import SupervisorContext
    from holdfast.model.gpu import Inventory
    from holdfast.model.lease import LeasedDevice

WINDOW = 10
"""Readings by which a card's clocks and load are judged: what limits a clock comes and goes."""
NOT_READ = frozenset({"unreadable", "unresponsive"})
"""Faults that say that a card was not read, not that it failed: told when they last."""
READINGS = 3
"""So many in a row."""
LOST = "lost: the driver lists other cards, not this one"
IDLE_PCT = 5
IDLE_CORES = 0.1
"""A job that uses less of a CPU does nothing, either."""
IDLE_S = 15 * 60.0
MOST_GAP_S = 120.0
PACE_SAMPLES = 10
SLOWER = 0.7
"""Of the pace of the attempts before: a drop of 25 to 40 % is what thermal trouble shows."""
RECOVERED = 0.85
HISTORY_BYTES = 256 * 1024
MOST_ATTEMPTS = 5


def find_leased(inventory: Inventory, devices: Iterable[LeasedDevice]) -> list[Card]:
    """The leased cards as this reading has them, also those that are lost.

    A card that the driver can no longer name has no UUID: it is found by its number. One that is missing from a whole
    reading of others is lost, too; from a partial reading nothing follows.
    """
    by_uuid = {card.uuid: card for card in inventory.cards}
    leased = {device.card_uuid: device for device in devices}
    found = []
    for uuid, device in leased.items():
        nameless = [
            card for card in inventory.cards if card.index == device.index and card.uuid not in leased and card.faults
        ]
        if uuid in by_uuid:
            found.append(by_uuid[uuid])
        elif nameless:
            found.append(replace(nameless[0], uuid=uuid, name=device.name))
        elif inventory.cards and inventory.complete:
            found.append(Card(device.index, uuid, device.name, faults=(LOST,)))
    return found


class CardWatch:
    """Judges the cards of one run with each health sample."""

    def __init__(self, alert: Callable[..., None], run_id: str = "", reserved_bytes: int | None = None) -> None:
        """Nothing has been seen. `alert` is told an event's name and its facts.

        `reserved_bytes` is what the run `run_id` may use of each card that it shares; None without a reservation.
        """
        self._alert = alert
        self._run_id, self._reserved_bytes = run_id, reserved_bytes
        self._over: dict[str, Alarm] = {}
        self._faults: dict[str, dict[str, int]] = {}
        """For how many readings each card has had each of its faults."""
        self._readings: dict[str, tuple[deque[Card], Alarm, Alarm]] = {}
        self._idle_s, self._idle = 0.0, Alarm()
        self._at: float | None = None
        self._step: object = None
        self._cpu_s: float | None = None

    def note(self, cards: list[Card], step: object, cpu_s: object) -> None:
        """Take one sample: the leased cards, the heartbeat's step, the CPU seconds of the tree so far."""
        for card in cards:
            self._judge_faults(card)
            self._judge_clocks(card)
            self._judge_reservation(card)
        self._judge_idleness(cards, step, cpu_s if isinstance(cpu_s, (int, float)) else None)

    def _judge_faults(self, card: Card) -> None:
        now = {fault.partition(":")[0]: fault for fault in card.faults}
        before = self._faults.get(card.uuid, {})
        counts = self._faults[card.uuid] = {code: before.get(code, 0) + 1 for code in now}
        new = [now[code] for code, count in counts.items() if count == (READINGS if code in NOT_READ else 1)]
        if new:
            self._alert("card_fault", card=card.uuid, index=card.index, faults=new)

    def _judge_clocks(self, card: Card) -> None:
        """Held back by heat or power supply, or "busy" without power: by the rules of `diagnosis.cards`."""
        readings, held, underfed = self._readings.setdefault(card.uuid, (deque(maxlen=WINDOW), Alarm(), Alarm()))
        readings.append(replace(card, processes=(), mig_slices=()))
        name = f"{card.index} ({card.name})"
        throttling = _worst(judge_throttling(readings, None, card, name, 0.0))
        if held.note(bad=throttling.level is Level.FAIL, well=throttling.level is Level.PASS):
            self._alert("card_throttled", card=card.uuid, evidence=throttling.evidence, **describe_slow(card))
        load = _worst(judge_load(readings, name))
        if len(readings) == WINDOW and underfed.note(bad=load.level is Level.WARN, well=load.level is Level.PASS):
            self._alert("card_underfed", card=card.uuid, evidence=load.evidence, **describe_slow(card))

    def _judge_reservation(self, card: Card) -> None:
        """More in use than reserved is told, not ended: it counts as it is, and the others on the card have less."""
        if self._reserved_bytes is None:
            return

        listed = (*(card.processes or ()), *(process for part in card.mig_slices for process in part.processes))
        used = sum_use(listed, self._run_id)
        over = used is not None and used > self._reserved_bytes
        if self._over.setdefault(card.uuid, Alarm()).note(bad=over, well=not over):
            facts = {"used_bytes": used, "reserved_bytes": self._reserved_bytes}
            self._alert("memory_over_reservation", card=card.uuid, index=card.index, **facts)

    def _judge_idleness(self, cards: list[Card], step: object, cpu_s: float | None) -> None:
        now = monotonic_s()
        passed_s = 0.0 if self._at is None else min(now - self._at, MOST_GAP_S)
        used_s = None if cpu_s is None or self._cpu_s is None else cpu_s - self._cpu_s
        moved = step != self._step
        self._at, self._step, self._cpu_s = now, step, cpu_s
        idle = bool(cards) and all(
            card.utilisation_pct is not None and card.utilisation_pct <= IDLE_PCT for card in cards
        )
        resting = used_s is not None and passed_s > 0 and used_s / passed_s < IDLE_CORES
        # What cannot be read (utilisation on a MIG slice, CPU without a group) is no idleness.
        self._idle_s = self._idle_s + passed_s if idle and resting and not moved else 0.0
        if self._idle.note(bad=self._idle_s >= IDLE_S, well=self._idle_s == 0):
            names = [card.index for card in cards]
            self._alert("idle_lease", cards=names, idle_s=round(self._idle_s), step=step)


class PaceWatch:
    """Compares the steps in a second with those of earlier attempts of this run, on cards of the same models."""

    def __init__(self, context: SupervisorContext, alert: Callable[..., None]) -> None:
        """The history is read at the first comparison that can be made."""
        self._context, self._alert = context, alert
        self._paces: deque[float] = deque(maxlen=PACE_SAMPLES)
        self._before: float | None = None
        self._read = False
        self._alarm = Alarm()

    def note(self, pace: object, cards: list[Card]) -> None:
        """Take the pace of one sample."""
        if self._context.attempt < 2 or not isinstance(pace, (int, float)) or not pace > 0:
            return
        self._paces.append(float(pace))
        if len(self._paces) < PACE_SAMPLES:
            return
        if not self._read:
            self._read = True
            self._before = find_median(read_paces(self._context))
        now = find_median(self._paces)
        if self._before is None or now is None:
            return
        if self._alarm.note(bad=now < SLOWER * self._before, well=now > RECOVERED * self._before):
            facts = [describe_slow(card) for card in cards]
            self._alert("slower", steps_per_s=round(now, 4), before_steps_per_s=round(self._before, 4), cards=facts)


def _worst(findings: Iterator[Finding]) -> Finding:
    """The worst of some findings; none at all says that nothing is known."""
    order = (Level.PASS, Level.UNKNOWN, Level.WARN, Level.FAIL)
    nothing = Finding("gpu", Level.UNKNOWN, "", "")
    return max(findings, key=lambda finding: order.index(finding.level), default=nothing)


def describe_slow(card: Card) -> dict[str, object]:
    """The numbers by which a slow card is known."""
    return {
        "index": card.index,
        "throttle": card.throttle,
        "sm_clock_mhz": card.sm_clock_mhz,
        "sm_clock_max_mhz": card.sm_clock_max_mhz,
        "temperature_c": card.temperature_c,
        "power_w": card.power_w,
        "power_limit_w": card.power_limit_w,
    }


def read_paces(context: SupervisorContext) -> Iterator[float]:
    """The steps in a second of this run's earlier attempts on cards of the same models, newest attempts first."""
    mine = _read_models(context.run_dir, context.attempt)
    for attempt in range(context.attempt - 1, max(0, context.attempt - 1 - MOST_ATTEMPTS), -1):
        if _read_models(context.run_dir, attempt) != mine:
            continue
        path = f"{wire.attempt_dir(context.run_dir, attempt)}/{wire.HEALTH}"
        for line in files.read_tail(path, HISTORY_BYTES).splitlines():
            try:
                pace = json.loads(line).get("steps_per_s")
            except (ValueError, AttributeError):
                continue
            if isinstance(pace, (int, float)) and pace > 0:
                yield float(pace)


def _read_models(run_dir: str, attempt: int) -> list[str] | None:
    """The models of an attempt's cards; None when its manifest does not tell."""
    try:
        path = f"{wire.attempt_dir(run_dir, attempt)}/{wire.MANIFEST}"
        devices = wire.parse_object(files.read_bytes(path), wire.MANIFEST).get("devices")
        return sorted(str(device["name"]) for device in devices or ())
    except (OSError, wire.WireError, TypeError, KeyError):
        return None
