"""Real runs on boxes that lack what this one has: pidfds, a boot id, locks, events of other machines' writes."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.agent import detached
from holdfast.agent.view.observe import observe_run
from holdfast.agent.view.run_view import Presence, RunReach
from holdfast.host.clock import utc_now
from holdfast.host.files import files
from holdfast.host.files.filesystems import is_local
from holdfast.host.process import libc
from holdfast.model import wire
from holdfast.model.run import Outcome, RequestKind, RunRequest
from tests.agent.driving import Drive, Driven, job
from tests.other_kernels import make_python
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
LAUNCHER = str(ROOT / "tests/other_kernels.py")
Box = tuple[str, ...]


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], Box]:
    """Have every supervisor start on such a box; answers how any Python is started there."""

    def use(mode: str) -> Box:
        python: Box = (sys.executable, LAUNCHER, mode, sys.executable)
        if mode == "old-headers":
            python = (make_python(tmp_path / "python"),)
        monkeypatch.setattr(detached, "build_command", lambda *words: (*python, "-I", "-S", detached.ENTRY, *words))
        return python

    return use


def say(box: Box, *words: str, environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """A command of holdfast on that box."""
    paths = [str(ROOT / "src"), *(path for path in sys.path if path.endswith("site-packages"))]
    return subprocess.run(
        [*box, "-m", "holdfast", *words],
        env={**environ, "PYTHONPATH": ":".join(paths)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.requirement("PROC-08", "PROC-15")
@pytest.mark.parametrize("mode", ["pidfd-enosys", "pidfd-eperm", "old-headers"])
def test_a_run_is_started_adopted_and_stopped_without_pidfds(drive: Drive, on: Callable[[str], Box], mode: str) -> None:
    """Seen: AttributeError, exit 70, on each Python of conda and uv; the same on kernels before 5.3."""
    box = on(mode)
    run = drive(*job("stay"))
    run.ready()
    run.kill_supervisor()
    done = say(box, "adopt", run.run_id, environ=run.environ)
    assert done.returncode == 0, done
    assert run.supervised()
    done = say(box, "stop", run.run_id, environ=run.environ)
    assert done.returncode == 0, done
    end = run.ended()
    assert end.outcome is Outcome.STOPPED
    assert run.log() == ""
    run.assert_gone()


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["pidfd-enosys", "old-headers"])
def test_a_supervisor_without_pidfds_takes_a_dead_keepers_place(
    drive: Drive, on: Callable[[str], Box], mode: str
) -> None:
    on(mode)
    run = drive(*job("stay"))
    keeper = run.ready().keeper
    assert keeper is not None
    run.kill(keeper)
    end = run.ended()
    assert end.outcome in (Outcome.FAILED, Outcome.LOST)
    run.assert_gone()


# --- no boot id ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_box_without_a_boot_id_runs_adopts_and_stops(drive: Drive, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen: StorageError at create. None is made up: it is recorded as not known."""
    monkeypatch.setenv("HOLDFAST_BOOT_ID", "")
    run = drive(*job("stay"), environ={"HOLDFAST_BOOT_ID": ""})
    run.ready()
    assert run.state().box.boot_id == ""
    view = observe_run(run.run_dir)
    assert (view.reach, view.condition) == (RunReach.HERE, "running")
    run.kill_supervisor()
    view = observe_run(run.run_dir)
    assert view.condition == "running, unsupervised"
    assert view.supervisor is Presence.GONE, "its keeper is seen in this table, so the supervisor is not hidden"
    run.adopt()
    run.ask()
    assert run.ended().outcome is Outcome.STOPPED
    assert (observe_run(run.run_dir).reach, observe_run(run.run_dir).condition) == (RunReach.HERE, "stopped")


