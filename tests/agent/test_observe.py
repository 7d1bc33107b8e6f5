"""What can be seen of a run: three facts kept apart, and no end without evidence."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from holdfast.agent.observe import Presence, Reach, RunView, list_attempts, observe, read_events
from holdfast.host.clock import utc_now
from holdfast.host.processes import identify_self
from holdfast.model import wire
from holdfast.model.identity import WaitStatus
from holdfast.model.lease import Busy, Witness
from holdfast.model.run import Desired, Outcome, Preflight, Waiting, Wish
from tests.rundirs import (
    dead_process,
    ended,
    finalizing,
    living_process,
    make_run,
    own_run_id,
    running,
    write,
    write_events,
)
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.process

RUN_ID = "20261120-100000-digits-0a1b"


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A living process that is not ours to judge by name."""
    process = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


def test_a_created_run_waits_for_its_supervisor(tmp_path: Path) -> None:
    view = observe(make_run(tmp_path))
    assert (view.condition, view.attempt, view.ended, view.vanished) == ("created", 1, False, False)
    assert view.supervisor is Presence.UNRECORDED
    assert view.name == "digits"


@pytest.mark.parametrize(
    ("state", "condition"),
    [(Preflight(utc_now()), "preflight"), (running(), "running"), (finalizing(), "finalizing")],
)
def test_a_supervised_run_is_in_the_state_that_was_committed(tmp_path: Path, state: object, condition: str) -> None:
    view = observe(make_run(tmp_path, state=state, supervisor=identify_self()))  # type: ignore[arg-type]
    assert view.condition == condition
    assert view.supervised
    assert not view.vanished


def test_a_waiting_run_names_who_is_in_the_way(tmp_path: Path) -> None:
    state = Waiting(utc_now(), (Busy("GPU-1", Witness.LOCK, "anna, run x, pid 4242"),))
    view = observe(make_run(tmp_path, state=state, supervisor=identify_self()))
    assert "anna" in view.note


@pytest.mark.requirement("PROC-15")
def test_PROC_15_a_dead_supervisor_over_a_living_job_is_unsupervised(
    tmp_path: Path, child: subprocess.Popen[bytes]
) -> None:
    state = running(job=living_process(child.pid))
    view = observe(make_run(tmp_path, state=state, supervisor=dead_process()))
    assert view.condition == "running, unsupervised"
    assert f"holdfast adopt {RUN_ID}" in view.note
    assert not view.ended
    assert not view.vanished


@pytest.mark.requirement("PROC-15")
def test_PROC_15_another_boot_id_is_lost_by_reboot(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path, state=running(), supervisor=dead_process(), boot="another-boot")
    view = observe(run_dir)
    assert view.condition == "lost"
    assert "rebooted" in view.note
    assert view.vanished


def test_all_recorded_processes_gone_and_no_marker_is_lost(tmp_path: Path) -> None:
    view = observe(make_run(tmp_path, state=running(), supervisor=dead_process()))
    assert view.condition == "lost"
    assert view.vanished


def test_a_process_with_the_runs_marker_is_not_lost(tmp_path: Path) -> None:
    run_id = own_run_id()
    run_dir = make_run(tmp_path, run_id, running(), supervisor=dead_process())
    environment = {**os.environ, "HOLDFAST_RUN_ID": run_id, "HOLDFAST_ATTEMPT": "1"}
    code = "import sys; sys.stdin.read()"
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, env=environment)
    try:
        view = wait_until(lambda: _unless_lost(run_dir))
        assert view is not None
        assert view.condition == "running, unsupervised"
        assert [member.pid for member in view.members] == [process.pid]
        assert not view.vanished
    finally:
        process.kill()
        process.communicate()


def _unless_lost(run_dir: str) -> RunView | None:
    view = observe(run_dir)
    return view if view.condition != "lost" else None


def test_a_status_that_was_left_is_not_lost(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path, state=running(), supervisor=dead_process())
    write(f"{wire.attempt_dir(run_dir, 1)}/{wire.STATUS}", wire.to_bytes(WaitStatus(3, None)))
    view = observe(run_dir)
    assert view.condition == "finalizing, unsupervised"
    assert view.vanished


@pytest.mark.requirement("B-69")
def test_a_reused_pid_is_not_the_job(tmp_path: Path, child: subprocess.Popen[bytes]) -> None:
    from dataclasses import replace

    stranger = replace(living_process(child.pid), start_ticks=1)
    view = observe(make_run(tmp_path, state=running(job=stranger), supervisor=dead_process()))
    assert view.job is Presence.GONE
    assert view.condition == "lost"


