"""Whoever makes a run or an attempt may be killed at any point: nothing is left that the ordinary verbs do not end."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.agent.control import remove
from holdfast.agent.control.create import create_run, next_attempt
from holdfast.agent.control.restart import restart_run
from holdfast.agent.patrol.reconcile import RepairKind, reconcile
from holdfast.agent.view import observe
from holdfast.host.files import files
from holdfast.host.files.trees import STALE_S
from holdfast.model import wire
from holdfast.model.ids import is_run_id
from holdfast.model.job import JobSpec
from holdfast.model.run import Created
from tests.agent.driving import job
from tests.host.families import become
from tests.rundirs import ended, make_run, write

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.agent.driving import Drive

pytestmark = pytest.mark.process

CHANGES = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir")
"""What changes a directory; a look is among it, too, and does no harm."""
MOST_POINTS = 400


def kill_at_each_point(below: Path, act: Callable[[], object]) -> int:
    """`act` in a child that is killed before its first access below a directory, its second, ...; how many."""
    for point in range(1, MOST_POINTS):

        def act_until_killed(last: int = point) -> None:
            left = [last]

            def count(event: str, arguments: tuple[object, ...]) -> None:
                if event in CHANGES and str(below) in str(arguments[0]):
                    left[0] -= 1
                    if not left[0]:
                        os.kill(os.getpid(), signal.SIGKILL)

            sys.addaudithook(count)
            act()

        _, status = os.waitpid(become(act_until_killed), 0)
        if status == 0:
            return point - 1
        assert os.WTERMSIG(status) == signal.SIGKILL
    pytest.fail("it never gets to its end")


def make_stale(directory: Path) -> None:
    """As if everything that is hidden in a tree had been left there long ago."""
    past = time.time() - STALE_S - 60
    for path in directory.rglob(".*"):
        os.utime(path, (past, past), follow_symlinks=False)


@pytest.mark.slow
@pytest.mark.requirement("RAIL-08")
def test_RAIL_08_a_maker_killed_at_any_point_leaves_a_whole_run_or_none(tmp_path: Path) -> None:
    root, work = tmp_path / "runs", tmp_path / "work"
    root.mkdir(mode=0o700)
    work.mkdir()
    (work / "t.py").write_text("pass\n")
    spec = JobSpec("t", (sys.executable, "t.py"), str(work), config=str(work / "t.py"))
    points = kill_at_each_point(root, lambda: create_run(spec, str(root), argv=["x"], cwd="/", environ={}))
    assert points >= 10
    for name in filter(is_run_id, os.listdir(root)):
        view = observe.observe_run(f"{root}/{name}")
        assert (view.attempt, view.unreadable) == (1, ())
        assert view.state is not None
        assert isinstance(view.state.state, Created)
    hidden = [name for name in os.listdir(root) if not is_run_id(name)]
    assert len(hidden) >= points - 3

    assert reconcile([str(root)]).repairs == (), "it may still be at work"
    make_stale(root)
    shown = reconcile([str(root)], dry_run=True)
    assert [(repair.kind, repair.subject, repair.done) for repair in shown.repairs] == [
        (RepairKind.REST, str(root), False)
    ]
    assert reconcile([str(root)]).exit_code == 0
    assert [name for name in os.listdir(root) if not is_run_id(name)] == []
    assert reconcile([str(root)]).repairs == ()


@pytest.mark.slow
@pytest.mark.requirement("RAIL-08")
def test_a_restart_killed_at_any_point_leaves_the_next_attempt_whole_or_none(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path, state=ended())
    points = kill_at_each_point(Path(run_dir), lambda: next_attempt(run_dir, "restart"))
    assert points >= 5
    view = observe.observe_run(run_dir)
    assert view.attempts == tuple(range(1, len(view.attempts) + 1))
    for number in view.attempts[1:]:
        state = observe.observe_run(run_dir, attempt=number).state
        assert state is not None
        assert isinstance(state.state, Created)
    assert any(name.startswith(".") for name in os.listdir(f"{run_dir}/{wire.ATTEMPTS}"))
    make_stale(Path(run_dir))
    assert next_attempt(run_dir, "restart") == len(view.attempts) + 1
    assert not [name for name in os.listdir(f"{run_dir}/{wire.ATTEMPTS}") if name.startswith(".")]


@pytest.mark.slow
def test_an_attempt_that_an_earlier_holdfast_left_empty_is_no_dead_end(drive: Drive) -> None:
    """It made the directory first and its state after: killed in between, no verb helped any more."""
    run = drive(*job("exit_with", 0))
    run.ended()
    os.mkdir(wire.attempt_dir(run.run_dir, 2), 0o700)
    assert observe.observe_run(run.run_dir).condition == "succeeded"
    assert restart_run(run.run_dir, environ=run.environ, by="t", wait_s=None, tell=lambda _: None).attempt == 2
    run.attempt = 2
    assert run.ended().exit_code == 0


def test_what_an_earlier_holdfast_left_of_a_run_can_be_removed(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    bare, recorded = root / "20261120-100000-bare-0a1b", make_run(root, "20261120-100001-recorded-0a1b")
    for name in (wire.SNAPSHOT, wire.ATTEMPTS):
        (bare / name).mkdir(parents=True)
    write(f"{bare}/.run.json.123.0a1b2c3d.tmp", b"{")
    os.unlink(f"{recorded}/attempts/1/{wire.STATE}")
    for run_dir in (str(bare), recorded):
        remove.remove_run(remove.check_removable(run_dir, root=str(root)), root=str(root))
    assert os.listdir(root) == []


def test_temporaries_of_killed_commits_go_when_they_are_old(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    run_dir = make_run(root, state=ended())
    names = [f"{run_dir}/{name}" for name in (wire.DESIRED, f"attempts/1/{wire.STATE}")]
    old = [files.name_temporary(name) for name in names]
    for path in old:
        write(path, b"{")
    make_stale(root)
    young = files.name_temporary(names[1])
    kept = f"{run_dir}/attempts/1/.mine.tmp"
    write(young, b"{")
    write(kept, b"not of holdfast")
    repairs = reconcile([str(root)]).repairs
    assert [repair.repair for repair in repairs] == ["2 things removed"]
    assert [os.path.exists(path) for path in (*old, young, kept)] == [False, False, True, True]
