"""What can be seen of a run: three facts kept apart, and no end without evidence."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.agent.queue.wait.run import code_of_gone
from holdfast.agent.requests import write_request
from holdfast.agent.view import observe, run_view
from holdfast.agent.view.observe import find_durable_step, list_attempts, observe_run, read_events
from holdfast.agent.view.run_view import Presence, RunReach, RunView
from holdfast.host.clock import epoch_s, format_utc, utc_now
from holdfast.host.files import files
from holdfast.host.process.processes import identify_self
from holdfast.model import wire
from holdfast.model.identity import WaitStatus
from holdfast.model.lease import BusyReason, Witness
from holdfast.model.record import replace
from holdfast.model.run import Outcome, Preflight, RequestKind, RunRequest, RunState, Waiting
from tests.rundirs import dead_process, ended, finalizing, living_process, make_run, running, write, write_events
from tests.waiting import LIMIT_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.process

FIXTURES = Path(__file__).parents[2] / "fixtures"
RUN_ID = "20261120-100000-digits-0a1b"


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A living process that is not ours to judge by name."""
    process = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


def age(run_dir: str, seconds: float) -> str:
    """Have its attempt created so long ago."""
    path = f"{wire.attempt_dir(run_dir, 1)}/{wire.STATE}"
    state = wire.from_bytes(RunState, files.read_bytes(path), wire.STATE)
    write(path, wire.to_bytes(replace(state, created_at=format_utc(epoch_s() - seconds))))
    return run_dir


def test_a_created_run_waits_for_its_supervisor(tmp_path: Path) -> None:
    view = observe_run(age(make_run(tmp_path), 1.0))
    assert (view.condition, view.attempt, view.over, view.vanished) == ("created", 1, False, False)
    assert view.supervisor is Presence.UNRECORDED
    assert view.name == "digits"


@pytest.mark.parametrize(
    ("state", "condition"),
    [(Preflight(utc_now()), "preflight"), (running(), "running"), (finalizing(), "finalizing")],
)
def test_a_supervised_run_is_in_the_state_that_was_committed(tmp_path: Path, state: object, condition: str) -> None:
    view = observe_run(make_run(tmp_path, state=state, supervisor=identify_self()))  # type: ignore[arg-type]
    assert view.condition == condition
    assert view.supervised
    assert not view.vanished


def test_the_newest_checkpoint_is_the_one_on_disk_and_not_the_one_that_the_job_heard_of(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path, state=running(), supervisor=identify_self())
    write(f"{wire.attempt_dir(run_dir, 1)}/{wire.HEARTBEAT}", '{"step": 32, "last_durable_step": 20}')
    assert find_durable_step(observe_run(run_dir)) == 20, "in a directory of the script's own"
    for name in ("step-20", "step-40", ".step-60.0a1b", "step-50.bad-1"):
        os.makedirs(f"{run_dir}/{wire.CHECKPOINTS}/{name}")
    assert find_durable_step(observe_run(run_dir)) == 40
    shutil.copytree(wire.attempt_dir(run_dir, 1), wire.attempt_dir(run_dir, 2))
    assert find_durable_step(observe_run(run_dir, attempt=1)) == 20, "of an earlier attempt what it told"


def test_a_waiting_run_names_who_is_in_the_way(tmp_path: Path) -> None:
    state = Waiting(utc_now(), (BusyReason("GPU-1", Witness.LOCK, "anna, run x, pid 4242"),))
    view = observe_run(make_run(tmp_path, state=state, supervisor=identify_self()))
    assert "anna" in view.note


@pytest.mark.requirement("PROC-15")
def test_PROC_15_a_dead_supervisor_over_a_living_job_is_unsupervised(
    tmp_path: Path, child: subprocess.Popen[bytes]
) -> None:
    state = running(job=living_process(child.pid))
    view = observe_run(make_run(tmp_path, state=state, supervisor=dead_process()))
    assert view.condition == "running, unsupervised"
    assert f"holdfast adopt {RUN_ID}" in view.note
    assert not view.over
    assert not view.vanished


