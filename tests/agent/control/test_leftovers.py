"""The reaper: leftovers of ended runs end, and everything else lives."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from holdfast.agent.control.leftovers import end_leftovers
from holdfast.agent.view.runs.leftovers import Leftover, find_leftovers
from holdfast.model.errors import StorageError
from holdfast.model.record import replace
from tests.rundirs import ended, living_process, make_run, own_run_id, running
from tests.waiting import LIMIT_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Start = Callable[..., subprocess.Popen[bytes]]

pytestmark = pytest.mark.process

RUN, OTHER = own_run_id(), own_run_id("other")
SLEEPER = "import signal, sys; print('up', flush=True); signal.pause()"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEPER}"


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a sleeper with this marker; it is up when this returns, and gone after the test."""
    children: list[subprocess.Popen[bytes]] = []

    def begin(run_dir: str | None = None, *, program: str = SLEEPER, attempt: str = "1") -> subprocess.Popen[bytes]:
        environ = dict(os.environ)
        if run_dir is not None:
            environ.update(
                HOLDFAST_RUN_ID=os.path.basename(run_dir), HOLDFAST_RUN_DIR=run_dir, HOLDFAST_ATTEMPT=attempt
            )
        child = subprocess.Popen([sys.executable, "-c", program], env=environ, stdout=subprocess.PIPE)
        children.append(child)
        assert child.stdout is not None
        assert child.stdout.readline() == b"up\n"
        return child

    yield begin
    for child in children:
        child.kill()
        child.communicate()


def mine(*children: subprocess.Popen[bytes]) -> list[Leftover]:
    """The leftovers among these processes; others on this box are none of the test's business."""
    pids = {child.pid for child in children}
    return [one for one in find_leftovers().found if one.process.pid in pids]


def spared(child: subprocess.Popen[bytes]) -> str:
    return "".join(one.why for one in find_leftovers().spared if one.pid == child.pid)


@pytest.mark.requirement("PRE-22")
def test_PRE_22_a_leftover_ends_after_TERM_and_decoys_live(start: Start, tmp_path: Path) -> None:
    old = make_run(tmp_path, RUN, ended())
    job = start()
    live = make_run(tmp_path, OTHER, running(job=living_process(job.pid)), supervisor=living_process(os.getpid()))
    left, unmarked, other = start(old), start(), start(live)
    found = mine(left, unmarked, other)
    assert [(one.process.pid, one.run_id) for one in found] == [(left.pid, RUN)]
    done = end_leftovers(found, audit=str(tmp_path / "audit.jsonl"))
    assert [end.outcome for end in done] == ["ended"]
    assert left.wait(LIMIT_S) == -signal.SIGTERM
    assert [child.poll() for child in (unmarked, other, job)] == [None, None, None]
    lines = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert [line["event"] for line in lines] == ["begin", "ended"]
    assert lines[1]["process"]["pid"] == left.pid


def test_one_that_ignores_TERM_is_killed_after_the_grace(start: Start, tmp_path: Path) -> None:
    left = start(make_run(tmp_path, RUN, ended()), program=STUBBORN)
    (done,) = end_leftovers(mine(left), grace_s=0.2, audit=str(tmp_path / "audit"))
    assert done.outcome == "killed"
    assert left.wait(LIMIT_S) == -signal.SIGKILL


def test_a_stopped_leftover_is_woken_to_end(start: Start, tmp_path: Path) -> None:
    left = start(make_run(tmp_path, RUN, ended()))
    left.send_signal(signal.SIGSTOP)
    (done,) = end_leftovers(mine(left), grace_s=10.0, audit=str(tmp_path / "audit"))
    assert done.outcome == "ended"


@pytest.mark.requirement("PROC-08")
def test_B_69_a_number_that_changed_hands_between_look_and_act_is_not_signalled(start: Start, tmp_path: Path) -> None:
    run_dir = make_run(tmp_path, RUN, ended())
    left, decoy = start(run_dir), start()
    (one,) = mine(left)
    stale = replace(one, process=replace(one.process, pid=decoy.pid))
    (done,) = end_leftovers([stale], audit=str(tmp_path / "audit"))
    assert done.outcome == "gone"
    assert decoy.poll() is None
    # Even with the decoy's own start time it lacks the marker.
    (done,) = end_leftovers([replace(one, process=living_process(decoy.pid))], audit=str(tmp_path / "audit"))
    assert done.outcome == "spared"
    assert decoy.poll() is None
    assert left.poll() is None


def test_a_run_that_came_back_to_life_between_look_and_act_is_spared(start: Start, tmp_path: Path) -> None:
    run_dir = make_run(tmp_path, RUN, ended())
    left = start(run_dir)
    found = mine(left)
    make_run(tmp_path, RUN, running(job=living_process(left.pid)), attempt=2, supervisor=living_process(os.getpid()))
    (done,) = end_leftovers(found, audit=str(tmp_path / "audit"))
    assert done.outcome == "spared"
    assert left.poll() is None


def test_a_live_runs_supervisor_started_inside_an_ended_run_is_spared(start: Start, tmp_path: Path) -> None:
    inner = start(make_run(tmp_path, RUN, ended()))
    make_run(tmp_path, OTHER, running(), supervisor=living_process(inner.pid))
    assert mine(inner) == []
    assert OTHER in spared(inner)


