"""A request belongs to the attempts of one generation.

What holdfast begins by itself inherits it, a restart does not.
"""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.agent.control.create import next_attempt
from holdfast.agent.control.restart import restart_run
from holdfast.agent.control.run_lock import hold_run_lock, is_held, take_supervisor_lock
from holdfast.agent.control.settle import settle_vanished
from holdfast.agent.requests import read_request, write_request
from holdfast.agent.view import observe, run_view
from holdfast.core.recorded_environment import restore_recorded, select_recorded
from holdfast.host.clock import utc_now
from holdfast.host.files import files
from holdfast.host.process.pidfd import send_signal
from holdfast.model import wire
from holdfast.model.errors import ResourceBusy
from holdfast.model.job import IsolationLevel
from holdfast.model.run import Outcome, RequestKind, RunRequest
from tests.agent.driving import job
from tests.rundirs import dead_process, ended, make_run, running
from tests.waiting import wait_until

if TYPE_CHECKING:
    from tests.agent.driving import Drive

pytestmark = pytest.mark.process


def desire(request: RequestKind = RequestKind.STOP, *, generation: int = 1) -> RunRequest:
    return RunRequest(request, "anna", utc_now(), generation=generation)


def test_a_request_for_force_is_not_taken_back_and_an_older_one_does_not_count(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path)
    assert read_request(run_dir, 1) is None
    write_request(run_dir, desire(RequestKind.STOP_NOW))
    write_request(run_dir, desire(RequestKind.STOP))
    found = read_request(run_dir, 1)
    assert found is not None
    assert found.kind is RequestKind.STOP_NOW
    assert read_request(run_dir, 2) is None
    write_request(run_dir, desire(RequestKind.STOP, generation=2))
    later = read_request(run_dir, 2)
    assert later is not None
    assert later.kind is RequestKind.STOP