def test_a_run_of_another_host_is_last_seen_never_lost(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path, state=running(), supervisor=dead_process(), boot="theirs", host="otherbox")
    view = observe(run_dir)
    assert view.reach is Reach.OTHER_HOST
    assert view.condition == "running"
    assert "otherbox" in view.note
    assert view.job is Presence.UNKNOWN
    assert not view.vanished


@pytest.mark.parametrize("outcome", list(Outcome))
def test_an_end_is_its_outcome(tmp_path: Path, outcome: Outcome) -> None:
    view = observe(make_run(tmp_path, state=ended(outcome, 9)))
    assert (view.condition, view.exit_code, view.ended, view.over) == (outcome.value, 9, True, True)


def test_an_end_whose_supervisor_died_before_the_exit_record_is_not_over(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path, state=ended(), supervisor=dead_process())
    os.unlink(f"{wire.attempt_dir(run_dir, 1)}/{wire.EXIT}")
    view = observe(run_dir)
    assert view.ended
    assert not view.over
    assert view.vanished


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"schema": 1}', b"\xff\x00", b"[" * 100_000])
def test_a_corrupt_state_is_named_and_the_exit_record_used(tmp_path: Path, content: bytes) -> None:
    run_dir = make_run(tmp_path, state=ended(Outcome.FAILED, 3))
    path = f"{wire.attempt_dir(run_dir, 1)}/{wire.STATE}"
    write(path, content)
    view = observe(run_dir)
    assert path in [item.path for item in view.unreadable]
    assert (view.condition, view.exit_code) == ("failed", 3)
    assert path in view.note


def test_a_corrupt_state_without_an_exit_record_falls_back_to_the_events(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path, state=running(), supervisor=dead_process())
    write(f"{wire.attempt_dir(run_dir, 1)}/{wire.STATE}", "nonsense")
    write_events(run_dir, 1, "preflight", "running")
    view = observe(run_dir)
    assert view.condition == "unreadable"
    assert "running" in view.note
    assert not view.ended
    assert not view.vanished


def test_what_the_job_wrote_is_never_trusted_to_parse(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path, state=running(), supervisor=identify_self())
    write(f"{wire.attempt_dir(run_dir, 1)}/{wire.HEARTBEAT}", b"\x00garbage")
    view = observe(run_dir)
    assert view.heartbeat == {}
    assert view.condition == "running"
    assert [os.path.basename(item.path) for item in view.unreadable] == [wire.HEARTBEAT]


def test_a_link_in_the_place_of_a_record_is_not_followed(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path, state=running(), supervisor=identify_self())
    (tmp_path / "secret.json").write_text('{"step": 1}')
    os.symlink(tmp_path / "secret.json", f"{wire.attempt_dir(run_dir, 1)}/{wire.HEARTBEAT}")
    assert observe(run_dir).heartbeat == {}


def test_a_wish_is_kept_apart_from_what_was_seen(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path, state=running(), supervisor=identify_self())
    desired = Desired(Wish.STOP, by="anna", at=utc_now())
    write(f"{wire.attempt_dir(run_dir, 1)}/{wire.DESIRED}", wire.to_bytes(desired))
    view = observe(run_dir)
    assert view.desired == desired
    assert view.condition == "running"


def test_the_newest_attempt_is_looked_at_unless_told(tmp_path: Path) -> None:
    for number in (1, 2, 10):
        run_dir = make_run(tmp_path, state=ended(Outcome.FAILED, number), attempt=number)
    os.mkdir(f"{run_dir}/attempts/not-a-number")
    assert list_attempts(run_dir) == (1, 2, 10)
    assert observe(run_dir).exit_code == 10
    assert observe(run_dir, attempt=2).exit_code == 2


def test_a_directory_that_is_no_run_says_so(tmp_path: Path) -> None:
    (tmp_path / RUN_ID).mkdir()
    view = observe(f"{tmp_path}/{RUN_ID}")
    assert view.condition == "unreadable"
    assert not view.ended
    assert observe(f"{tmp_path}/gone/{RUN_ID}").reach is Reach.UNREADABLE


def test_torn_and_damaged_events_are_left_out(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path)
    write_events(run_dir, 1, "preflight", "running")
    with open(f"{wire.attempt_dir(run_dir, 1)}/{wire.EVENTS}", "ab") as file:
        file.write(b'not json\n{"seq": 9, "event": "torn')
    assert [event["event"] for event in read_events(run_dir, 1)] == ["preflight", "running"]
