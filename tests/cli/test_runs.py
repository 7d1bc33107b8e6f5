"""Finding a run by what a person types."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from holdfast.cli.runs import complete, default_root, find, list_roots
from holdfast.model.errors import NoSuchRun, UsageError
from holdfast.store.index import Index
from tests.rundirs import ended, make_run

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Command

pytestmark = pytest.mark.cli

OLD, NEW, OTHER = "20261119-100000-resnet-0a1b", "20261120-100000-resnet-0a1c", "20261120-110000-vit-0a1d"


@pytest.fixture
def runs(isolated_environment: dict[str, str]) -> str:
    root = isolated_environment["HOLDFAST_RUNS"]
    for run_id in (OLD, NEW, OTHER):
        make_run(root, run_id, ended())
    return root


@pytest.mark.requirement("OBS-18")
def test_OBS_18_a_name_finds_the_newest_and_says_so(runs: str, holdfast: Command) -> None:
    found = find("resnet")
    assert found.run_id == NEW
    assert found.notice is not None
    assert "2 runs" in found.notice
    assert find("vit").notice is None
    done = holdfast("show", "resnet")
    assert NEW in done.out
    assert "this is the newest" in done.err


@pytest.mark.requirement("OBS-18")
@pytest.mark.parametrize("text", [OTHER, "20261120-11", "20261120-110000-vit"])
def test_OBS_18_an_id_or_its_unique_beginning_finds_the_run(runs: str, text: str) -> None:
    assert find(text).run_dir == f"{runs}/{OTHER}"


def test_a_path_finds_the_run(runs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(runs)
    for text in (f"{runs}/{OLD}", f"./{OLD}", f"{runs}/{OLD}/"):
        assert find(text).run_dir == f"{runs}/{OLD}"
    for text in ("/nowhere/" + OLD, "/etc/passwd"):
        with pytest.raises(NoSuchRun):
            find(text)


def test_the_beginning_of_several_ids_is_refused_with_their_names(runs: str) -> None:
    with pytest.raises(UsageError, match="2 runs begin with '20261120'"):
        find("20261120")


@pytest.mark.parametrize("text", ["", "nothing", "20251120-100000-gone-0a1b", "resnet\n", "../x", "*"])
def test_what_answers_to_nothing_is_said_to(runs: str, text: str, holdfast: Command) -> None:
    with pytest.raises((NoSuchRun, UsageError)):
        find(text)


@pytest.mark.slow
def test_a_misspelt_name_gets_a_suggestion(runs: str, holdfast: Command) -> None:
    done = holdfast("show", "resnt")
    assert done.code == 66
    assert "did you mean resnet?" in done.err
    assert holdfast("show", "--json", "resnt").json()["error"]["code"] == "no_such_run"


def test_roots_are_the_default_and_the_remembered(runs: str, tmp_path: Path) -> None:
    with Index() as index:
        index.remember_root(str(tmp_path / "there"))
    make_run(tmp_path / "there", "20261120-120000-far-0a1e", ended())
    assert list_roots() == [default_root(), str(tmp_path / "there")]
    assert find("far").root == str(tmp_path / "there")
    with pytest.raises(NoSuchRun):
        find("far", root=runs)


def test_completion_offers_names_and_ids(runs: str) -> None:
    assert [word for word, _ in complete("re")] == ["resnet"]
    assert [word for word, _ in complete("20261120")] == [OTHER, NEW]
    assert complete("x") == []


def test_a_run_of_another_account_is_known_by_its_lease(
    runs: str, holdfast: Command, isolated_environment: dict[str, str]
) -> None:
    """Its directory is closed to us; its lease record is public."""
    from holdfast.host.lease_area import open_area
    from holdfast.host.lease_records import write_record
    from holdfast.host.processes import identify_self
    from holdfast.model.lease import LeasedDevice, LeaseRecord, Phase

    run_id = "20261120-130000-theirs-0a1f"
    record = LeaseRecord(
        run_id=run_id,
        attempt=1,
        user="nobody",
        uid=65534,
        host="here",
        since="2026-11-20T10:00:00.000Z",
        phase=Phase.RUN,
        devices=(LeasedDevice("GPU-a", 0, "A100"),),
        supervisor=identify_self(),
    )
    for path in write_record(open_area(), record):
        os.chown(path, 65534, 65534)
    done = holdfast("stop", run_id)
    assert done.code == 77
    assert "nobody" in done.err
