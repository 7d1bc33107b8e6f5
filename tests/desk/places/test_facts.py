"""What was measured of a place, as it is kept at the desk."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from holdfast.desk.places.facts import (
    FACTS,
    MOST_BYTES,
    StoredFacts,
    forget_place,
    place_directory,
    read_facts,
    write_facts,
)
from holdfast.model.errors import StorageError
from holdfast.model.place import BoxFacts, CardFacts, DiskFacts, Place
from holdfast.model.record import replace
from tests.desk.boxes import FACTS_OF_A_BOX

pytestmark = pytest.mark.files

PLACE = Place("gpu1", host="me@gpu1", root="/data/runs")


@pytest.fixture
def path(isolated_environment: dict[str, str]) -> Path:
    return Path(place_directory("gpu1")) / FACTS


def test_facts_are_read_as_they_were_written(path: Path) -> None:
    assert read_facts(PLACE) == StoredFacts()
    write_facts(PLACE, FACTS_OF_A_BOX)
    assert read_facts(PLACE) == StoredFacts(FACTS_OF_A_BOX)
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "changed",
    [
        Place("gpu1", host="me@gpu2", root="/data/runs"),
        Place("gpu1", host="me@gpu1", root="/data/runs", port=2),
        Place("gpu1", host="me@gpu1", root="/other"),
        Place("gpu1", host="me@gpu1", root="/data/runs", python="/p"),
    ],
    ids=["host", "port", "root", "python"],
)
def test_facts_of_another_configuration_do_not_count(changed: Place, path: Path) -> None:
    write_facts(PLACE, FACTS_OF_A_BOX)
    found = read_facts(changed)
    assert found.facts is None
    assert "was measured with another host, root or python" in found.problem
    assert read_facts(replace(PLACE, setup=("x",), env_from="login")).facts is not None


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"{", "is damaged"),
        (b"[]", "is damaged"),
        (b'{"schema": 1, "measured_at": 3}', "is damaged"),
        (b" " * (MOST_BYTES + 1), "larger than"),
        (b"[" * 100_000, "is damaged"),
    ],
    ids=["torn", "list", "form", "large", "deep"],
)
def test_damaged_facts_are_none_and_it_is_said(data: bytes, words: str, path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    found = read_facts(PLACE)
    assert found.facts is None
    assert words in found.problem


def test_a_newer_fact_is_passed_over(path: Path) -> None:
    write_facts(PLACE, FACTS_OF_A_BOX)
    path.write_text(json.dumps({**json.loads(path.read_text()), "of_tomorrow": 1}))
    assert read_facts(PLACE).facts == FACTS_OF_A_BOX


def test_a_link_is_not_followed(path: Path, tmp_path: Path) -> None:
    write_facts(PLACE, FACTS_OF_A_BOX)
    os.rename(path, tmp_path / "aside")
    path.symlink_to(tmp_path / "aside")
    assert read_facts(PLACE).facts is None


def test_a_box_that_says_too_much_is_not_kept(path: Path) -> None:
    with pytest.raises(StorageError, match="says more of itself"):
        write_facts(PLACE, replace(FACTS_OF_A_BOX, warnings=("x" * MOST_BYTES,)))
    assert not path.exists()


def test_a_place_is_forgotten_with_all_that_is_kept_of_it(path: Path) -> None:
    forget_place("gpu1")
    write_facts(PLACE, FACTS_OF_A_BOX)
    (path.parent / "runs.jsonl").write_text("x")
    forget_place("gpu1")
    assert os.listdir(path.parent.parent) == []


@pytest.mark.requirement("VRFY-01")
def test_what_was_proven_and_approved_outlives_the_place(path: Path) -> None:
    write_facts(PLACE, FACTS_OF_A_BOX)
    for name in ("approvals.jsonl", "gone.json", "runs.tsv"):
        (path.parent / name).write_text("x")
    (path.parent / "receipts").mkdir()
    kept = forget_place("gpu1")
    assert [os.path.basename(each) for each in kept] == ["receipts", "approvals.jsonl", "gone.json"]
    assert sorted(os.listdir(path.parent)) == ["approvals.jsonl", "gone.json", "receipts"]
    assert len(os.listdir(path.parent.parent)) == 1


def test_facts_have_room_for_nothing_secret() -> None:
    """Every field is named here: one that holds text of somebody's environment would have to be added by hand."""
    assert set(BoxFacts.__annotations__) == {
        *("measured_at", "uid", "user", "home", "root", "python", "python_version", "bundle", "box", "clock_epoch_s"),
        *(
            "clock_ahead_s",
            "kernel",
            "shell",
            "flock",
            "pidfd",
            "containment",
            "login_path",
            "cpus",
            "memory_bytes",
            "driver",
        ),
        *("cards", "disks", "tools", "limits", "warnings", "login_path", "slurm", "profile_disks"),
        *("cpu_limit", "memory_limit_bytes", "task_limit"),
    }
    assert set(CardFacts.__annotations__) == {"index", "name", "memory_bytes", "simulated"}
    assert set(DiskFacts.__annotations__) == {"path", "type", "free_bytes", "total_bytes", "free_inodes", "writable"}
