"""The index of runs: a cache that may be lost, damaged or forbidden at any time without an error."""

from __future__ import annotations

import os
import sqlite3
import stat
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.agent.view.runs.row import read_row
from holdfast.store.index import USER_VERSION, Index, IndexRow
from tests.rundirs import ended, make_run

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process

OLD, NEW = "20261119-100000-digits-0a1b", "20261120-100000-digits-0a1c"


class Reader:
    """Answers rows and remembers for which runs it was asked."""

    def __init__(self, *live: str) -> None:
        self.asked: list[str] = []
        self.live = live

    def __call__(self, root: str, run_id: str) -> IndexRow:
        self.asked.append(run_id)
        return IndexRow(
            root, run_id, 0, 1, "running" if run_id in self.live else "succeeded", ended=run_id not in self.live
        )


@pytest.fixture
def root(tmp_path: Path) -> str:
    path = tmp_path / "here"
    for run_id in (OLD, NEW):
        make_run(path, run_id, ended())
    return str(path)


@pytest.fixture
def database(isolated_environment: dict[str, str]) -> str:
    return isolated_environment["XDG_STATE_HOME"] + "/holdfast/index.db"


def test_runs_of_one_second_stand_in_the_order_in_which_they_were_made(tmp_path: Path) -> None:
    made = {"20261120-100000-zeta-0a1b": "2026-11-20T10:00:00.100Z", NEW: "2026-11-20T10:00:00.900Z", OLD: ""}
    for run_id in made:
        make_run(tmp_path / "here", run_id, ended())
    with Index() as index:
        rows = index.sync(
            [str(tmp_path / "here")],
            lambda root, run_id: IndexRow(root, run_id, 0, 1, "succeeded", created_at=made[run_id]),
        )
    assert [row.run_id for row in rows] == [NEW, "20261120-100000-zeta-0a1b", OLD]


def test_an_ended_run_is_read_once_and_then_answered_from_the_index(root: str, database: str) -> None:
    first, again = Reader(), Reader()
    with Index() as index:
        rows = index.sync([root], first)
    with Index() as index:
        assert index.sync([root], again) == rows
        assert index.notice is None
    assert [row.run_id for row in rows] == [NEW, OLD]
    assert sorted(first.asked) == [OLD, NEW]
    assert again.asked == []
    assert stat.S_IMODE(os.stat(database).st_mode) == 0o600


def test_what_is_remembered_of_an_ended_run_is_all_that_its_files_say(root: str) -> None:
    told: dict[str, Any] = {
        "exit_code": 1,
        "created_at": "a",
        "started_at": "b",
        "ended_at": "c",
        "cards": "0,1",
        "note": "d",
    }
    told |= {"step": 9, "loss": "nan", "failure": "bug", "planned_steps": 100}

    def read(root: str, run_id: str) -> IndexRow:
        return IndexRow(root, run_id, 0, 2, "failed", **told)

    assert {name for name in IndexRow._field_defaults if name not in told} == {"ended", "left_s", "standstill_s"}
    with Index() as index:
        rows = index.sync([root], read)
    with Index() as index:
        assert index.sync([root], Reader()) == rows


def test_a_live_run_is_read_each_time(root: str) -> None:
    reader = Reader(NEW)
    for _ in range(3):
        with Index() as index:
            index.sync([root], reader)
    assert reader.asked.count(NEW) == 3
    assert reader.asked.count(OLD) == 1


def test_a_new_attempt_of_an_ended_run_is_read_again(root: str) -> None:
    with Index() as index:
        index.sync([root], Reader())
    make_run(root, OLD, attempt=2)
    reader = Reader(OLD)
    with Index() as index:
        rows = {row.run_id: row for row in index.sync([root], reader)}
    assert reader.asked == [OLD]
    assert rows[OLD].condition == "running"


def test_a_removed_run_leaves_the_index(root: str, database: str) -> None:
    with Index() as index:
        index.sync([root], Reader())
    os.rename(f"{root}/{OLD}", f"{root}/elsewhere")
    with Index() as index:
        assert [row.run_id for row in index.sync([root], Reader())] == [NEW]
    with sqlite3.connect(database) as db:
        assert db.execute("SELECT run_id FROM runs").fetchall() == [(NEW,)]
    db.close()


def test_a_root_that_cannot_be_read_proves_nothing_about_its_runs(root: str, database: str) -> None:
    with Index() as index:
        index.sync([root], Reader())
    os.rename(root, f"{root}-unmounted")
    with Index() as index:
        assert index.sync([root], Reader()) == []
    os.rename(f"{root}-unmounted", root)
    reader = Reader()
    with Index() as index:
        assert len(index.sync([root], reader)) == 2
    assert reader.asked == []


def test_remembered_roots_are_scanned_too(root: str, tmp_path: Path) -> None:
    make_run(tmp_path / "there", "20261118-100000-other-0a1d", ended())
    with Index() as index:
        index.remember_root(str(tmp_path / "there"))
        index.remember_root(str(tmp_path / "there"))
        assert index.roots() == [str(tmp_path / "there")]
    with Index() as index:
        assert [row.run_id for row in index.sync([root], Reader())] == [NEW, OLD, "20261118-100000-other-0a1d"]


