"""The job's output and our records on disks that are fine, full, read-only and gone; and when whoever reads it dies."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from holdfast.host.files import fallback
from holdfast.host.job.output import read_lost_output
from holdfast.host.process import libc
from holdfast.model import wire
from holdfast.model.job import DiskNeeds, IsolationLevel
from holdfast.model.run import Outcome, RequestKind
from tests.agent.driving import Drive, Driven, job
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.process

LINE_BYTES = len(b"line 000000000 of a job that talks a lot\n")


def assert_whole(run: Driven, least_bytes: int) -> None:
    """Every line that `flood` wrote is there, in order, and nothing else behind the word ready."""
    lines = run.output().splitlines()
    lines = lines[1:] if lines[0] == b"ready" else lines
    assert lines.pop() == b"the last line"
    assert [int(line.split()[1]) for line in lines] == list(range(len(lines)))
    assert len(lines) * LINE_BYTES >= least_bytes


@pytest.mark.slow
@pytest.mark.requirement("OBS-07")
@pytest.mark.parametrize("level", [IsolationLevel.PID_NAMESPACE, IsolationLevel.SUBREAPER])
def test_OBS_07_output_is_the_jobs_own_bytes(drive: Drive, level: IsolationLevel) -> None:
    run = drive(*job("flood", 3_000_000, 5), containment=level)
    assert run.ended().exit_code == 5
    assert_whole(run, 3_000_000)


@pytest.mark.slow
@pytest.mark.requirement("OBS-13")
def test_OBS_13_output_is_capped_and_keeps_head_and_tail(drive: Drive) -> None:
    cap = 256 * 1024
    run = drive(*job("flood", 5_000_000), output_max_bytes=cap)
    assert run.ended().exit_code == 0
    data = run.output()
    assert len(data) <= cap + (1 << 16)
    assert data.startswith(b"line 000000000 ")
    assert data.endswith(b"the last line\n")
    assert b"bytes were cut here" in data


def test_a_pipe_that_the_job_put_in_the_place_of_its_output_stops_nobody(drive: Drive) -> None:
    run = drive("sh", "-c", f'cd "${{HOLDFAST_HEARTBEAT%/*}}"; rm {wire.OUTPUT}; mkfifo {wire.OUTPUT}')
    assert run.ended().outcome is Outcome.SUCCEEDED


@pytest.mark.requirement("PROC-05", "OBS-07")
@pytest.mark.parametrize("level", [IsolationLevel.SUBREAPER, IsolationLevel.PROCESS_GROUP])
def test_output_goes_on_when_the_keeper_is_killed(drive: Drive, level: IsolationLevel) -> None:
    run = drive(*job("speak_when_told", f"{drive.workdir}/go", 2_000_000), containment=level)
    run.kill(run.ready().keeper)
    wait_until(lambda: run.events("keeper_lost"))
    with open(f"{drive.workdir}/go", "w"):
        pass
    assert run.ended().exit_code == 7
    assert_whole(run, 2_000_000)


@pytest.mark.requirement("PROC-14")
def test_output_goes_on_when_the_keeper_is_killed_under_an_adopted_run(drive: Drive) -> None:
    run = drive(*job("speak_when_told", f"{drive.workdir}/go", 2_000_000), containment=IsolationLevel.SUBREAPER)
    state = run.ready()
    run.kill_supervisor()
    run.adopt()
    run.kill(state.keeper)
    wait_until(lambda: run.events("keeper_lost"))
    with open(f"{drive.workdir}/go", "w"):
        pass
    run.ended()
    assert_whole(run, 2_000_000)


@pytest.mark.requirement("PROC-14")
def test_a_job_that_talks_while_nobody_listens_goes_on_and_is_heard_later(drive: Drive) -> None:
    size = 500_000
    run = drive(*job("speak_when_told", f"{drive.workdir}/go", size), containment=IsolationLevel.SUBREAPER)
    state = run.ready()
    run.kill_supervisor()
    run.kill(state.keeper)
    with open(f"{drive.workdir}/go", "w"):
        pass
    # It fits into the pipe: no reader, no SIGPIPE. Once the job has left, what it said lives as long as the pipe does.
    run.adopt()
    run.ended()
    said = run.output()
    assert said.startswith(b"ready\n")


@pytest.mark.slow
@pytest.mark.requirement("OBS-07")
def test_a_job_that_moves_its_output_elsewhere_is_not_read_there(drive: Drive) -> None:
    program = (
        "import os, time\nos.write(1, b'ready\\n')\n"
        f"fd = os.open({drive.workdir + '/elsewhere'!r}, os.O_RDWR | os.O_CREAT)\nos.write(fd, b'not yours')\n"
        "os.lseek(fd, 0, 0)\nos.dup2(fd, 1)\nos.dup2(fd, 2)\ntime.sleep(600)\n"
    )
    run = drive(job()[0], "-I", "-S", "-c", program, containment=IsolationLevel.SUBREAPER)
    state = run.ready()
    wait_until(lambda: os.readlink(f"/proc/{state.job.process.pid}/fd/2").endswith("elsewhere"))
    run.kill_supervisor()
    run.adopt()
    run.kill(state.keeper)
    wait_until(lambda: run.events("keeper_lost"))
    run.ask(RequestKind.STOP_NOW)
    run.ended()
    assert run.output() == b"ready\n"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[str], str]]:
    """Makes tmpfs mounts of a size."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    mounted: list[str] = []

    def make(size: str) -> str:
        path = str(tmp_path / f"disk-{len(mounted)}")
        os.mkdir(path, 0o700)
        libc.mount("tmpfs", path, kind="tmpfs", options=f"size={size},mode=0700")
        mounted.append(path)
        return path

    yield make
    for path in mounted:
        libc.umount(path, flags=libc.MNT_DETACH)


