"""The rate of right verdicts over whole logs: all of those that the rules were written with, and of unseen ones."""

from __future__ import annotations

import pytest

from tests.diagnosis.corpus import describe, judge_case, read_cases

pytestmark = [pytest.mark.files, pytest.mark.requirement("FAIL-01", "FAIL-02")]

LEAST = 0.92
LEAST_OF_WHOLE_LOGS = 0.97


def test_the_known_logs_get_their_class() -> None:
    outcomes = [judge_case(case) for case in read_cases("known")]
    wrong = {item.case.name: f"{item.kind}, not {item.case.want}" for item in outcomes if not item.right}
    assert not wrong
    assert not [item.case.name for item in outcomes if item.wrong_repeat]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("folder", "least"),
    [
        ("unseen", LEAST),
        ("third", LEAST_OF_WHOLE_LOGS),
        ("fourth", LEAST_OF_WHOLE_LOGS),
        ("fifth", LEAST_OF_WHOLE_LOGS),
    ],
)
def test_the_logs_get_their_class_at_the_rate_that_is_promised(folder: str, least: float) -> None:
    counted = describe([judge_case(case) for case in read_cases(folder)])
    assert counted["right or acceptable"] >= least * counted["failing"], counted
    assert (counted["false alarms"], counted["wrong repeats"]) == (0, 0), counted
