"""Verdicts in a line: what the cause is, and where it was read."""

from __future__ import annotations

import pytest

from holdfast.model.verdict import Clue, Confidence, FailureClass, Verdict

pytestmark = pytest.mark.pure

ENDING = Clue("the job ended with exit code 1", "state.json")


def test_the_cause_is_what_says_more_than_how_it_ended() -> None:
    said = Clue("KeyError:\n 'lr'", "/r/attempts/1/output.log, byte 271")
    assert Verdict(FailureClass.BUG, Confidence.LIKELY, "mend it", (ENDING, said)).cause == "KeyError: 'lr'"
    assert Verdict(FailureClass.STALLED, Confidence.CERTAIN, "look", (ENDING,)).cause == ""
    assert Verdict(FailureClass.UNKNOWN, Confidence.POSSIBLE, "look", (ENDING, said)).cause == ""


@pytest.mark.parametrize(
    ("source", "place"),
    [
        ("/runs/a/attempts/12/output.log, byte 271", "output.log, byte 271"),
        ("/proc/12/stat", "/proc/12/stat"),
        ("statvfs", "statvfs"),
        ("", ""),
    ],
)
def test_a_file_of_the_attempt_is_named_without_its_directory(source: str, place: str) -> None:
    assert Clue("seen", source).place == place
