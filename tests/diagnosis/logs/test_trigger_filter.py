"""The sieve may name too many triggers, never too few."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.diagnosis.logs import trigger_filter
from holdfast.diagnosis.logs.trigger_filter import TriggerFilter, shape_of

pytestmark = pytest.mark.pure

TRIGGERS = [
    b"No space left on device",
    b"Errno 28]",
    b"nan",
    b"=inf",
    b"out of memory",
    b"[1/2] *",
    b"Killed",
    b"Read-only file",
]
PIECES = [
    *TRIGGERS,
    b"step 12 loss 0.3",
    b"\n",
    b"\r",
    b" ",
    b"\t",
    b"\xe2\x96\x88",
    b"information",
    b"banana",
    b"No space",
    b"left",
    b"K1lled",
    b"Kil",
]


@given(st.lists(st.lists(st.sampled_from(PIECES), max_size=8).map(b"".join), max_size=6))
def test_a_trigger_in_a_block_is_always_named(blocks: list[bytes]) -> None:
    one = TriggerFilter(TRIGGERS)
    for block in [*blocks, *blocks]:
        assert {trigger for trigger in TRIGGERS if trigger in block} <= one.sift(block)


@given(st.lists(st.lists(st.sampled_from(PIECES), max_size=8).map(b"".join), max_size=6))
def test_it_stays_so_when_nothing_more_can_be_remembered(blocks: list[bytes]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("MOST_SHAPES", "MOST_WORDS", "MOST_NEW"):
            patch.setattr(trigger_filter, name, 2)
        one = TriggerFilter(TRIGGERS)
        for block in [*blocks, *blocks]:
            assert {trigger for trigger in TRIGGERS if trigger in block} <= one.sift(block)


def test_lines_that_differ_in_numbers_have_one_shape() -> None:
    assert shape_of(b"step 12: loss=0.31 (4.2 it/s)") == shape_of(b"step 13: loss=0.30 (4.1 it/s)")


def test_harmless_blocks_name_nothing() -> None:
    one = TriggerFilter(TRIGGERS[:4])
    assert one.sift(b"step 1 loss 0.3\nstep 2 loss 0.2\n") == set()
    assert one.sift(b"loading information\n") == {b"=inf"}
    assert one.sift(b"step 3 loss nan\n") == {b"nan"}
    assert one.sift(b"step 4 loss 0.1\n") == set()
    assert one.sift(b"step 5 loss nan\n") == {b"nan"}
