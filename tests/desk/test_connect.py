"""From a name to a box: which place is meant, and one box for each in a process."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.desk.connect import find_place, measure_box, open_box
from holdfast.desk.orders.journal import Step, claim_order, note_step
from holdfast.desk.place_list import view_places
from holdfast.desk.places.config import add_place
from holdfast.desk.places.facts import read_facts, write_facts
from holdfast.model.errors import StorageError, UsageError
from holdfast.model.place import Place
from tests.desk.boxes import FACTS_OF_A_BOX

pytestmark = pytest.mark.process


@pytest.fixture(autouse=True)
def own_ssh(isolated_environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ssh_config").write_text("Host lab gpu1\n  HostName 127.0.0.1\n")
    script = tmp_path / "ssh"
    script.write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F {tmp_path}/ssh_config "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("HOLDFAST_SSH", str(script))


def test_places_are_found_by_configuration_first_then_as_aliases() -> None:
    assert find_place("local") == Place("local", kind="local")
    assert find_place("gpu1") == Place("gpu1", host="gpu1", configured=False)
    add_place(Place("gpu1", host="me@elsewhere"))
    assert find_place("gpu1") == Place("gpu1", host="me@elsewhere")
    assert find_place("lab") == Place("lab", host="lab", configured=False)


@pytest.mark.parametrize("name", ["", "a:b", "../x", "-v", "GPU", "x" * 33, "gpu1\n"])
def test_what_can_be_no_name_is_refused_before_ssh_is_asked(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_SSH", "/nonexistent/ssh")
    with pytest.raises(UsageError, match="is no name for a place"):
        find_place(name)


@pytest.mark.parametrize("host", ["me@gpu7.lab", "gpu7.lab"])
def test_a_host_that_stands_for_a_place_is_told_how_it_becomes_one(host: str) -> None:
    with pytest.raises(UsageError, match=f"^{host} is a host, and no name of a place$") as caught:
        find_place(host)
    near = host.replace("@", "-").replace(".", "-")
    assert caught.value.hint == f"give it a name first: holdfast place add {near} {host}; then write {near}"


def test_a_process_has_one_box_of_a_place_until_it_is_configured_otherwise() -> None:
    place = Place("gpu1", host="gpu1")
    write_facts(place, FACTS_OF_A_BOX)
    box = open_box(place)
    assert box.facts == FACTS_OF_A_BOX
    assert open_box(Place("gpu1", host="gpu1")) is box
    other = open_box(Place("gpu1", host="gpu2"))
    assert other is not box
    assert other.facts is None


@pytest.mark.slow
def test_what_is_measured_is_kept(isolated_environment: dict[str, str], tmp_path: Path) -> None:
    place = Place("here", kind="local", root=str(tmp_path / "r"))
    facts = measure_box(place)
    assert facts.root == str(tmp_path / "r")
    assert read_facts(place).facts == facts


def test_what_cannot_be_kept_fails_no_call(isolated_environment: dict[str, str]) -> None:
    Path(isolated_environment["XDG_STATE_HOME"], "holdfast").write_text("in the way")
    box = open_box(Place("there", kind="local"))
    assert box.facts is None
    box._remember(FACTS_OF_A_BOX)


def test_an_empty_runs_root_with_an_order_without_an_answer_is_no_new_one(tmp_path: Path) -> None:
    """The run may be there, below a file system that is not mounted."""
    place = Place("cut", kind="local", root=str(tmp_path / "r"))
    with claim_order(place.name, "digits", "0" * 64, "") as claim:
        note_step(place.name, Step.SENT, claim.run_id)
    with pytest.raises(StorageError, match=f"nothing is in its runs root .*, where {claim.run_id} had not ended"):
        open_box(place).ensure()
    assert not (tmp_path / "r").exists()


def test_what_a_command_is_about_to_order_is_in_nobodys_way_at_a_new_place() -> None:
    place = Place("new", kind="local")
    with claim_order(place.name, "digits", "0" * 64, ""):
        box = open_box(place)
        assert box._list_unfinished() == []
        with claim_order(place.name, "digits", "1" * 64, "") as claim:
            note_step(place.name, Step.SENT, claim.run_id)
            assert box._list_unfinished() == []


def test_an_alias_is_listed_once_something_is_known_of_it() -> None:
    assert view_places() == []
    write_facts(Place("lab", host="lab", configured=False), FACTS_OF_A_BOX)
    write_facts(Place("gone", host="gone", configured=False), FACTS_OF_A_BOX)
    assert [view.place.name for view in view_places()] == ["lab"]