@pytest.mark.requirement("PROC-08")
def test_what_another_live_run_descends_from_is_spared_wherever_that_run_lies(tmp_path: Path) -> None:
    """As a supervisor started inside an ended run, of a run in a place that is not remembered."""
    outer = make_run(tmp_path, RUN, ended())
    place = tmp_path / "forgotten"
    place.mkdir()
    live = make_run(place, OTHER, running(job=living_process(os.getpid())), supervisor=living_process(os.getpid()))
    begin = f"import os, subprocess, sys; subprocess.Popen([sys.executable, '-c', {SLEEPER!r}], env=dict(os.environ, "
    program = f"{begin}HOLDFAST_RUN_ID={OTHER!r}, HOLDFAST_RUN_DIR={live!r})).wait()"
    environ = {**os.environ, "HOLDFAST_RUN_ID": RUN, "HOLDFAST_RUN_DIR": outer, "HOLDFAST_ATTEMPT": "1"}
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, start_new_session=True) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == b"up\n"
            assert mine(child) == []
            assert f"of {OTHER}, which is not over" in spared(child)
        finally:
            os.killpg(child.pid, signal.SIGKILL)


def test_runs_below_a_directory_are_found_through_a_link_to_it(start: Start, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "link").symlink_to("runs")
    left = start(make_run(tmp_path / "runs", RUN, ended()))
    found = find_leftovers(within=f"{tmp_path}/link/").found
    assert [one.process.pid for one in found] == [left.pid]
    assert find_leftovers(within=str(tmp_path)).found == ()


def test_a_grace_of_months_is_waited_for(start: Start, tmp_path: Path) -> None:
    left = start(make_run(tmp_path, RUN, ended()))
    (done,) = end_leftovers(mine(left), grace_s=1e7, audit=str(tmp_path / "audit"))
    assert done.outcome == "ended"


def test_what_proves_nothing_is_spared_with_the_reason(start: Start, tmp_path: Path) -> None:
    gone = start(str(tmp_path / RUN))
    assert "cannot be seen" in spared(gone)
    linked = make_run(tmp_path / "far", OTHER, ended())
    (tmp_path / OTHER).symlink_to(linked)
    assert "a link" in spared(start(str(tmp_path / OTHER)))
    wrong = make_run(tmp_path, "20251120-100003-boot-0a1d", ended(), boot="another-boot")
    assert "before this box was started" in spared(start(wrong))
    unreadable = make_run(tmp_path, "20251120-100004-torn-0a1e", running())
    with open(f"{unreadable}/attempts/1/state.json", "w", encoding="utf-8") as file:
        file.write("{")
    child = start(unreadable)
    assert mine(child) == []
    torn = make_run(tmp_path, "20251120-100005-half-0a1f", ended())
    os.unlink(f"{torn}/attempts/1/exit.json")
    assert "not completely on record" in spared(start(torn))
    bad = start(str(tmp_path / "not-a-run-id"))
    assert "names no run directory" in spared(bad)


def test_a_marker_that_names_another_runs_directory_proves_nothing(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path, RUN, ended())
    environ = {**os.environ, "HOLDFAST_RUN_ID": OTHER, "HOLDFAST_RUN_DIR": run_dir, "HOLDFAST_ATTEMPT": "1"}
    with subprocess.Popen([sys.executable, "-c", SLEEPER], env=environ, stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            child.stdout.readline()
            assert mine(child) == []
            assert "names no run directory" in spared(child)
        finally:
            child.kill()


def test_a_run_made_after_the_process_began_is_no_home_of_it(start: Start, tmp_path: Path) -> None:
    run_dir = make_run(tmp_path, RUN, ended())
    with open(f"{run_dir}/run.json", encoding="utf-8") as file:
        record = json.load(file)
    record["created_at"] = "2999-01-01T00:00:00.000Z"
    with open(f"{run_dir}/run.json", "w", encoding="utf-8") as file:
        json.dump(record, file)
    assert "older than the run" in spared(start(run_dir))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another account's process")
def test_another_accounts_process_is_never_looked_at(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path, RUN, ended())
    environ = {**os.environ, "HOLDFAST_RUN_ID": RUN, "HOLDFAST_RUN_DIR": run_dir, "HOLDFAST_ATTEMPT": "1"}
    child = subprocess.Popen(["sleep", "600"], env=environ, user=65534)
    try:
        wait_until(lambda: os.stat(f"/proc/{child.pid}").st_uid == 65534)
        assert mine(child) == []
        assert spared(child) == ""
    finally:
        child.kill()
        child.wait()


def test_without_a_record_of_it_nothing_is_ended(start: Start, tmp_path: Path) -> None:
    left = start(make_run(tmp_path, RUN, ended()))
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="nothing was ended"):
        end_leftovers(mine(left), audit=str(tmp_path / "file/audit"))
    assert left.poll() is None


def test_our_own_ancestors_are_spared(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = start(make_run(tmp_path, RUN, ended()))
    monkeypatch.setattr(os, "getpid", lambda: left.pid)
    assert mine(left) == []
    assert "started from it" in spared(left)


@pytest.mark.requirement("GPUH-07")
def test_B_65_a_healthy_trainer_in_a_namespace_of_its_own_is_no_leftover(start: Start, tmp_path: Path) -> None:
    namespaced = ["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-c", SLEEPER]
    if subprocess.run(["unshare", "--pid", "--fork", "true"], capture_output=True, check=False).returncode:
        pytest.skip("no PID namespace to be had here")
    live = make_run(tmp_path, OTHER, running(job=living_process(os.getpid())), supervisor=living_process(os.getpid()))
    environ = {**os.environ, "HOLDFAST_RUN_ID": OTHER, "HOLDFAST_RUN_DIR": live, "HOLDFAST_ATTEMPT": "1"}
    with subprocess.Popen(namespaced, env=environ, stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == b"up\n"
            seen = find_leftovers()
            assert OTHER not in {one.run_id for one in seen.found} | {one.run_id for one in seen.spared}
        finally:
            child.kill()
