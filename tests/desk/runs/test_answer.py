"""A box's answer is a stranger's text: what fits is taken, nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.desk.runs.answer import MOST_ROWS, clean_text, read_answer
from holdfast.model.sighting import Reach
from tests.desk.runs.sightings import answer, over, row, run_id

pytestmark = pytest.mark.pure
AT = "2026-11-22T10:00:00.000Z"
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


def test_rows_become_sightings() -> None:
    poll = read_answer("gpu1", answer(row(2, desired="stop"), over(1)), at=AT)
    live, ended = poll.sightings[run_id(2)], poll.sightings[run_id(1)]
    assert (live.place, live.seen_at, live.by, live.reach) == ("gpu1", AT, "agent", Reach.HERE)
    assert (live.condition, live.ended, live.exit_code, live.desired) == ("running", False, None, "stop")
    assert (ended.condition, ended.ended, ended.exit_code) == ("succeeded", True, 0)
    assert (poll.unreachable, poll.notice) == (None, "")


@pytest.mark.parametrize(
    "bad",
    [
        *(None, 1, "text", [], {}),
        *(row(run_id="../../etc/passwd"), row(run_id=7), row(run_id="20261120-100000-x\n-0a1b")),
        *(row(condition=None), row(condition=["running"]), row(ended="yes"), row(ended=1), row(exit_code="0")),
        *(row(exit_code=True), row(step=10**30), row(elapsed_s=float("nan")), row(elapsed_s=-1), row(attempt=1.5)),
        *(row(started_at=5), row(desired={"kind": "stop"}), row(root=None), row(vanished="no")),
    ],
)
def test_a_row_that_is_none_is_left_out_and_said(bad: Any) -> None:
    poll = read_answer("gpu1", answer(bad, row(2)), at=AT)
    assert list(poll.sightings) == [run_id(2)]
    assert "1 rows of its answer were not understood" in poll.notice


@pytest.mark.parametrize(
    "bad", [None, [], "x", {}, {"schema": 2, "runs": []}, {"schema": 1}, {"schema": 1, "runs": {}}]
)
def test_an_answer_that_is_none_says_nothing_of_any_run(bad: object) -> None:
    poll = read_answer("gpu1", bad, at=AT, asked=[run_id(1)])
    assert (poll.sightings, poll.absent, poll.why) == ({}, (), "malformed")
    assert poll.unreachable


def test_only_runs_that_were_asked_for_where_single_ones_were() -> None:
    mine, other = row(1), row(2)
    poll = read_answer(
        "gpu1", answer(mine, other, absent=[run_id(3), run_id(4), 5]), at=AT, asked=[run_id(1), run_id(3)], only=True
    )
    assert (list(poll.sightings), poll.absent) == ([run_id(1)], (run_id(3),))
    assert "nobody had asked" in poll.notice


def test_the_first_of_two_rows_of_a_run_counts_and_it_is_not_absent() -> None:
    poll = read_answer("gpu1", answer(row(1), over(1), absent=[run_id(1)]), at=AT, asked=[run_id(1)])
    assert (poll.sightings[run_id(1)].ended, poll.absent) == (False, ())


def test_no_text_steers_a_terminal() -> None:
    evil = "\x1b]0;owned\x07\x9b31m\u202egnp.exe\u200b\r\n\ud800"
    poll = read_answer("gpu1", answer(row(condition=evil, note=evil, root=evil), notice=evil), at=AT)
    (seen,) = poll.sightings.values()
    assert seen.row is not None
    for text in (seen.condition, str(seen.row["note"]), str(seen.row["root"]), poll.notice):
        assert text.isprintable(), text
        text.encode()


def test_much_of_everything_is_bounded() -> None:
    many = [row(note="x" * 10_000, run_id=f"20261120-100000-r{number}-0a1b") for number in range(MOST_ROWS + 5)]
    poll = read_answer("gpu1", answer(*many, notice="y" * 10_000), at=AT)
    assert len(poll.sightings) == MOST_ROWS
    assert len(str(next(iter(poll.sightings.values())).row)) < 2000
    assert len(poll.notice) < 500


@given(value=JSON)
def test_nothing_that_json_can_say_raises(value: object) -> None:
    read_answer("gpu1", value, at=AT, asked=[run_id(1)])
    poll = read_answer("gpu1", answer(value, {**row(1), "step": value}, absent=value, notice=value), at=AT)
    json.dumps([clean_text(str(sighting.row), 100) for sighting in poll.sightings.values()])


@pytest.mark.slow
@given(key=st.sampled_from(sorted(row())), value=JSON)
def test_no_value_of_a_field_raises(key: str, value: object) -> None:
    for sighting in read_answer("gpu1", answer({**row(1), key: value}), at=AT).sightings.values():
        assert sighting.condition.isprintable()
