"""What is shown of a place: what is to be minded of its box comes first, and nothing of it steers a terminal."""

from __future__ import annotations

import unicodedata
from typing import Any

import pytest

from holdfast.cli.render.places import print_next, print_place, print_places
from holdfast.desk.place_list import PlaceView, list_warnings
from holdfast.model import wire
from holdfast.model.errors import Refused
from holdfast.model.place import BoxFacts, Place
from holdfast.model.record import replace
from holdfast.model.slurm import PartitionFacts, SlurmFacts
from tests.desk.boxes import FACTS_OF_A_BOX

pytestmark = pytest.mark.pure


def test_a_box_with_nothing_to_mind_has_no_warnings() -> None:
    assert list_warnings(FACTS_OF_A_BOX) == []


def test_what_was_found_on_a_box_comes_before_what_it_lacks() -> None:
    found = ("its clock is 3600 s ahead of this machine's", "/data: 3 inodes are free")
    facts = replace(FACTS_OF_A_BOX, clock_ahead_s=3600.0, warnings=found, tools={})
    assert list_warnings(facts) == [*found, "tar is not there"]


def test_a_place_whose_host_key_is_unknown_is_trusted_first(capsys: pytest.CaptureFixture[str]) -> None:
    """To measure it is refused until then."""
    place = Place("gpu1", host="gpu1")
    print_next(place, None, Refused("unknown", details={"why": "host_key_unknown"}))
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split("  ")[1] == "holdfast place trust gpu1"
    print_next(place, None, Refused("no password", details={"why": "login"}))
    assert "trust" not in capsys.readouterr().out


def steer(value: Any) -> Any:
    """The same with what steers a terminal in each text."""
    if isinstance(value, dict):
        return {name: steer(item) for name, item in value.items()}
    if isinstance(value, list):
        return [steer(item) for item in value]
    return f"\x1b]0;{value}\x07\r\x9b2J" if isinstance(value, str) else value


def test_what_a_box_says_of_itself_steers_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    slurm = SlurmFacts("23.11", "lab", cards={"h200": 8}, nodes=3, partitions=(PartitionFacts("gpu", state="DOWN"),))
    plain = replace(FACTS_OF_A_BOX, warnings=("/data: 3 inodes are free",), login_path="/usr/bin")
    place = Place("gpu1", host="gpu1")
    for each in (plain, replace(plain, slurm=slurm)):
        facts = wire.decode(BoxFacts, steer(wire.encode(each)))
        print_next(place, facts, None)
        view = PlaceView(place, "places.toml", facts, reach="here")
        print_place(view)
        print_places([view], asked=True)
        shown = capsys.readouterr()
        said = shown.out + shown.err
        assert "\\x1b]0;/data/runs\\x07" in said
        assert {c for c in said if unicodedata.category(c) == "Cc"} == {"\n"}
