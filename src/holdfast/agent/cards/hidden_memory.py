"""Card memory that no listed process accounts for, and which of our processes may hold it."""

from __future__ import annotations

import time
from collections.abc import Sequence

from holdfast.agent.view.runs.roots import list_roots
from holdfast.agent.view.runs.rows import list_runs
from holdfast.diagnosis.cards.holders import (
    BETWEEN_LOOKS_S,
    HIDDEN_BYTES,
    OpenNodes,
    advise_candidates,
    find_open_nodes,
    hidden_bytes,
    judge_holders,
)
from holdfast.host.gpu.processes import read_process_view
from holdfast.host.process.offload import Offload, OffloadFailed
from holdfast.model import wire
from holdfast.model.errors import HoldfastError
from holdfast.model.finding import Finding, Level
from holdfast.model.gpu import Card
from holdfast.model.units import format_bytes
from holdfast.store.index import Index

LOOK_WITHIN_S = 5.0


def look_at_holders() -> OpenNodes | None:
    """Who of this account has a card open, read in a child that may hang; None when that could not be read."""
    try:
        return wire.decode(OpenNodes, Offload(lambda: wire.encode(find_open_nodes())).wait(LOOK_WITHIN_S))
    except (OffloadFailed, OSError):
        return None


def has_hidden_memory(cards: Sequence[Card]) -> bool:
    """Whether some card has memory in use that no listed process accounts for."""
    return any((hidden_bytes(card) or 0) >= HIDDEN_BYTES for card in cards)


def judge_hidden_memory(cards: Sequence[Card], first: OpenNodes | None) -> tuple[Finding, ...]:
    """One finding for each card with memory in use that no listed process accounts for; takes the second look."""
    hidden = [(card, amount) for card in cards if (amount := hidden_bytes(card) or 0) >= HIDDEN_BYTES]
    if not hidden:
        return ()
    if first is not None:
        time.sleep(max(first.at_s + BETWEEN_LOOKS_S - time.monotonic(), 0.0))
    second = look_at_holders()
    over, complete = find_over_runs(), read_process_view().complete
    found = []
    for card, amount in hidden:
        name = f"{card.index} ({card.name})"
        words = f"{format_bytes(amount)} of its memory are held by no process that the driver lists"
        if first is None or second is None:
            action = "look as root: `fuser -v /dev/nvidia*`"
            found.append(Finding("gpu.memory", Level.UNKNOWN, name, f"{words}; processes could not be read", action))
            continue
        answer = judge_holders(card, first, second, over_runs=over, sees_everyone=complete)
        if answer.value:
            listed = "; ".join(f"pid {one.pid} ({one.command}): {', '.join(one.why)}" for one in answer.value)
            found.append(Finding("gpu.memory", Level.WARN, name, f"{words}; {listed}", advise_candidates(answer.value)))
            continue
        why = answer.unread or "no process of yours comes into question"
        action = "ask whoever shares this box; in a container the holder may be outside: restart the container"
        found.append(Finding("gpu.memory", Level.WARN, name, f"{words}; {why}", action))
    return tuple(found)


def find_over_runs() -> frozenset[str]:
    """The ids of the runs of this account that are known to be over; what is not known is not over."""
    try:
        with Index() as index:
            return frozenset(row.run_id for row in list_runs(index, list_roots()) if row.ended)
    except (HoldfastError, OSError):
        return frozenset()
