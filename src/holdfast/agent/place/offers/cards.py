"""The entry ``cards``: how many cards of this box a new run could have now, for a desk that chooses among places.

Answers ``{"free": N, "total": N, "reason": TEXT}``; `reason` says why it is not known (then `free` is 0).
"""

from __future__ import annotations

from holdfast.agent.cards.box import read_box
from holdfast.agent.place.answer import answer


def main(words: list[str]) -> int:
    """Be the entry ``cards``."""
    del words
    return answer(count_free)


def count_free() -> dict[str, object]:
    """The free cards, all of them, and why that cannot be told."""
    box = read_box()
    whole = [place for place in box.places if place.part is None]
    reason = box.unread or ("" if box.inventory.complete else box.inventory.reason or "the cards cannot be read")
    free = 0 if reason else max(0, sum(not place.unavailable for place in whole) - sum(t.count for t in box.waiting))
    return {"free": free, "total": len(whole), "reason": reason}
