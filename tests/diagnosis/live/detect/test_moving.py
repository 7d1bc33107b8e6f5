"""What speaks against a hang or makes one less sure: bytes between ranks, cards that were not read; what is used up."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.diagnosis.evidence import Reading
from holdfast.diagnosis.live.gather.snapshot import IoCounters
from holdfast.diagnosis.live.gather.target import LiveTarget
from holdfast.model.record import replace
from holdfast.model.verdict import Confidence, LiveClass
from tests.diagnosis.live.cases import (
    FUTEX,
    OVERDUE,
    SILENT,
    SLEEP,
    case,
    judge,
    pair,
    process,
    resting,
    thread,
    tree,
    working,
)

pytestmark = pytest.mark.pure

Facts = tuple[Any, ...]


def rank(number: int, facts: Facts, **counters: int) -> Facts:
    """A rank at both looks; `counters` are what it read and wrote between them."""
    named = [replace(look, environment=Reading({"RANK": str(number)})) for look in facts]
    return named[0], replace(named[1], io=Reading(IoCounters(**counters)))


def three_ranks(**counters: int) -> list[Facts]:
    """Two that wait for the third."""
    waiting = [rank(i, resting(20 + i, "futex_do_wait", FUTEX, ppid=9), **counters) for i in (0, 1)]
    return [resting(9, "wait4", 61), *waiting, rank(2, resting(50, "hrtimer_nanosleep", SLEEP, ppid=9), **counters)]


@pytest.mark.requirement("DIAG-03")
def test_ranks_that_exchange_bytes_do_not_hang() -> None:
    assert judge(case(tree(*three_ranks()), SILENT)).kind is LiveClass.COLLECTIVE_HANG
    moved = {"rchar": 6000, "wchar": 6000, "syscr": 36, "syscw": 36}
    slow = judge(case(tree(*three_ranks(**moved)), SILENT))
    assert (slow.kind, slow.confidence) == (LiveClass.STRAGGLER, Confidence.POSSIBLE)
    assert "rank 2" in slow.action
    assert any("72 calls" in clue.text for clue in slow.evidence_for)
    # A log is only written: what is exchanged is read too.
    logging = judge(case(tree(*three_ranks(wchar=6000, syscw=36)), SILENT))
    assert logging.kind is LiveClass.COLLECTIVE_HANG


@pytest.mark.requirement("DIAG-03")
def test_bytes_speak_against_a_step_that_is_overdue() -> None:
    moved = {"rchar": 6000, "wchar": 6000, "syscr": 36, "syscw": 36}
    late = judge(case(tree(*three_ranks(**moved)), OVERDUE))
    assert (late.kind, late.confidence) == (LiveClass.COLLECTIVE_HANG, Confidence.POSSIBLE)
    assert any("72 calls" in clue.text for clue in late.evidence_against)


@pytest.mark.requirement("DIAG-03")
def test_cards_that_could_not_be_read_make_a_hang_less_sure() -> None:
    spinning = tree(process(10, pair(thread(10, "R"), ran=1.0)))
    with_card = LiveTarget("run", (), ours=True, cards=1)
    sure, unsure = judge(case(spinning, OVERDUE)), judge(case(spinning, OVERDUE, target=with_card))
    assert (sure.kind, sure.confidence) == (LiveClass.BUSY_NO_PROGRESS, Confidence.LIKELY)
    assert (unsure.kind, unsure.confidence) == (LiveClass.BUSY_NO_PROGRESS, Confidence.POSSIBLE)
    assert any("cards" in clue.text for clue in unsure.unknown)


@pytest.mark.requirement("DIAG-13")
def test_DIAG_13_what_is_nearly_used_up_is_said() -> None:
    full = {"disk_shares": {"sda": 0.99, "sdb": 0.2}, "pressure": {"io.some": 0.4}}
    at_limit = tuple(replace(look, files_open=1000, files_limit=1024) for look in working())
    texts = [clue.text for clue in judge(case(tree(at_limit), SILENT, box=full)).evidence_for]
    assert any("disk sda had requests 99% of the time" in text for text in texts)
    assert any("1000 of 1024 descriptors" in text for text in texts)
    assert not any("sdb" in text for text in texts)
    calm = judge(case(tree(working()), SILENT, box={**full, "pressure": {"io.some": 0.0}}))
    assert not any("disk" in clue.text for clue in calm.evidence_for)