def test_without_a_boot_id_what_is_not_seen_is_not_lost(drive: Drive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_BOOT_ID", "")
    run = drive(*job("stay"), environ={"HOLDFAST_BOOT_ID": ""})
    keeper = run.ready().keeper
    assert keeper is not None
    run.kill_supervisor()
    run.kill(keeper)
    for process in run.alive():
        run.kill(process)
    view = observe_run(run.run_dir)
    assert (view.reach, view.condition, view.vanished) == (RunReach.ELSEWHERE, "running", False)
    assert "no boot id" in view.note


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to hide a file of /proc")
def test_the_kernels_file_may_be_missing(drive: Drive) -> None:
    hide = 'mount -t tmpfs none /proc/sys/kernel/random && exec "$@"'
    box = ("unshare", "--mount", "sh", "-c", hide, "hide", sys.executable)
    done = say(box, "run", "--", "true", environ=drive.environ)
    assert done.returncode == 0, done


# --- no locks --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["flock-enosys", "flock-enolck"])
def test_a_lock_that_cannot_be_taken_is_on_record_and_settles_nothing(
    drive: Drive, on: Callable[[str], Box], mode: str
) -> None:
    """Seen: it was taken for an open one, and a look ended a run that lived."""
    box = on(mode)
    run = drive(*job("stay"))
    state = run.ready()
    assert run.state().unlocked
    assert run.read(wire.MANIFEST)["unlocked"] is True
    assert run.events("no_lock")
    found = {item["id"]: item["level"] for item in run.read(wire.PREFLIGHT)["findings"]}
    assert found["run_directory.locks"] == "warn"
    run.kill_supervisor()
    assert state.keeper is not None
    run.kill(state.keeper)
    for process in run.alive():
        run.kill(process)
    view = observe_run(run.run_dir)
    assert (view.condition, view.vanished) == ("lost", True)
    assert f"holdfast adopt {run.run_id}" in view.note
    before = run.state()
    done = say(box, "reconcile", environ=run.environ)
    assert done.returncode == 1, done
    assert f"holdfast adopt {run.run_id}" in done.stdout + done.stderr
    assert run.state() == before
    assert say(box, "adopt", run.run_id, environ=run.environ).returncode == 0
    assert run.ended().outcome is Outcome.LOST


@pytest.mark.slow
def test_where_no_lock_tells_only_one_takes_an_attempt_up(drive: Drive, on: Callable[[str], Box]) -> None:
    on("flock-enosys")
    run = drive(*job("stay"))
    run.ready()
    run.kill_supervisor()
    for _ in range(4):
        run.start("adopt")
    wait_until(lambda: run.log().count("leaving") == 3, what=f"three have left; log: {run.log()}")
    assert run.supervised()
    assert len(run.events("supervisor_resumed")) == 1
    taken = sorted(name for name in os.listdir(run.directory) if name.startswith(f"{wire.TAKEN}."))
    assert len(taken) == 2, "at the start and at the adoption"
    run.ask()
    run.ended()


@pytest.mark.slow
def test_who_took_an_attempt_up_and_died_at_once_is_followed(drive: Drive, on: Callable[[str], Box]) -> None:
    on("flock-enosys")
    run = drive(*job("stay"))
    run.ready()
    run.kill_supervisor()
    version = run.state().version
    _leave_dead_taker(run, version)
    run.adopt()
    assert os.path.exists(f"{run.directory}/{wire.TAKEN}.{version}.1")
    run.ask()
    run.ended()


def _leave_dead_taker(run: Driven, version: int) -> None:
    state = run.state()
    dead = {"process": wire.encode(state.supervisor), "box": wire.encode(state.box)}
    with open(f"{run.directory}/{wire.TAKEN}.{version}.0", "wb") as file:
        file.write(wire.to_bytes(dead))


# --- a file system of several machines -------------------------------------------------------------------------------


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """One directory as two machines see it: where a run is, through sshfs; and where its server is."""
    places = ("/usr/lib/openssh/sftp-server", "/usr/lib/ssh/sftp-server")
    server = next((path for path in places if os.path.exists(path)), "")
    if shutil.which("sshfs") is None or not server or os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
        pytest.skip("needs root, sshfs and sftp-server")
    there, here = tmp_path / "server", tmp_path / "client"
    there.mkdir()
    here.mkdir()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        end = subprocess.Popen([server], stdin=theirs.fileno(), stdout=theirs.fileno())
        mount = ["sshfs", "-f", "-o", "passive,dir_cache=no", f"server:{there}", str(here)]
        client = subprocess.Popen(mount, stdin=ours.fileno(), stdout=ours.fileno())
    try:
        wait_until(lambda: os.path.ismount(here) or client.poll() is not None, what="it is mounted")
        assert client.poll() is None, "sshfs could not mount"
        yield str(here), str(there)
    finally:
        libc.umount(str(here), flags=libc.MNT_DETACH)
        for process in (client, end):
            process.kill()
            process.wait()


@pytest.mark.slow
def test_a_wish_that_another_machine_writes_is_seen(drive: Drive, shared: tuple[str, str]) -> None:
    """Seen: a stop from the login node was not seen in 24 s: inotify tells of local writes alone."""
    here, there = shared
    assert not is_local(here)
    assert is_local(there)
    run = drive(*job("stay"), root=f"{here}/runs")
    run.ready()
    wish = RunRequest(RequestKind.STOP, "login", utc_now(), "", run.state().generation)
    files.commit(f"{there}/runs/{run.run_id}/{wire.DESIRED}", wire.to_bytes(wish))
    end = run.ended()
    assert end.outcome is Outcome.STOPPED
    assert end.request is not None
    assert end.request.by == "login"
