"""The list of several places as people see it: what fits, what is old, who is silent."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.cli.render.layout import format_table
from holdfast.cli.render.placed_runs import COLUMNS, describe_runs, find_empty, print_places
from holdfast.cli.render.runs import choose_columns, describe_age
from holdfast.desk.runs.listing import NOT_ASKED, PlacedRun, PlaceState
from holdfast.host.clock import format_utc

pytestmark = pytest.mark.pure
NOW_S = 1_800_000_000.0


def ago(seconds: float) -> str:
    return format_utc(NOW_S - seconds)


def placed(place: str = "gpu1", run_id: str = "20261120-100001-digits-0a1b", **fields: Any) -> PlacedRun:
    usual: dict[str, Any] = {
        **dict.fromkeys(("started_at", "ended_at", "exit_code", "desired", "submitted_by", "submitted_from")),
        **dict.fromkeys(("created_at", "note", "failure", "root", "run_dir", "reason"), ""),
        "name": "digits",
        "attempt": 1,
        "condition": "running",
        "cards": "0,1",
        "step": 1200,
        "loss": "0.0263158",
        "ended": False,
        "seen_at": ago(0),
        "fresh": True,
        "reach": "here",
        "elapsed_s": 3600.0,
    }
    return PlacedRun(place=place, run_id=run_id, **{**usual, **fields})


RUNS = [
    placed("local", "20261122-123717-lr-2-c9fb", condition="waiting", cards="", step=None, loss=None),
    placed("gpu1", desired="stop"),
    placed("gpu7", "20261121-100001-resnet50-0a1b", fresh=False, reach="unreachable", seen_at=ago(3 * 3600)),
    placed(
        "gpu2",
        condition="failed",
        failure="out_of_memory",
        ended=True,
        exit_code=137,
        fresh=False,
        seen_at=ago(9 * 86400),
    ),
]


def test_the_age_of_what_was_not_seen_now() -> None:
    rows = describe_runs(RUNS, NOW_S)
    columns = choose_columns(COLUMNS, rows, [*find_empty(rows), "start"], None)
    lines = format_table(columns, [[row[name] or "-" for name in columns] for row in rows], right=(3, 5, 6, 7, 8))
    assert lines == [
        "PLACE  RUN                            STATE                   TIME  CARDS  STEP       LOSS  EXIT     SEEN",
        "local  20261122-123717-lr-2-c9fb      waiting                1h00m  -         -          -     -        -",
        "gpu1   20261120-100001-digits-0a1b    running, stop wanted   1h00m  0,1    1200  0.0263158     -        -",
        "gpu7   20261121-100001-resnet50-0a1b  running                1h00m  0,1    1200  0.0263158     -  3 h ago",
        "gpu2   20261120-100001-digits-0a1b    failed: out_of_memory  1h00m  0,1    1200  0.0263158   137  9 d ago",
    ]


def test_80_columns_hold_place_id_state_and_age() -> None:
    rows = describe_runs(RUNS, NOW_S)
    columns = choose_columns(COLUMNS, rows, find_empty(rows), 80)
    lines = format_table(columns, [[row[name] or "-" for name in columns] for row in rows], width=80)
    assert columns == ["place", "run", "state", "time", "seen"]
    assert all(len(line) <= 80 for line in lines)
    for run in RUNS:
        assert any(run.run_id in line for line in lines)


def test_no_column_for_what_is_the_same_everywhere() -> None:
    rows = describe_runs([RUNS[0]], NOW_S)
    columns = choose_columns(COLUMNS, rows, find_empty(rows), None)
    assert columns == ["run", "state", "start", "time", "cards", "step", "loss", "exit"]


@pytest.mark.parametrize(
    ("age_s", "words"),
    [
        *((0, "now"), (0.5, "now"), (1, "1 s ago"), (59.9, "59 s ago"), (60, "1 min ago"), (3599, "59 min ago")),
        *((3600, "1 h ago"), (47 * 3600, "47 h ago"), (48 * 3600, "2 d ago"), (4e8, "4629 d ago"), (-5, "now")),
    ],
)
def test_ages(age_s: float, words: str) -> None:
    assert describe_age(ago(age_s), NOW_S) == words


def test_an_age_that_is_not_known() -> None:
    assert (describe_age(None, NOW_S), describe_age("rubbish", NOW_S)) == ("", "")


def test_of_many_silent_places_the_first_say_why(capsys: pytest.CaptureFixture[str]) -> None:
    print_places([PlaceState(f"gpu{n}", "unreachable", True, ago(60), ago(2), "dns", "x") for n in range(8)], NOW_S)
    said = capsys.readouterr().err.splitlines()
    assert [line.split()[1] for line in said[:5]] == ["gpu0", "gpu1", "gpu2", "gpu3", "gpu4"]
    assert said[5] == "holdfast: nor do gpu5, gpu6, gpu7; holdfast ls --on PLACE says why"
    assert len(said) == 7


def test_a_silent_place_is_named_once_with_class_and_last_contact(capsys: pytest.CaptureFixture[str]) -> None:
    states = [
        PlaceState("gpu1", "here", True, ago(0), notice="2 rows of its answer were not understood"),
        PlaceState("gpu2", NOT_ASKED, False, ago(50)),
        PlaceState("gpu7", "unreachable", True, ago(7200), ago(2), "dns", "gpu7.lab is not known\x1b[2J"),
        PlaceState("gpu8", "unreachable", False, None, ago(40), "timed out", "timed out after 15 s"),
    ]
    print_places(states, NOW_S)
    assert capsys.readouterr().err.splitlines() == [
        "holdfast: gpu7 does not answer (dns: gpu7.lab is not known\\x1b[2J); it answered last 2 h ago",
        (
            "holdfast: gpu8 does not answer (timed out after 15 s, asked 40 s ago); it has never answered "
            "(holdfast place rm gpu8 forgets it)"
        ),
        "holdfast: of what cannot be reached the last sighting is shown; holdfast ls --on gpu7 asks again now",
        "holdfast: gpu1: 2 rows of its answer were not understood",
    ]