NO_DISK = DiskNeeds(min_free_bytes=0, min_free_inodes=0)


@pytest.mark.requirement("OBS-11")
def test_OBS_11_a_full_disk_costs_output_but_not_the_job(drive: Drive, small_disk: Callable[[str], str]) -> None:
    disk = small_disk("1m")
    run = drive.create(*job("flood", 3_000_000, 6), root=f"{disk}/runs", disk=NO_DISK, output_max_bytes=1 << 30)
    run.start()
    end = run.ended()
    assert (end.outcome, end.exit_code) == (Outcome.FAILED, 6)
    assert fallback.directory(run.run_id, 1) is not None
    assert run.read(wire.STATE)["state"]["exit_code"] == 6, "whichever place has it"
    assert run.read(wire.STATUS)["code"] == 6
    assert run.read(wire.EXIT)["exit_code"] == 6
    run.assert_gone()


@pytest.mark.requirement("OBS-11")
def test_OBS_11_a_success_says_which_of_its_output_was_lost(drive: Drive, small_disk: Callable[[str], str]) -> None:
    """The disk takes no note of it in the log, nor a record; and nothing is free until the end."""
    disk, size = small_disk("1m"), 3_000_000
    run = drive.create(*job("flood", size), root=f"{disk}/runs", disk=NO_DISK, output_max_bytes=1 << 30)
    run.start()
    end = run.ended()
    assert end.outcome is Outcome.SUCCEEDED
    lost = read_lost_output(run.run_id, 1, run.directory)
    assert lost is not None
    assert lost.offset == len(run.output())
    assert lost.offset + lost.lost_bytes >= size
    assert end.warnings == (f"output.lost: {lost.describe()}",)
    (finding,) = run.read(wire.POSTFLIGHT)["findings"]
    assert finding["level"] == "warn"
    assert f"df {run.run_dir}" in finding["remedy"]