def test_names_that_are_no_run_ids_are_left_alone(root: str) -> None:
    for name in ("notes.txt", ".removing-" + OLD, "20261119-digits"):
        os.mkdir(f"{root}/{name}")
    reader = Reader()
    with Index() as index:
        assert len(index.sync([root], reader)) == 2
    assert sorted(reader.asked) == [OLD, NEW]


@pytest.mark.parametrize("damage", ["garbage", "truncated", "no tables", "page"])
def test_a_damaged_index_is_rebuilt_with_one_notice(root: str, database: str, damage: str) -> None:
    with Index() as index:
        index.sync([root], Reader())
    if damage == "garbage":
        with open(database, "wb") as file:
            file.write(b"not a database at all, but long enough to be looked at" * 100)
    elif damage == "truncated":
        os.truncate(database, 5000)
    elif damage == "no tables":
        db = sqlite3.connect(database)
        db.execute("DROP TABLE runs")
        db.commit()
        db.close()
    else:
        with open(database, "r+b") as file:
            file.seek(4096)
            file.write(os.urandom(8192))
    with Index() as index:
        assert len(index.sync([root], Reader())) == 2
        assert index.notice is not None
        assert "damaged" in index.notice
    reader = Reader()
    with Index() as index:
        assert len(index.sync([root], reader)) == 2
        if index.notice is not None:
            # What was damaged was seen only while reading: that answer came from the directories.
            index.sync([root], Reader())
    with Index() as index:
        index.sync([root], reader)
        assert index.notice is None


def test_a_damaged_index_gives_up_its_roots_when_it_still_can(root: str, database: str, tmp_path: Path) -> None:
    with Index() as index:
        index.remember_root(str(tmp_path / "there"))
    db = sqlite3.connect(database)
    db.execute("DROP TABLE runs")
    db.commit()
    db.close()
    with Index() as index:
        assert index.roots() == [str(tmp_path / "there")]


def test_an_older_index_is_rebuilt_and_a_newer_one_is_left_alone(root: str, database: str) -> None:
    with Index() as index:
        index.remember_root(f"{root}-other")
        index.sync([root], Reader())
    for version, usable in ((USER_VERSION - 1, True), (USER_VERSION + 1, False)):
        db = sqlite3.connect(database)
        db.execute(f"PRAGMA user_version = {version}")
        db.close()
        with Index() as index:
            assert len(index.sync([root], Reader())) == 2
            assert (index.notice is None) is usable
            assert index.roots() == ([f"{root}-other"] if usable else [])
    db = sqlite3.connect(database)
    assert db.execute("PRAGMA user_version").fetchone() == (USER_VERSION + 1,)
    db.close()


def test_a_place_that_cannot_be_written_is_done_without(root: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    with Index(str(tmp_path / "file" / "index.db")) as index:
        assert len(index.sync([root], Reader())) == 2
        assert index.notice is not None
        assert "read instead" in index.notice


def test_a_read_only_index_still_answers(root: str, public_path: Path) -> None:
    """As an account that may read but not write: the answers are right, with at most one notice."""
    path = str(public_path / "index.db")
    with Index(path) as index:
        index.sync([root], Reader())
    os.chmod(path, 0o444)
    os.chmod(public_path, 0o555)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setgid(65534)
            os.setuid(65534)
            with Index(path) as index:
                index.sync([str(public_path)], Reader())
                code = 0 if index.notice else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    os.chmod(public_path, 0o755)


def test_a_planted_link_in_the_place_of_the_index_is_not_followed(root: str, database: str, tmp_path: Path) -> None:
    os.makedirs(os.path.dirname(database))
    victim = tmp_path / "victim"
    victim.write_text("precious")
    os.symlink(victim, database)
    with Index() as index:
        assert len(index.sync([root], Reader())) == 2
        assert index.notice is not None
    assert victim.read_text() == "precious"


def test_two_readers_at_once_do_not_disturb_each_other(root: str) -> None:
    with Index() as one, Index() as two:
        assert one.sync([root], Reader()) == two.sync([root], Reader())
        assert one.notice is two.notice is None


def test_a_writer_that_holds_the_file_is_not_waited_for_long_nor_spoken_of(root: str, database: str) -> None:
    with Index():
        pass
    db = sqlite3.connect(database, isolation_level=None)
    db.execute("BEGIN EXCLUSIVE")
    try:
        with Index() as index:
            assert len(index.sync([root], Reader())) == 2
            assert index.notice is None
    finally:
        db.close()


def test_a_root_that_cannot_be_read_is_told_and_keeps_its_rows(tmp_path: Path) -> None:
    """Closed is not empty. A file stands in for a closed directory: root may read those."""
    root, other = tmp_path / "runs", str(tmp_path / "other")
    make_run(str(root), OLD, ended())
    with Index() as index:
        assert [row.run_id for row in index.sync([str(root)], read_row)] == [OLD]
        assert index.notice is None
    root.rename(tmp_path / "away")
    root.write_text("")
    with Index() as index:
        assert index.sync([str(root), other], read_row) == []
        assert index.notice == f"{root} cannot be read: Not a directory; its runs are not shown"
    root.unlink()
    (tmp_path / "away").rename(root)
    with Index() as index:
        assert [row.run_id for row in index.sync([str(root)], Reader())] == [OLD]
