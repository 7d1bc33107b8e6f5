"""The worker's side of shared cells: claim before a run is made, and watch what other boxes have claimed (QUEUE-12).

What `host.claims` does may hang with the shared directory, so each look and each claim is made in a disposable child. A
cell that could not be looked at is neither free nor taken: it waits.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...host.claims import Claim, End, Seen, Watch, look, make_claim, open_directory
from ...host.clock import monotonic_s
from ...host.offload import Offload, OffloadFailed
from ...model import wire
from ...model.queue import CellState

if TYPE_CHECKING:
    from ...model.queue import Cell

ANSWER_S = 10.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of asking for a cell: `claim` when it is ours, else the state that it goes to, and why in words.

    `state` None: nothing is known; ask again later. `expiry_s`: the silence after which a claim may be taken over.
    """

    claim: Claim | None = None
    expiry_s: float = 0.0
    state: CellState | None = None
    note: str = ""


class SharedCells:
    """Claims of one worker. Remembers how long other boxes' beats have stood still, which a new worker begins anew."""

    def __init__(self) -> None:
        """Nothing has been seen."""
        self._watch = Watch()

    def claim(self, cell: Cell, run_id: str) -> Answer:
        """Claim a cell for a run of ours, if it is free, was ours already, or its owner has gone silent."""
        assert cell.claims is not None
        return self._ask(cell, run_id)

    def review(self, cell: Cell) -> Answer:
        """Look at a cell that another box has: the state it is in now; never claims it."""
        return self._ask(cell, None)

    def _ask(self, cell: Cell, run_id: str | None) -> Answer:
        try:
            facts = Offload(lambda: _look(cell, run_id)).wait(ANSWER_S)
            seen, expiry_s = wire.decode(Seen, facts["seen"]), float(facts["expiry_s"])
        except (OffloadFailed, OSError, wire.WireError, KeyError, TypeError) as error:
            return Answer(note=f"the claims directory cannot be used: {error}")
        if seen.sha256 and cell.sha256 and seen.sha256 != cell.sha256:
            words = f"{seen.host} has claimed a cell of this name with another configuration ({seen.sha256[:12]})"
            return Answer(state=CellState.HELD, note=f"{words}; this one is {cell.sha256[:12]}: give it another name")
        found = self._read_claim(facts)
        if found is not None:
            self._watch.forget(cell.key)
            return found
        if seen.end is not None and not seen.end.is_open:
            self._watch.forget(cell.key)
            return _close(seen.end)
        if seen.claimable:
            return Answer(state=CellState.QUEUED, note="free")
        if self._watch.has_expired(cell.key, seen, monotonic_s(), expiry_s):
            return self._take_over(cell, seen, run_id)
        note = f"claimed by {seen.host} since {seen.since}"
        return Answer(state=CellState.ELSEWHERE, expiry_s=expiry_s, note=note)

    def _take_over(self, cell: Cell, seen: Seen, run_id: str | None) -> Answer:
        silent = f"{seen.host} has claimed it and has gone silent"
        if run_id is None:
            return Answer(state=CellState.QUEUED, note=silent)
        try:
            facts = Offload(lambda: _claim(cell, seen.number, run_id)).wait(ANSWER_S)
        except (OffloadFailed, OSError) as error:
            return Answer(note=f"the claims directory cannot be used: {error}")
        self._watch.forget(cell.key)
        return self._read_claim(facts) or Answer(state=CellState.ELSEWHERE, note="another box was quicker")

    @staticmethod
    def _read_claim(facts: dict[str, Any]) -> Answer | None:
        if facts.get("claim") is None:
            return None
        return Answer(claim=wire.decode(Claim, facts["claim"]), expiry_s=float(facts["expiry_s"]))


def _close(end: End) -> Answer:
    where = f"on {end.host}: {end.run_dir}"
    if end.outcome == "succeeded":
        return Answer(state=CellState.DONE, note=f"done {where}")
    return Answer(state=CellState.FAILED, note=f"{end.outcome} {where}")


def _look(cell: Cell, run_id: str | None) -> dict[str, Any]:
    """In a child: look, and claim at once what is free or ours."""
    assert cell.claims is not None
    directory = open_directory(cell.claims, make=False)
    path = directory.cell_directory(f"{cell.group}/{cell.name}")
    seen = look(path)
    facts = {"seen": wire.encode(seen), "expiry_s": directory.expiry_s, "claim": None}
    if run_id is None:
        return facts
    if seen.end is None and seen.number and _is_ours(path, seen, run_id):
        return {**facts, "claim": wire.encode(Claim(path, seen.number, seen.token))}
    # An end that we said ourselves may be followed by ourselves: somebody asked for it here.
    again = seen.end is not None and os.path.basename(seen.end.run_dir) == run_id
    return {**facts, **_claim(cell, seen.number, run_id)} if seen.claimable or again else facts


def _claim(cell: Cell, after: int, run_id: str) -> dict[str, Any]:
    assert cell.claims is not None
    directory = open_directory(cell.claims, make=False)
    claim = make_claim(
        directory.cell_directory(f"{cell.group}/{cell.name}"), after, facts={"run_id": run_id, "sha256": cell.sha256}
    )
    return {"claim": wire.encode(claim) if claim is not None else None, "expiry_s": directory.expiry_s}


def _is_ours(path: str, seen: Seen, run_id: str) -> bool:
    """Whether an earlier worker of this box has claimed it for the same run, and died before it could say so."""
    from ...host import files

    claim = Claim(path, seen.number, seen.token)
    owner = wire.parse_object(files.read_bytes(claim.path("claim")), claim.path("claim"))
    return owner.get("run_id") == run_id and owner.get("host") == os.uname().nodename