@pytest.mark.requirement("OBS-11")
def test_OBS_11_records_come_home_when_there_is_room_again(drive: Drive, small_disk: Callable[[str], str]) -> None:
    disk = small_disk("1m")
    run = drive.create(*job("leave_when_told", f"{drive.workdir}/go", 8), root=f"{disk}/runs", disk=NO_DISK)
    run.start()
    run.ready()
    with open(f"{disk}/filler", "wb", buffering=0) as file:
        try:
            while file.write(b"x" * 4096):
                pass
        except OSError:
            pass
    os.unlink(f"{disk}/filler")
    with open(f"{drive.workdir}/go", "w"):
        pass
    assert run.ended().exit_code == 8
    for name in (wire.STATE, wire.STATUS, wire.EXIT):
        assert os.path.exists(run.path(name))
    aside = fallback.directory(run.run_id, 1)
    assert aside is not None
    assert not os.path.exists(aside)


@pytest.mark.slow
@pytest.mark.requirement("OBS-11")
def test_OBS_11_a_run_directory_that_turns_read_only_does_not_end_the_job(drive: Drive) -> None:
    if os.geteuid() != 0:
        pytest.skip("a read-only bind mount needs root")
    run = drive(*job("leave_when_told", f"{drive.workdir}/go", 4))
    run.ready()
    libc.mount(run.run_dir, run.run_dir, flags=libc.MS_BIND)
    try:
        libc.mount("none", run.run_dir, flags=libc.MS_BIND | libc.MS_REMOUNT | libc.MS_RDONLY)
        with open(f"{drive.workdir}/go", "w"):
            pass
        assert run.ended().exit_code == 4
        assert run.read(wire.EXIT)["exit_code"] == 4
    finally:
        libc.umount(run.run_dir, flags=libc.MNT_DETACH)
    run.assert_gone()


@pytest.mark.slow
@pytest.mark.requirement("OBS-11")
def test_OBS_11_a_directory_that_vanishes_for_long_is_survived_too(drive: Drive) -> None:
    run = drive(*job("leave_when_told", f"{drive.workdir}/go", 12))
    run.ready()
    os.rename(run.run_dir, f"{run.run_dir}.away")
    with open(f"{drive.workdir}/go", "w"):
        pass
    assert run.ended().exit_code == 12
    run.assert_gone()


@pytest.mark.requirement("OBS-03")
def test_OBS_03_no_half_written_record_is_ever_seen(drive: Drive) -> None:
    run = drive(*job("exit_with", 0))
    names = (wire.STATE, wire.MANIFEST, wire.EXIT, wire.STATUS)

    def all_parse() -> bool:
        for name in names:
            try:
                with open(run.path(name), "rb") as file:
                    wire.parse_object(file.read(), name)
            except FileNotFoundError:
                continue
        return run.kind() == "ended"

    wait_until(all_parse)
    run.ended()


def start_without_inotify(run: Driven) -> None:
    """Start the supervisor in a user namespace of its own in which not one inotify instance may be had."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            libc.unshare(libc.CLONE_NEWUSER)
            for name, content in (("setgroups", "deny"), ("uid_map", f"0 {UID} 1"), ("gid_map", f"0 {GID} 1")):
                with open(f"/proc/self/{name}", "w") as file:
                    file.write(content)
            with open("/proc/sys/user/max_inotify_instances", "w") as file:
                file.write("0")
            run.start()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


UID, GID = os.geteuid(), os.getegid()


@pytest.mark.slow
def test_without_inotify_the_supervisor_looks_by_itself(drive: Drive) -> None:
    run = drive.create(*job("stay"))
    start_without_inotify(run)
    run.ready()
    assert "no inotify" in run.log()
    run.ask()
    assert run.ended().outcome is Outcome.STOPPED


@pytest.mark.slow
@pytest.mark.requirement("PROC-11")
def test_a_terminal_outlives_its_keeper(drive: Drive) -> None:
    """Its controlling side is held by the supervisor too: no hang-up, nothing lost."""
    words = f"echo ready; while ! test -e {drive.workdir}/go; do sleep 0.02; done; echo later; exit 5"
    run = drive("sh", "-c", words, pty=True, containment=IsolationLevel.SUBREAPER)
    state = run.running()
    wait_until(lambda: b"ready" in run.output())
    run.kill(state.keeper)
    wait_until(lambda: run.events("keeper_lost"))
    with open(f"{drive.workdir}/go", "w"):
        pass
    assert run.ended().exit_code == 5
    assert b"later" in run.output()