@pytest.mark.requirement("PROC-15")
def test_PROC_15_another_boot_id_is_lost_by_reboot(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path, state=running(), supervisor=dead_process(), boot="another-boot")
    view = observe_run(run_dir)
    assert view.condition == "lost"
    assert "rebooted" in view.note
    assert view.vanished


def test_all_recorded_processes_gone_and_no_marker_is_lost(tmp_path: Path) -> None:
    view = observe_run(make_run(tmp_path, state=running(), supervisor=dead_process()))
    assert view.condition == "lost"
    assert view.vanished


def test_a_run_whose_job_never_began_is_not_lost(tmp_path: Path) -> None:
    """Seen: a run in line for cards whose supervisor was killed read as lost, and then as stopped."""
    view = observe_run(make_run(tmp_path, state=Preflight(since=utc_now()), supervisor=dead_process()))
    assert view.condition == "preflight, unsupervised"
    assert f"before the job started; holdfast restart {RUN_ID}" in view.note
    assert view.vanished
    assert code_of_gone(view) == 130


def test_a_process_with_the_runs_marker_is_not_lost(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path, state=running(), supervisor=dead_process())
    environment = {**os.environ, "HOLDFAST_RUN_ID": RUN_ID, "HOLDFAST_ATTEMPT": "1"}
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
    view = observe_run(run_dir)
    return view if view.condition != "lost" else None


def test_a_status_that_was_left_is_not_lost(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path, state=running(), supervisor=dead_process())
    write(f"{wire.attempt_dir(run_dir, 1)}/{wire.STATUS}", wire.to_bytes(WaitStatus(3, None)))
    view = observe_run(run_dir)
    assert view.condition == "finalizing, unsupervised"
    assert view.vanished


@pytest.mark.requirement("B-69")
def test_a_reused_pid_is_not_the_job(tmp_path: Path, child: subprocess.Popen[bytes]) -> None:
    from holdfast.model.record import replace

    stranger = replace(living_process(child.pid), start_ticks=1)
    view = observe_run(make_run(tmp_path, state=running(job=stranger), supervisor=dead_process()))
    assert view.job is Presence.GONE
    assert view.condition == "lost"


def test_a_run_of_another_host_is_last_seen_never_lost(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path, state=running(), supervisor=dead_process(), boot="theirs", host="otherbox")
    view = observe_run(run_dir)
    assert view.reach is RunReach.ELSEWHERE
    assert view.condition == "running"
    assert "otherbox" in view.note
    assert view.job is Presence.UNKNOWN
    assert not view.vanished


@pytest.mark.parametrize(
    "other",
    [
        {"boot_id": "theirs", "machine_id": "theirs"},
        {"boot_id": "theirs", "machine_id": ""},
        {"pid_namespace": "pid:[1]"},
        {"boot_id": ""},
        {"machine_id": "theirs"},
    ],
    ids=["another machine", "a machine of unknown id", "a container", "a boot id that is not known", "an image"],
)
def test_a_box_of_the_same_name_is_not_this_box(tmp_path: Path, other: dict[str, str]) -> None:
    """Seen: two rentals, both called vm; the copy of a living run was taken for one that a reboot had ended."""
    run_dir = make_run(tmp_path, state=running(), supervisor=dead_process())
    path = f"{wire.attempt_dir(run_dir, 1)}/{wire.STATE}"
    state = wire.from_bytes(RunState, files.read_bytes(path), path)
    write(path, wire.to_bytes(replace(state, box=replace(state.box, **other))))
    view = observe_run(run_dir)
    assert view.host == os.uname().nodename
    assert (view.reach, view.condition, view.vanished, view.rebooted) == (RunReach.ELSEWHERE, "running", False, False)
    assert {view.supervisor, view.keeper, view.job} == {Presence.UNKNOWN}
    assert "another" in view.note or "no boot id" in view.note
    assert " ago" in view.note


