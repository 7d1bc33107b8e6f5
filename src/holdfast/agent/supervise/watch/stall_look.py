"""One look at a job that stands still, by the child that a stalled run's supervisor forks for it (`stall`).

Loads the whole diagnosis of live processes, which the supervisor itself never does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.diagnosis.evidence import Reading
from holdfast.diagnosis.live.gather.target import build_card_numbers, target_from_run
from holdfast.diagnosis.live.judge import diagnose_live
from holdfast.host.gpu.inventory import read_inventory
from holdfast.host.gpu.probe_client import Probe, disown
from holdfast.model import wire
from holdfast.model.record import replace

if TYPE_CHECKING:
    from holdfast.diagnosis.live.gather.target import CardNumbers, LiveTarget
    from holdfast.model.identity import ProcessId

    from .stall import Told

CARDS_S = 2.0
MOST_CLUES = 5


def diagnose_stall(
    run_id: str,
    run_dir: str,
    attempt_dir: str,
    processes: tuple[ProcessId, ...],
    *,
    group_dirs: tuple[str, ...],
    cards: frozenset[str],
    limit_s: float,
) -> Told:
    """In the child: the verdict on these processes of a run, in plain values; `limit_s` without a step is too long."""
    disown()
    target = target_from_run(
        run_id, processes, run_dir=run_dir, attempt_dir=attempt_dir, group_dirs=group_dirs, cards=len(cards)
    )
    target = replace(target, patience_s=min(target.patience_s, limit_s), startup_s=min(target.startup_s, limit_s))
    with Probe() as probe:
        read = (lambda: _read_cards(target, cards, probe)) if cards else None
        verdict = diagnose_live(target, read_cards=read).verdict
    return {
        "class": verdict.kind.value,
        "confidence": verdict.confidence.value,
        "detector": verdict.detector,
        "action": verdict.action,
        "evidence_for": wire.encode(verdict.evidence_for[:MOST_CLUES]),
    }


def _read_cards(target: LiveTarget, uuids: frozenset[str], probe: Probe) -> Reading[tuple[CardNumbers, ...]]:
    """The leased cards as numbers; unread when one of them did not answer."""
    inventory = read_inventory(CARDS_S, probe=probe)
    pids = frozenset(target.list_pids())
    found = tuple(build_card_numbers(card, pids) for card in inventory.cards if card.uuid in uuids)
    if len(found) < len(uuids):
        return Reading(unread=inventory.reason or "a leased card did not answer")
    return Reading(found)
