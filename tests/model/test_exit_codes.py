"""The page about exit codes says what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from holdfast.core.run import outcome
from holdfast.diagnosis.exit_codes import EXIT_CODES
from holdfast.host.job import spawn
from holdfast.model import errors
from holdfast.model.errors import HoldfastError
from holdfast.model.run import Outcome

pytestmark = pytest.mark.process

PAGE = Path(__file__).parents[2] / "docs" / "exit-codes.md"


def read_rows() -> dict[int, tuple[str, str]]:
    rows = re.findall(r"^\| (\d+) \| (.+?) \| (.+?) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return {int(code): (outcomes, words) for code, outcomes, words in rows}


@pytest.mark.requirement("PROC-25", "DOC-06")
def test_every_code_of_holdfast_is_on_the_page() -> None:
    kinds = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, HoldfastError)]
    codes = {kind.exit_code for kind in kinds} | {
        errors.EXIT_STOPPED,
        errors.EXIT_TIMED_OUT,
        errors.EXIT_WARNED,
        outcome.EXIT_LOST,
    }
    assert codes | {spawn.EXIT_NOT_FOUND, spawn.EXIT_NOT_EXECUTABLE, 0, 1, 69, 143} == set(read_rows())


@pytest.mark.requirement("DOC-06")
def test_what_is_explained_is_what_the_page_says() -> None:
    page = {
        code: (outcomes, re.sub(r"\[(.+?)\]\(.+?\)", r"\1", words)) for code, (outcomes, words) in read_rows().items()
    }
    told = {
        row.code: (", ".join(kind.value.replace("_", " ") for kind in row.outcomes) or "-", row.when)
        for row in EXIT_CODES
    }
    assert told == page


@pytest.mark.requirement("DOC-06")
def test_every_outcome_is_on_the_page() -> None:
    named = {word for outcomes, _ in read_rows().values() for word in outcomes.split(", ")}
    assert named == {item.value.replace("_", " ") for item in Outcome} | {"-"}