def test_a_reboot_is_proven_by_a_machine_id_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir = make_run(tmp_path, state=running(), supervisor=dead_process())
    monkeypatch.setenv("HOLDFAST_BOOT_ID", "a-later-boot")
    assert observe_run(run_dir).vanished
    monkeypatch.setenv("HOLDFAST_MACHINE_ID", "")
    assert (observe_run(run_dir).condition, observe_run(run_dir).vanished) == ("running", False)


def test_a_run_of_another_machine_is_read_as_it_is(tmp_path: Path) -> None:
    """A run directory as another machine left it: a run in full, copied while it was at work."""
    run_dir = str(shutil.copytree(FIXTURES / "20261122-100000-digits-5c0e", tmp_path / "20261122-100000-digits-5c0e"))
    view = observe_run(run_dir)
    assert (view.reach, view.condition, view.unreadable) == (RunReach.ELSEWHERE, "running", ())
    assert "gpu-far" in view.note
    assert (view.vanished, view.over, view.job) == (False, False, Presence.UNKNOWN)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root for a PID namespace")
def test_a_look_from_another_pid_namespace_does_not_call_a_living_run_lost(
    tmp_path: Path, child: subprocess.Popen[bytes]
) -> None:
    living = living_process(child.pid)
    run_dir = make_run(tmp_path, state=running(job=living, keeper=living), supervisor=living)
    code = "import sys; from holdfast.agent.view.observe import observe_run; v = observe_run(sys.argv[1]); "
    code += "print(v.reach.value, v.condition, v.job.value, v.vanished)"
    command = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", code, run_dir]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=LIMIT_S)
    assert done.stdout.split() == ["elsewhere", "running", "unknown", "False"]
    assert observe_run(run_dir).condition == "running"


@pytest.mark.parametrize("outcome", list(Outcome))
def test_an_end_is_its_outcome(tmp_path: Path, outcome: Outcome) -> None:
    view = observe_run(make_run(tmp_path, state=ended(outcome, 9)))
    assert (view.condition, view.exit_code, view.over) == (outcome.value, 9, True)


