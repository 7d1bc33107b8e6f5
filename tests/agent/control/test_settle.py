"""Having a run of which nobody is left finished: only where it still is so at the moment of acting."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from holdfast.agent.control import adopt
from holdfast.agent.control.run_lock import hold_run_lock, is_held
from holdfast.agent.control.settle import settle_run
from holdfast.agent.patrol.reconcile import reconcile
from holdfast.agent.view.find import FoundRun, require_own
from holdfast.agent.view.observe import observe_run
from holdfast.agent.view.run_view import RunReach
from holdfast.model import wire
from holdfast.model.errors import NotPermitted
from tests.rundirs import dead_process, living_process, make_run

pytestmark = pytest.mark.process


def test_a_run_that_somebody_took_up_since_the_look_is_not_called_off(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path, supervisor=dead_process())
    looked = observe_run(run_dir)
    assert looked.vanished
    shutil.rmtree(run_dir)
    assert make_run(tmp_path, supervisor=living_process(os.getpid())) == run_dir
    assert not settle_run(looked)
    assert not Path(run_dir, wire.DESIRED).exists()


def test_what_is_being_taken_up_is_not_called_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen: `reconcile` beside `adopt` stopped the run in line that `adopt` had just given a supervisor."""
    run_dir = make_run(tmp_path, supervisor=dead_process())
    with hold_run_lock(run_dir, what="adopt"):
        assert not settle_run(observe_run(run_dir))
    held = []

    def take_up(*_: object, **__: object) -> None:
        taken = make_run(tmp_path / "elsewhere", supervisor=living_process(os.getpid()))
        shutil.copy(f"{wire.attempt_dir(taken, 1)}/{wire.STATE}", wire.attempt_dir(run_dir, 1))

    def wait(*words: object, **more: object) -> object:
        held.append(is_held(run_dir))
        return observe_run(run_dir)

    monkeypatch.setattr("holdfast.agent.launch.start_supervisor", take_up)
    monkeypatch.setattr(adopt, "_wait_adopted", wait)
    adopt.adopt(run_dir, environ=os.environ)
    assert held == [True, False]
    assert not Path(run_dir, wire.DESIRED).exists()


def test_a_copy_that_nobody_marked_is_no_run_of_its_own(tmp_path: Path) -> None:
    """Seen: `stop` of what ``cp -a`` had made of a run ended the processes of that run, which its records name."""
    run_dir = make_run(tmp_path, supervisor=dead_process())
    copy = f"{tmp_path}/20261120-110000-copy-abcd"
    shutil.copytree(run_dir, copy)
    seen = observe_run(copy)
    assert (seen.run_id, seen.reach, seen.vanished) == (os.path.basename(copy), RunReach.ELSEWHERE, False)
    assert f"copy of {os.path.basename(run_dir)}" in seen.note
    with pytest.raises(NotPermitted, match="copy of") as refused:
        require_own(FoundRun(copy, os.path.basename(copy), str(tmp_path)))
    assert f"call its directory {os.path.basename(run_dir)} again" in refused.value.hint
    assert not settle_run(seen)
    os.rename(run_dir, f"{tmp_path}/aside")
    reconcile([str(tmp_path)])
    assert not Path(copy, wire.DESIRED).exists()
    assert not Path(wire.attempt_dir(copy, 1), wire.EXIT).exists()


def test_a_run_that_a_link_leads_to_is_the_run(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path, supervisor=dead_process())
    os.symlink(run_dir, tmp_path / "latest")
    assert observe_run(f"{tmp_path}/latest").copy is None
