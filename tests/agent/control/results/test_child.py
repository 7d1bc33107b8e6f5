"""A copy goes nowhere that another account, or a mount that was lost, has put in its way."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from holdfast.agent.checks import disk
from holdfast.agent.control.results import child, copy, order
from holdfast.host.files.copies import proven
from holdfast.host.files.copies.proven import CopyError
from holdfast.model import wire
from holdfast.model.finding import Level
from holdfast.model.job import JobSpec
from holdfast.model.record import replace
from holdfast.model.results import Destination, ResultsRecord
from holdfast.model.run import CopyState

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.process


@pytest.mark.requirement("POST-07")
def test_a_link_that_another_account_planted_in_a_shared_destination_is_not_followed(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("changing owners needs root")
    run, shared, victim = tmp_path / "run-1", tmp_path / "shared", tmp_path / "victim"
    for directory in (run / "artifacts", shared, victim):
        directory.mkdir(parents=True)
    (run / "artifacts" / "a").write_bytes(b"1")
    (shared / "run-1").symlink_to(victim)
    os.lchown(shared / "run-1", 4711, 4711)
    wanted = order.build_order(
        str(run), 1, JobSpec("t", ("x",), "/"), to=str(shared), by="anna", training="", umask=0o077
    )
    done = copy.copy_watched(wanted, lambda _: None)
    assert (done.state, "link of another account" in done.problem, done.tries) == (CopyState.FAILED, True, 1)
    assert not list(victim.iterdir())
    os.unlink(shared / "run-1")
    assert copy.copy_watched(wanted, lambda _: None).state is CopyState.COPIED


def test_a_mount_that_is_lost_between_two_tries_is_not_made_up_on_this_disk(tmp_path: Path) -> None:
    seen: list[Destination] = []
    child._refuse_lost_mount("/proc", seen)
    child._refuse_lost_mount("/proc", seen)
    with pytest.raises(CopyError, match=r"mount that is gone \(proc on /proc\)"):
        child._refuse_lost_mount(str(tmp_path / "lasting"), seen)
    child._refuse_lost_mount(str(tmp_path / "lasting"), [])
    # One that came up later, below where it was, is no loss.
    child._refuse_lost_mount("/proc", [Destination("/proc", "/", "ext4")])


def make_order(tmp_path: Path) -> order.CopyOrder:
    """A run of which the results are to be copied, and the order."""
    run = tmp_path / "run-1"
    (run / "artifacts").mkdir(parents=True, exist_ok=True)
    (run / "artifacts" / "a").write_bytes(b"1")
    (tmp_path / "shared").mkdir(exist_ok=True)
    to = f"{tmp_path}/shared/lasting"
    return order.build_order(str(run), 1, JobSpec("t", ("x",), "/"), to=to, by="anna", training="", umask=0o077)


@pytest.mark.parametrize("content", [b"", b"{", b'{"to": 7}'])
def test_a_record_of_the_mount_that_cannot_be_read_refuses_the_copy(tmp_path: Path, content: bytes) -> None:
    """Nobody can tell then whether the mount is the one that was there."""
    wanted, record = make_order(tmp_path), tmp_path / "run-1" / wire.DESTINATION
    record.write_bytes(content)
    done = copy.copy_watched(wanted, lambda _: None)
    assert (done.state, done.tries, os.listdir(tmp_path / "shared")) == (CopyState.FAILED, 1, [])
    assert f"{record} is damaged" in done.problem
    assert f"findmnt -T {wanted.place}" in done.problem
    (finding,) = disk._check_mount(str(tmp_path / "run-1"), wanted.place)
    assert (finding.level, str(record) in finding.evidence) == (Level.UNKNOWN, True)
    assert record.read_bytes() == content, "what is there now is not taken for what was"
    record.unlink()
    assert copy.copy_watched(wanted, lambda _: None).state is CopyState.COPIED


def test_what_changes_while_it_is_copied_leaves_no_roster_that_calls_it_copied(tmp_path: Path) -> None:
    wanted, words = make_order(tmp_path), ["artifacts/a is not what it was at the end"]
    done = copy.copy_watched(wanted, lambda _: None, lambda: words[0])
    assert (done.state, done.problem, done.tries) == (CopyState.FAILED, words[0], 1)
    assert child.read_roster(wanted.begun.to) is None
    words[0] = ""
    assert copy.copy_watched(wanted, lambda _: None, lambda: words[0]).state is CopyState.COPIED
    roster = child.read_roster(wanted.begun.to)
    assert roster is not None
    assert roster.state is CopyState.COPIED


def test_what_is_refused_makes_nothing_and_moves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = make_order(tmp_path)
    assert copy.copy_watched(first, lambda _: None).state is CopyState.COPIED
    before = sorted(os.listdir(tmp_path / "shared" / "lasting"))

    def refuse(*_: object) -> None:
        raise CopyError("there is no room")

    monkeypatch.setattr(proven, "check_room", refuse)
    again = replace(first, begun=replace(first.begun, attempt=2), tries=1)
    assert copy.copy_watched(again, lambda _: None).problem == "there is no room"
    assert sorted(os.listdir(tmp_path / "shared" / "lasting")) == before, "the earlier copy has its name"
    elsewhere = replace(again, begun=replace(first.begun, to=f"{tmp_path}/shared/new/run-1"))
    assert copy.copy_watched(elsewhere, lambda _: None).problem == "there is no room"
    assert os.listdir(tmp_path / "shared") == ["lasting"]
    monkeypatch.undo()
    assert copy.copy_watched(again, lambda _: None).state is CopyState.COPIED
    assert sorted(os.listdir(tmp_path / "shared" / "lasting")) == ["run-1", "run-1.attempt-1"]


def test_what_went_bad_in_a_whole_copy_comes_again_and_is_named(tmp_path: Path) -> None:
    wanted = make_order(tmp_path)
    (tmp_path / "run-1" / "artifacts" / "b").write_bytes(b"2")
    first = copy.copy_watched(wanted, lambda _: None)
    assert (first.state, first.mended) == (CopyState.COPIED, ())
    there = tmp_path / "shared" / "lasting" / "run-1" / "artifacts" / "b"
    there.write_bytes(b"3")
    assert copy.copy_watched(wanted, lambda _: None).mended == ("artifacts/b",)
    assert there.read_bytes() == b"2"
    assert copy.copy_watched(wanted, lambda _: None).mended == ()


def test_who_waits_for_a_copy_hears_of_each_try_and_waits_for_nothing_that_stays(tmp_path: Path) -> None:
    wanted, said = replace(make_order(tmp_path), wait_s=0.6), list[str]()
    hear: Callable[[ResultsRecord], None] = lambda at: said.append(at.problem)  # noqa: E731
    lost = Destination(wanted.place, f"{tmp_path}/shared", "nfs")  # a mount may come back
    (tmp_path / "run-1" / wire.DESTINATION).write_bytes(wire.to_bytes(lost))
    done = copy.copy_watched(replace(wanted, tries=2), hear)
    assert (done.state, done.tries) == (CopyState.FAILED, 2)
    assert f"try 1 of 2 failed: {done.problem}; tries again in 0.6 s" in said
    (tmp_path / "run-1" / wire.DESTINATION).unlink()
    (tmp_path / "shared" / "file").write_bytes(b"")
    order_there = replace(wanted, begun=replace(wanted.begun, to=f"{tmp_path}/shared/file/lasting/run-1"))
    done = copy.copy_watched(order_there, hear)
    assert (done.state, done.tries, "Not a directory" in done.problem) == (CopyState.FAILED, 1, True)


def test_a_result_that_is_a_directory_above_the_run_is_refused(tmp_path: Path) -> None:
    wanted = replace(make_order(tmp_path), paths=("artifacts/all",))
    (tmp_path / "run-1" / "artifacts" / "all").symlink_to(tmp_path)
    done = copy.copy_watched(wanted, lambda _: None)
    assert (done.state, done.tries) == (CopyState.FAILED, 1)
    assert f"artifacts/all is {os.path.realpath(tmp_path)}, in which the run itself lies" in done.problem
