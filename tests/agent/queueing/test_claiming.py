"""A worker claims a shared cell before it makes a run, and reads from other boxes' records what became of theirs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from holdfast.agent.queueing.claiming import Answer, SharedCells
from holdfast.host import claims
from holdfast.host.claims import Claim, End
from holdfast.model.queue import Cell, CellState

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.contract, pytest.mark.requirement("QUEUE-12")]

RUN, OTHER = "20261120-100000-a-0001", "20261120-100000-b-0002"
NOW = "2026-11-20T10:00:00.000Z"


@pytest.fixture
def cell(tmp_path: Path) -> Cell:
    place = tmp_path / "claims"
    claims.open_directory(str(place), expiry_s=1.0)
    return Cell(id=1, key="1.0", group="g", name="cell", state=CellState.QUEUED, claims=str(place))


def claimed(answer: Answer) -> Claim:
    assert answer.claim is not None, answer
    return answer.claim


def test_a_free_cell_becomes_ours_and_then_nobody_elses(cell: Cell) -> None:
    assert claimed(SharedCells().claim(cell, RUN)).number == 1
    other = SharedCells().claim(cell, OTHER)
    assert other.claim is None
    assert other.state is CellState.ELSEWHERE
    assert "claimed by" in other.note


def test_a_worker_that_died_after_its_claim_finds_it_again(cell: Cell) -> None:
    first = claimed(SharedCells().claim(cell, RUN))
    assert claimed(SharedCells().claim(cell, RUN)) == first


@pytest.mark.parametrize(("outcome", "state"), [("succeeded", CellState.DONE), ("failed", CellState.FAILED)])
def test_a_cell_that_ended_on_another_box_is_closed_here(cell: Cell, outcome: str, state: CellState) -> None:
    claim = claimed(SharedCells().claim(cell, OTHER))
    claims.end_claim(claim, End(outcome, "gpu2", f"/runs/{OTHER}", NOW, 0))
    answer = SharedCells().claim(cell, RUN)
    assert (answer.claim, answer.state) == (None, state)
    assert "gpu2" in answer.note
    assert SharedCells().review(cell).state is state


def test_our_own_end_may_be_followed_by_ourselves(cell: Cell) -> None:
    claim = claimed(SharedCells().claim(cell, RUN))
    claims.end_claim(claim, End("failed", "here", f"/runs/{RUN}", NOW, 1))
    assert claimed(SharedCells().claim(cell, RUN)).number == 2


def test_a_preempted_cell_is_anybodys(cell: Cell) -> None:
    claim = claimed(SharedCells().claim(cell, OTHER))
    claims.end_claim(claim, End("preempted", "gpu2", f"/runs/{OTHER}", NOW, 1))
    assert SharedCells().review(cell).state is CellState.QUEUED
    assert claimed(SharedCells().claim(cell, RUN)).number == 2


def test_a_silent_owner_is_taken_over_once(cell: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("holdfast.agent.queueing.claiming.monotonic_s", lambda: now[0])
    claimed(SharedCells().claim(cell, OTHER))
    ours, third = SharedCells(), SharedCells()
    for box in (ours, third):
        assert box.claim(cell, RUN).state is CellState.ELSEWHERE
    now[0] += 1.5
    assert claimed(ours.claim(cell, RUN)).number == 2
    assert third.claim(cell, "20261120-100000-c-0003").state is CellState.ELSEWHERE


def test_a_look_never_claims(cell: Cell) -> None:
    assert SharedCells().review(cell).state is CellState.QUEUED
    assert claimed(SharedCells().claim(cell, RUN)).number == 1


def test_a_directory_that_cannot_be_used_says_nothing_about_the_cell(cell: Cell, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    answer = SharedCells().claim(replace(cell, claims=str(blocked / "claims")), RUN)
    assert (answer.claim, answer.state) == (None, None)
    assert "cannot be used" in answer.note


def test_a_claim_of_another_configuration_says_nothing_about_this_cell(cell: Cell) -> None:
    claim = claimed(SharedCells().claim(replace(cell, sha256="a" * 64), OTHER))
    claims.end_claim(claim, End("succeeded", "gpu2", f"/runs/{OTHER}", NOW, 0))
    answer = SharedCells().claim(replace(cell, sha256="b" * 64), RUN)
    assert (answer.claim, answer.state) == (None, CellState.HELD)
    assert "another configuration" in answer.note
    assert SharedCells().claim(replace(cell, sha256="a" * 64), RUN).state is CellState.DONE