@pytest.mark.requirement("PROC-05")
def test_an_end_that_is_written_while_we_look_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen: whoever followed a run was told that nobody could finish its record (69), and it had succeeded."""
    run_dir = make_run(tmp_path, state=running(), supervisor=dead_process())
    written = make_run(tmp_path / "written", state=ended(), supervisor=dead_process())
    look = observe._look_for_processes

    def look_late(view: RunView) -> RunView:
        shutil.copytree(wire.attempt_dir(written, 1), wire.attempt_dir(run_dir, 1), dirs_exist_ok=True)
        return look(view)

    monkeypatch.setattr(observe, "_look_for_processes", look_late)
    view = observe_run(run_dir)
    assert (view.condition, view.exit_code) == ("succeeded", 0)


def test_an_end_whose_supervisor_died_before_the_exit_record_is_not_over(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path, state=ended(), supervisor=dead_process())
    os.unlink(f"{wire.attempt_dir(run_dir, 1)}/{wire.EXIT}")
    view = observe_run(run_dir)
    assert (view.condition, view.over, view.exit_code, view.vanished) == ("finalizing, unsupervised", False, None, True)
    assert "holdfast reconcile writes it" in view.note


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"schema": 1}', b"\xff\x00", b"[" * 100_000])
def test_a_corrupt_state_is_named_and_the_exit_record_used(tmp_path: Path, content: bytes) -> None:
    run_dir = make_run(tmp_path, state=ended(Outcome.FAILED, 3))
    path = f"{wire.attempt_dir(run_dir, 1)}/{wire.STATE}"
    write(path, content)
    view = observe_run(run_dir)
    assert path in [item.path for item in view.unreadable]
    assert (view.condition, view.exit_code) == ("failed", 3)
    assert path in view.note


def test_a_corrupt_state_without_an_exit_record_falls_back_to_the_events(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path, state=running(), supervisor=dead_process())
    write(f"{wire.attempt_dir(run_dir, 1)}/{wire.STATE}", "nonsense")
    write_events(run_dir, 1, "preflight", "running")
    view = observe_run(run_dir)
    assert view.condition == "unreadable"
    assert "running" in view.note
    assert not view.over
    assert not view.vanished


def test_what_the_job_wrote_is_never_trusted_to_parse(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path, state=running(), supervisor=identify_self())
    write(f"{wire.attempt_dir(run_dir, 1)}/{wire.HEARTBEAT}", b"\x00garbage")
    view = observe_run(run_dir)
    assert view.heartbeat == {}
    assert view.condition == "running"
    assert [os.path.basename(item.path) for item in view.unreadable] == [wire.HEARTBEAT]


def test_a_link_in_the_place_of_a_record_is_not_followed(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path, state=running(), supervisor=identify_self())
    (tmp_path / "secret.json").write_text('{"step": 1}')
    os.symlink(tmp_path / "secret.json", f"{wire.attempt_dir(run_dir, 1)}/{wire.HEARTBEAT}")
    assert observe_run(run_dir).heartbeat == {}


def test_a_request_is_kept_apart_from_what_was_seen(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path, state=running(), supervisor=identify_self())
    desired = RunRequest(RequestKind.STOP, by="anna", at=utc_now())
    write(f"{run_dir}/{wire.DESIRED}", wire.to_bytes(desired))
    view = observe_run(run_dir)
    assert view.desired == desired
    assert view.condition == "running"


def test_the_newest_attempt_is_looked_at_unless_told(tmp_path: Path) -> None:
    for number in (1, 2, 10):
        run_dir = make_run(tmp_path, state=ended(Outcome.FAILED, number), attempt=number)
    os.mkdir(f"{run_dir}/attempts/not-a-number")
    assert list_attempts(run_dir) == (1, 2, 10)
    assert observe_run(run_dir).exit_code == 10
    assert observe_run(run_dir, attempt=2).exit_code == 2


def test_a_directory_that_is_no_run_says_so(tmp_path: Path) -> None:
    (tmp_path / RUN_ID).mkdir()
    view = observe_run(f"{tmp_path}/{RUN_ID}")
    assert view.condition == "unreadable"
    assert not view.over
    assert observe_run(f"{tmp_path}/gone/{RUN_ID}").reach is RunReach.UNREADABLE


def test_torn_and_damaged_events_are_left_out(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path)
    write_events(run_dir, 1, "preflight", "running")
    with open(f"{wire.attempt_dir(run_dir, 1)}/{wire.EVENTS}", "ab") as file:
        file.write(b'not json\n{"seq": 9, "event": "torn')
    assert [event["event"] for event in read_events(run_dir, 1)] == ["preflight", "running"]


def test_an_end_that_is_written_between_two_reads_of_one_look_is_seen(
    tmp_path: Path, child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen: 69 for a run that had succeeded, because its supervisor wrote the end and left during the look."""
    me = living_process(child.pid)
    run_dir = make_run(tmp_path, state=running(keeper=me, job=me), supervisor=me)
    look = observe._look_for_processes

    def look_late(view: run_view.RunView) -> run_view.RunView:
        if not view.over:
            shutil.rmtree(run_dir)
            make_run(tmp_path, state=ended(), supervisor=me)
            child.kill()
            child.wait()
        return look(view)

    monkeypatch.setattr(observe, "_look_for_processes", look_late)
    assert observe_run(run_dir).over


def test_a_request_of_a_later_generation_is_seen_without_a_readable_state(tmp_path: Path) -> None:
    make_run(tmp_path, state=ended(Outcome.FAILED, 1))
    run_dir = make_run(tmp_path, attempt=2)
    write(f"{wire.attempt_dir(run_dir, 2)}/{wire.STATE}", b"{")
    write_request(run_dir, RunRequest(RequestKind.STOP, "anna", utc_now(), "", 2))
    view = observe_run(run_dir)
    assert view.desired is not None
    assert view.desired.by == "anna"


@pytest.mark.parametrize("old", [False, True])
def test_a_run_that_nobody_has_taken_up_for_minutes_is_nobodys(tmp_path: Path, *, old: bool) -> None:
    view = observe_run(age(make_run(tmp_path), 121.0 if old else 30.0))
    assert (view.condition, view.vanished) == (("created, unsupervised", True) if old else ("created", False))
