"""Copies of results, for people: what failed is said once, and of many files that came again the first."""

from __future__ import annotations

import pytest

from holdfast.cli.render.results import CopyMeter, describe_mended
from holdfast.model.results import ResultsRecord
from holdfast.model.run import CopyState

pytestmark = pytest.mark.cli
AT = "2026-11-20T10:00:05.000Z"
WORDS = "try 1 of 3 failed: Read-only file system (/mnt); tries again in 10 s"


def test_a_try_that_failed_is_said_once_and_not_to_programs(capsys: pytest.CaptureFixture[str]) -> None:
    at = ResultsRecord("run-1", 1, "t", "0", CopyState.COPYING, "/mnt/run-1", AT, AT, "anna", problem=WORDS)
    for silent in (False, True):
        meter = CopyMeter(silent=silent)
        meter.show(at)
        meter.show(at)
        assert " ".join(capsys.readouterr().err.split()).count(f"run-1: {WORDS}") == (not silent)


@pytest.mark.parametrize(
    ("paths", "words"),
    [(("a",), "a was not"), (("a", "b"), "a, b were not"), (tuple("abcde"), "a, b, c and 2 more were not")],
)
def test_of_many_files_that_came_again_the_first_are_named(paths: tuple[str, ...], words: str) -> None:
    assert describe_mended(paths) == f"{words} any more what had been proven, and came again"
