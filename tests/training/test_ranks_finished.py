"""Ranks that are done while others are not: no save is asked of those who cannot take part in it any more."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from holdfast.training.ranks.agreement import Action, RankDecision, RankProposal
from holdfast.training.ranks.board import Board
from tests.waiting import LIMIT_S

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.contract


@pytest.mark.requirement("CKPT-13", "LIB-05")
def test_CKPT_13_no_save_is_decided_once_a_rank_has_finished_and_a_stop_is(tmp_path: Path) -> None:
    with ThreadPoolExecutor() as pool:
        made = [
            pool.submit(Board, rank=rank, world=2, directory=str(tmp_path), key="k", timeout_s=LIMIT_S)
            for rank in (0, 1)
        ]
        one, two = (each.result() for each in made)
    try:
        one.arrive(0, None)
        two.arrive(0, None)
        two.finish(20)
        assert [one.arrive(done, RankProposal(Action.SAVE, "interval")) for done in (1, 2, 3)] == [None, None, None]
        assert one.arrive(4, RankProposal(Action.STOP, "signal")) == RankDecision(1, 4, Action.STOP, "signal")
    finally:
        one.close()
        two.close()
