"""A path counts as ours only when nobody else can put another thing in its place, however far above."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from holdfast.agent.control.create import create_run
from holdfast.agent.patrol.sentinel import records as sentinel_records
from holdfast.core.rules.rules import Rules
from holdfast.host.files.ownership import describe_weakness, make_own_directory
from holdfast.host.files.rules_file import read_rules
from holdfast.model.errors import NotPermitted, StorageError
from holdfast.model.job import JobSpec
from holdfast.store.index import Index
from holdfast.store.queue.queue import Queue
from tests.each import each

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process
NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give directories away")


@pytest.fixture
def open_place(tmp_path: Path) -> Path:
    """A scratch disk of everybody's, as many boxes have one, with a directory in it that is closed."""
    place = tmp_path / "data"
    place.mkdir()
    place.chmod(0o777)
    (place / "mine").mkdir(mode=0o700)
    return place


@each(
    "mode, owner, group, weak",
    [
        (0o755, 0, 0, False),
        (0o1777, 0, 0, False),
        (0o775, 0, 0, False),  # a group of our own
        (0o777, 0, 0, True),
        (0o775, 0, NOBODY, True),
        (0o1775, 0, NOBODY, False),
        (0o700, NOBODY, 0, True),
        (0o1777, NOBODY, 0, True),
    ],
)
@needs_root
def test_every_directory_above_is_judged(tmp_path: Path, mode: int, owner: int, group: int, weak: bool) -> None:
    above = tmp_path / f"{mode:o}-{owner}-{group}"
    (above / "closed" / "mine").mkdir(parents=True)
    (above / "closed").chmod(0o700)
    os.chown(above, owner, group)
    above.chmod(mode)
    assert bool(describe_weakness(str(above / "closed" / "mine"))) is weak
    assert bool(describe_weakness(str(above / "closed" / "not" / "there" / "yet"))) is weak


@needs_root
def test_what_a_link_leads_through_is_judged_too(tmp_path: Path, open_place: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    (closed / "into").symlink_to(open_place / "mine")
    (open_place / "out").symlink_to(closed)
    assert str(open_place) in describe_weakness(str(closed / "into" / "runs"))
    assert str(open_place) in describe_weakness(str(open_place / "out" / "runs"))
    (closed / "loop").symlink_to("loop")
    assert describe_weakness(str(closed / "loop")) == ""
    (closed / "theirs").symlink_to(tmp_path)
    os.chown(closed / "theirs", NOBODY, NOBODY, follow_symlinks=False)
    assert "nobody" in describe_weakness(str(closed / "theirs" / "runs"))


def test_runs_are_not_kept_where_others_can_replace_them(open_place: Path, tmp_path: Path) -> None:
    root = open_place / "mine" / "runs"
    spec = JobSpec("t", ("true",), str(tmp_path))
    with pytest.raises(NotPermitted, match="could be replaced by others") as caught:
        create_run(spec, str(root), argv=[], cwd="/", environ={})
    assert str(open_place) in str(caught.value)
    assert "--runs" in caught.value.hint
    assert not root.exists()
    open_place.chmod(0o1777)
    create_run(spec, str(root), argv=[], cwd="/", environ={})


def test_a_queue_that_others_could_replace_is_refused(open_place: Path) -> None:
    with pytest.raises(NotPermitted, match="could be replaced by others"):
        Queue(str(open_place / "mine" / "queue"))
    assert not (open_place / "mine" / "queue").exists()


def test_a_state_directory_that_others_could_replace_is_not_used(
    open_place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(open_place / "mine"))
    (open_place / "mine" / "holdfast" / "sentinels").mkdir(parents=True, mode=0o700)
    with pytest.raises(NotPermitted, match="replaced by others"):
        sentinel_records.list_all()
    with Index() as index:
        assert "replaced by others" in (index.notice or "")
        assert index.roots() == []
    assert os.listdir(open_place / "mine" / "holdfast") == ["sentinels"]


@pytest.mark.requirement("ETIQ-09")
def test_ETIQ_09_rules_below_a_directory_that_others_can_write_are_refused(open_place: Path) -> None:
    (open_place / "mine" / "deep").mkdir(mode=0o700)
    path = open_place / "mine" / "deep" / "rules.toml"
    path.write_text('max_hold = "1h"\n')
    path.chmod(0o644)
    with pytest.raises(StorageError, match=str(open_place)):
        read_rules({"HOLDFAST_RULES": str(path)}, machine_file="/nowhere/rules.toml")
    open_place.chmod(0o755)
    assert read_rules({"HOLDFAST_RULES": str(path)}, machine_file="/nowhere/rules.toml") != Rules()


def test_a_directory_that_cannot_be_made_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"file: it is a file, not a directory$"):
        make_own_directory(str(tmp_path / "file"), "the directory", "another one")
    with pytest.raises(StorageError, match=r"x: something above it is a file, not a directory$"):
        make_own_directory(str(tmp_path / "file" / "x"), "the directory", "another one")