def test_a_softer_request_that_was_begun_before_does_not_overwrite_one_for_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has looked, finds nothing, and is held up before its rename."""
    run_dir, commit = make_run(tmp_path), files.commit
    other = threading.Thread(target=lambda: write_request(run_dir, desire(RequestKind.STOP_NOW)))

    def commit_late(path: str, data: bytes) -> None:
        monkeypatch.setattr(files, "commit", commit)
        other.start()
        other.join(0.3)
        commit(path, data)

    monkeypatch.setattr(files, "commit", commit_late)
    write_request(run_dir, desire(RequestKind.STOP))
    other.join()
    found = read_request(run_dir, 1)
    assert found is not None
    assert found.kind is RequestKind.STOP_NOW


def test_a_late_request_for_an_earlier_generation_does_not_overwrite_that_of_the_present_one(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path)
    write_request(run_dir, desire(RequestKind.STOP, generation=2))
    write_request(run_dir, desire(RequestKind.STOP_NOW, generation=1))
    assert read_request(run_dir, 1) is None
    assert read_request(run_dir, 2) is not None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_request_of_another_account_is_none(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path, state=running(), supervisor=dead_process())
    write_request(run_dir, desire(RequestKind.STOP_NOW))
    os.chown(f"{run_dir}/{wire.DESIRED}", 65534, 65534)
    view = observe.observe_run(run_dir)
    assert view.desired is None
    assert [item.reason for item in view.unreadable if item.path.endswith(wire.DESIRED)] == ["it belongs to uid 65534"]
    with pytest.raises(PermissionError, match="belongs to uid 65534"):
        read_request(run_dir, 1)


def test_a_stop_that_came_while_another_attempt_was_begun_ends_that_one(drive: Drive) -> None:
    """No lock is needed: whichever attempt there is then has the request, and its job is not started."""
    run = drive(*job("exit_with", 3))
    run.ended()
    assert next_attempt(run.run_dir, "retry", generation=1) == 2
    write_request(run.run_dir, desire())
    run.attempt = 2
    run.start("retry")
    end = run.ended()
    assert (end.outcome, end.started_at) == (Outcome.STOPPED, None)


@pytest.mark.slow
def test_an_old_stop_does_not_end_a_run_that_was_started_again(drive: Drive) -> None:
    run = drive(*job("stay"))
    run.ready()
    run.ask()
    assert run.ended().outcome is Outcome.STOPPED
    attempt = restart_run(run.run_dir, environ=run.environ, by="anna", wait_s=None, tell=lambda _: None).attempt
    run.attempt = attempt
    run.ready()
    assert Path(run.run_dir, wire.DESIRED).exists()
    assert observe.observe_run(run.run_dir).desired is None
    run.ask(RequestKind.STOP_NOW)
    run.ended()


@pytest.mark.slow
def test_two_attempts_are_never_supervised_at_once(drive: Drive) -> None:
    """A second attempt that somebody begins beside a living one waits for the supervisor of the first to leave."""
    run = drive(*job("stay"))
    run.ready()
    first = run.supervisor()
    lock, real = take_supervisor_lock(run.run_dir, 0.0)
    assert (lock, real) == (None, True)
    assert next_attempt(run.run_dir, "restart") == 2
    run.attempt = 2
    run.start("restart")
    assert observe.observe_run(run.run_dir, attempt=2).state.supervisor is None  # type: ignore[union-attr]  # it was made
    assert send_signal(first, signal.SIGTERM)
    run.ready()
    assert observe.observe_run(run.run_dir, attempt=1).over
    run.ask(RequestKind.STOP_NOW)
    run.ended()


@pytest.mark.slow
def test_a_supervisor_that_is_started_twice_does_not_end_the_attempt_a_second_time(drive: Drive) -> None:
    """The worker starts another one where the first does not come up soon: it waits for the one before to leave."""
    run = drive(*job("stay"))
    run.ready()
    run.start("start")
    run.ask(RequestKind.STOP_NOW)
    run.ended()
    log = Path(wire.attempt_dir(run.run_dir, 1), wire.SUPERVISOR_LOG)
    wait_until(lambda: "has taken the attempt up meanwhile" in log.read_text())
    events = observe.read_events(run.run_dir, 1)
    assert [event["event"] for event in events].count("exit_recorded") == 1


def test_the_lock_of_a_run_excludes_another_and_a_look_leaves_nothing(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path, state=ended())
    assert not is_held(run_dir)
    assert not Path(run_dir, wire.RUN_LOCK).exists()
    with hold_run_lock(run_dir, what="restart"):
        assert is_held(run_dir)
        with pytest.raises(ResourceBusy, match="another holdfast"), hold_run_lock(run_dir, what="adopt"):
            pytest.fail("it was held")
    assert not is_held(run_dir)


def test_what_is_recorded_of_an_environment_is_what_rules_the_supervisor() -> None:
    mine = {"HOLDFAST_RULES": "/etc/a.toml", "PATH": "/bin", "HF_TOKEN": "hf_x", "HOME": "/home/anna", "LANG": "C"}
    record = {"environment": select_recorded(mine)}
    theirs = {"HOLDFAST_RULES": "/etc/b.toml", "HOLDFAST_LEASE_DIR": "/b", "HOLDFAST_BOOT_ID": "now", "PATH": "/b/bin"}
    assert restore_recorded(record, theirs) == {
        "HOLDFAST_RULES": "/etc/a.toml",
        "PATH": "/bin",
        "HOME": "/home/anna",
        "LANG": "C",
        "HOLDFAST_BOOT_ID": "now",
    }


@pytest.mark.slow
def test_a_run_is_settled_under_its_own_settings(drive: Drive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = drive(*job("stay"), containment=IsolationLevel.SUBREAPER)
    state = run.ready()
    run.kill_supervisor()
    run.kill(state.keeper)
    run.kill(state.job.process)
    monkeypatch.setenv("XDG_STATE_HOME", f"{tmp_path}/of-the-onlooker")
    monkeypatch.setenv("HOLDFAST_LEASE_DIR", f"{tmp_path}/of-the-onlooker/leases")
    monkeypatch.setenv("HOLDFAST_RULES", "/nowhere/rules.toml")
    view = wait_until(lambda: _settle_when_vanished(run.run_dir), what="it vanished and was settled")
    assert view is not None
    assert (view.condition, view.over) == ("failed" if view.status else "lost", True)
    assert not os.path.exists(f"{tmp_path}/of-the-onlooker")
    assert "/nowhere" not in run.log()


def _settle_when_vanished(run_dir: str) -> run_view.RunView | None:
    if not observe.observe_run(run_dir).vanished and not observe.observe_run(run_dir).over:
        return None
    return settle_vanished(run_dir)
