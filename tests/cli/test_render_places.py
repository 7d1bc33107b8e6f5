"""What is to be minded of a box comes first, the clock before all else."""

from __future__ import annotations

import pytest

from holdfast.cli.render.places import print_next
from holdfast.desk.place_list import list_warnings
from holdfast.model.errors import Refused
from holdfast.model.place import Place
from holdfast.model.record import replace
from tests.desk.boxes import FACTS_OF_A_BOX

pytestmark = pytest.mark.pure


def test_a_box_with_nothing_to_mind_has_no_warnings() -> None:
    assert list_warnings(FACTS_OF_A_BOX) == []


@pytest.mark.parametrize(("ahead_s", "words"), [(3600.0, "3600 s ahead of"), (-6.0, "6 s behind")])
def test_a_clock_that_is_off_is_said_first_and_once(ahead_s: float, words: str) -> None:
    facts = replace(FACTS_OF_A_BOX, clock_ahead_s=ahead_s, warnings=("/data: 3 inodes are free",), tools={})
    clock, *others = list_warnings(facts)
    assert words in clock
    assert others == ["/data: 3 inodes are free", "tar is not there"]
    assert list_warnings(replace(facts, warnings=("/data: 3 inodes are free", clock))) == [clock, *others]


def test_five_seconds_are_no_matter() -> None:
    assert list_warnings(replace(FACTS_OF_A_BOX, clock_ahead_s=-5.0)) == []


def test_a_place_whose_host_key_is_unknown_is_trusted_first(capsys: pytest.CaptureFixture[str]) -> None:
    """To measure it is refused until then."""
    place = Place("gpu1", host="gpu1")
    print_next(place, None, Refused("unknown", details={"why": "host_key_unknown"}))
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split("  ")[1] == "holdfast place trust gpu1"
    print_next(place, None, Refused("no password", details={"why": "login"}))
    assert "trust" not in capsys.readouterr().out
