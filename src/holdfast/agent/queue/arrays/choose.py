"""Which sweep a name means: a group of this account's queue first, then one that a scheduler runs."""

from __future__ import annotations

from holdfast.agent.queue.open import find_group, look_at_queue
from holdfast.agent.view.runs.roots import list_roots
from holdfast.agent.view.runs.sweeps import FoundSweep, find_sweep


def choose_sweep(word: str) -> FoundSweep | None:
    """The sweep of this name that a scheduler runs; None where the queue has such a group, or nobody has one.

    Raises:
        HoldfastError: the queue cannot be opened.
    """
    found = find_sweep(word, list_roots())
    if found is None:
        return None
    with look_at_queue() as queue:
        return found if find_group(queue, word) is None else None
