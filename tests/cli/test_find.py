"""Finding a run by what a person types."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from holdfast.agent.view.find import complete_run, find_run
from holdfast.agent.view.runs.roots import choose_root, list_roots
from holdfast.model.errors import NoSuchRun, UsageError
from holdfast.model.record import replace
from holdfast.model.run import Outcome, Refusal
from holdfast.store.index import Index
from holdfast.store.paths import default_root
from tests.rundirs import dead_process, ended, living_process, make_run, running

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
    found = find_run("resnet")
    assert found.run_id == NEW
    assert found.notice is not None
    assert "2 runs" in found.notice
    assert find_run("vit").notice is None
    done = holdfast("show", "resnet")
    assert NEW in done.out
    assert f"all have ended; this is the newest, {NEW}; the next is {OLD}" in done.err


@pytest.mark.requirement("OBS-18")
def test_OBS_18_of_several_runs_of_a_name_the_one_that_lives_is_meant(runs: str, holdfast: Command) -> None:
    living, lost, elsewhere = (f"2026111{day}-100000-resnet-0a1e" for day in (7, 6, 5))
    here = living_process(os.getpid())
    make_run(runs, lost, running(), supervisor=dead_process())
    assert find_run("resnet").run_id == NEW, "nobody is left of the one that was lost"
    make_run(runs, living, running(keeper=here, job=here), supervisor=here)
    found = find_run("resnet")
    assert (found.run_id, found.unique) == (living, False)
    done = holdfast("show", "resnet")
    assert f"4 runs are named 'resnet'; this is the one that has not ended, {living}; the next is {NEW}" in done.err
    # What another machine's run is at is not known from here: it may live.
    make_run(runs, elsewhere, running(keeper=here, job=here), supervisor=here, host="another")
    refused = holdfast("stop", "resnet")
    assert refused.code == 64
    assert f"2 runs named 'resnet' have not ended: {living}, {elsewhere}" in refused.err


def test_of_a_run_that_cannot_be_read_it_is_not_said_that_it_has_not_ended(runs: str, holdfast: Command) -> None:
    torn, living = "20261117-100000-resnet-0a1e", "20261118-100000-resnet-0a1f"
    with open(f"{make_run(runs, torn)}/attempts/1/state.json", "w", encoding="ascii") as file:
        file.write("{")
    said = holdfast("show", "resnet").err
    assert f"this is the one of which it cannot be read whether it has ended, {torn}" in said, said
    here = living_process(os.getpid())
    make_run(runs, living, running(keeper=here, job=here), supervisor=here)
    assert "2 runs named 'resnet' have not ended, or cannot be read" in holdfast("stop", "resnet").err


def test_a_refused_run_does_not_take_the_name(runs: str) -> None:
    refused = replace(
        ended(Outcome.FAILED, 78), refusal=Refusal("preflight", 78, "script: it does not exist"), status=None
    )
    make_run(runs, "20261122-100000-resnet-0a1c", refused)
    assert find_run("resnet").run_id == NEW
    make_run(runs, "20261122-100000-alone-0a1c", refused)
    make_run(runs, "20261123-100000-alone-0a1c", refused)
    assert find_run("alone").run_id == "20261123-100000-alone-0a1c"


def test_of_two_runs_of_one_second_the_newer_is_told_by_its_record(runs: str) -> None:
    first, second = "20261121-100000-twin-ffff", "20261121-100000-twin-0000"
    for number, run_id in enumerate((first, second)):
        run_dir = make_run(runs, run_id, ended())
        os.utime(f"{run_dir}/run.json", ns=(number, number))
    assert find_run("twin").run_id == second


@pytest.mark.requirement("OBS-18")
@pytest.mark.parametrize("text", [OTHER, "20261120-11", "20261120-110000-vit"])
def test_OBS_18_an_id_or_its_unique_beginning_finds_the_run(runs: str, text: str) -> None:
    assert find_run(text).run_dir == f"{runs}/{OTHER}"


def test_a_path_finds_the_run(runs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(runs)
    for text in (f"{runs}/{OLD}", f"./{OLD}", f"{runs}/{OLD}/"):
        assert find_run(text).run_dir == f"{runs}/{OLD}"
    for text in ("/nowhere/" + OLD, "/etc/passwd"):
        with pytest.raises(NoSuchRun):
            find_run(text)


def test_a_root_of_two_names_has_each_run_once(runs: str, tmp_path: Path) -> None:
    os.symlink(runs, tmp_path / "other")
    with Index() as index:
        index.remember_root(str(tmp_path / "other"))
    found = find_run("vit")
    assert (found.run_id, found.unique, found.notice) == (OTHER, True, None)
    assert find_run("20261120-11").run_id == OTHER


def test_a_root_that_cannot_be_made_is_not_remembered(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for root in ("file", "file/x", "file/x/y", "new/root"):
        choose_root(str(tmp_path / root))
    assert [root for root in list_roots() if root.startswith(f"{tmp_path}/file")] == []
    assert str(tmp_path / "new/root") in list_roots()


def test_the_beginning_of_several_ids_is_refused_with_their_names(runs: str) -> None:
    with pytest.raises(UsageError, match="2 runs begin with '20261120'"):
        find_run("20261120")


@pytest.mark.parametrize("text", ["", "nothing", "20251120-100000-gone-0a1b", "resnet\n", "../x", "*"])
def test_what_answers_to_nothing_is_said_to(runs: str, text: str, holdfast: Command) -> None:
    with pytest.raises((NoSuchRun, UsageError)):
        find_run(text)


def test_a_misspelt_name_gets_a_suggestion(runs: str, holdfast: Command) -> None:
    done = holdfast("show", "resnt")
    assert done.code == 66
    assert "did you mean resnet?" in done.err
    assert holdfast("show", "--json", "resnt").json()["error"]["code"] == "no_such_run"


def test_the_name_of_a_copy_that_is_here_gets_its_path(runs: str, holdfast: Command, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "copy.json").write_text("{}")
    done = holdfast("show", "home", cwd=tmp_path)
    assert done.code == 66
    assert "named with its path: ./home" in done.err


def test_roots_are_the_default_and_the_remembered(runs: str, tmp_path: Path) -> None:
    with Index() as index:
        index.remember_root(str(tmp_path / "there"))
    make_run(tmp_path / "there", "20261120-120000-far-0a1e", ended())
    assert list_roots() == [default_root(), str(tmp_path / "there")]
    assert find_run("far").root == str(tmp_path / "there")
    with pytest.raises(NoSuchRun):
        find_run("far", root=runs)


def test_completion_offers_names_and_ids(runs: str) -> None:
    assert [word for word, _ in complete_run("re")] == ["resnet"]
    assert [word for word, _ in complete_run("20261120")] == [OTHER, NEW]
    assert complete_run("x") == []


def test_a_run_of_another_account_is_known_by_its_lease(
    runs: str, holdfast: Command, isolated_environment: dict[str, str]
) -> None:
    """Its directory is closed to us; its lease record is public."""
    from holdfast.host.lease.area import open_area
    from holdfast.host.lease.records import write_record
    from holdfast.host.process.processes import identify_self
    from holdfast.model.lease import LeasedDevice, LeasePhase, LeaseRecord

    run_id = "20261120-130000-theirs-0a1f"
    record = LeaseRecord(
        run_id=run_id,
        attempt=1,
        user="nobody",
        uid=65534,
        host="here",
        since="2026-11-20T10:00:00.000Z",
        phase=LeasePhase.RUN,
        devices=(LeasedDevice("GPU-a", 0, "A100"),),
        supervisor=identify_self(),
    )
    for path in write_record(open_area(), record):
        os.chown(path, 65534, 65534)
    done = holdfast("stop", run_id)
    assert done.code == 77
    assert "nobody" in done.err
