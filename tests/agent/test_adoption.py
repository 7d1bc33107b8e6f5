"""A supervisor that is killed anywhere is replaced by one that goes on: nothing is lost, nothing is started twice."""

from __future__ import annotations

import contextlib
import os
import select
import signal

import pytest

from holdfast.host import processes
from holdfast.host.inotify import MOVED_TO, Inotify
from holdfast.model import wire
from holdfast.model.job import Orphan, Rung
from holdfast.model.run import Ended, Outcome, Running, Wish
from tests.agent.driving import Drive, Driven, job, read_text, timeouts
from tests.agent.test_start import RUNGS, TWO_RUNGS
from tests.leaks import read_descriptors
from tests.waiting import LIMIT_S, wait_until

pytestmark = pytest.mark.process


def tell(path: str) -> None:
    with open(path, "w", encoding="ascii"):
        pass


@pytest.mark.requirement("PROC-15", "PROC-23")
@pytest.mark.parametrize("rung", RUNGS)
def test_PROC_15_23_a_job_goes_on_without_its_supervisor_and_is_adopted(drive: Drive, rung: Rung) -> None:
    run = drive(*job("leave_when_told", f"{drive.workdir}/go", 33), containment=rung)
    before = run.ready()
    run.kill_supervisor()
    assert processes.is_alive(before.job.process), "keep is the default"
    run.adopt()
    after = run.running()
    assert (after.job, after.keeper, after.since) == (before.job, before.keeper, before.since)
    tell(f"{drive.workdir}/go")
    end = run.ended()
    assert end.exit_code == 33
    assert len(run.events("exec")) == 1, "it was started once"
    run.assert_gone()


@pytest.mark.requirement("PROC-23")
@pytest.mark.parametrize("rung", TWO_RUNGS)
def test_PROC_23_the_other_policy_ends_the_tree_with_its_supervisor(drive: Drive, rung: Rung) -> None:
    run = drive(*job("tree", "setsid", "double_fork"), containment=rung, on_supervisor_death=Orphan.KILL)
    run.ready()
    run.kill_supervisor()
    run.assert_gone()
    run.adopt()
    end = run.ended()
    assert end.status is not None
    assert end.status.signal in (signal.SIGTERM, signal.SIGKILL)


@pytest.mark.requirement("PROC-23")
def test_PROC_23_a_change_of_image_is_not_a_death(drive: Drive) -> None:
    run = drive(*job("stay"), on_supervisor_death=Orphan.KILL)
    state = run.ready()
    wait_until(lambda: run.events("supervisor_resumed"), what="it changed its image")
    assert processes.is_alive(state.job.process)
    run.kill_supervisor()
    run.assert_gone()
    run.adopt()
    run.ended()


@pytest.mark.requirement("PROC-05", "PROC-15")
@pytest.mark.parametrize("rung", TWO_RUNGS)
def test_PROC_05_a_job_that_ends_without_a_supervisor_keeps_its_exit_code(drive: Drive, rung: Rung) -> None:
    run = drive(*job("leave_when_told", f"{drive.workdir}/go", 29), containment=rung)
    state = run.ready()
    run.kill_supervisor()
    tell(f"{drive.workdir}/go")
    wait_until(lambda: not processes.is_alive(state.keeper), what="the keeper leaves last")
    assert run.read(wire.STATUS)["code"] == 29
    run.adopt()
    assert run.ended().exit_code == 29
    run.assert_gone()


@pytest.mark.requirement("PROC-15", "POST-04")
@pytest.mark.parametrize("rung", [Rung.PID_NAMESPACE, pytest.param(Rung.SUBREAPER, marks=pytest.mark.slow)])
def test_POST_04_leftovers_are_ended_without_a_supervisor(drive: Drive, rung: Rung) -> None:
    # On one rung with a member that ignores TERM, which costs the keeper's whole patience.
    kinds = ("escapee", "double_fork") if rung is Rung.SUBREAPER else ("setsid", "double_fork", "stopped")
    run = drive(*job("tree", *kinds), containment=rung)
    state = run.ready()
    run.kill_supervisor()
    run.kill(state.job.process)
    wait_until(lambda: not processes.is_alive(state.keeper), what="the keeper has emptied the tree")
    assert run.marked() == []
    run.adopt()
    end = run.ended()
    assert end.status is not None
    assert end.status.signal == signal.SIGKILL


def holds_pidfd(owner: int, pid: int) -> bool:
    """Whether a process holds a pidfd of another one."""
    for descriptor in read_descriptors(owner):
        with contextlib.suppress(FileNotFoundError), open(f"/proc/{owner}/fdinfo/{descriptor}") as file:
            if f"Pid:\t{pid}\n" in file.read():
                return True
    return False


@pytest.mark.requirement("PROC-05", "PROC-14")
@pytest.mark.parametrize("rung", [Rung.SUBREAPER, Rung.PROCESS_GROUP])
def test_PROC_14_supervisor_and_keeper_may_both_be_killed(drive: Drive, rung: Rung) -> None:
    run = drive(*job("leave_when_told", f"{drive.workdir}/go", 31), containment=rung)
    state = run.ready()
    run.kill_supervisor()
    run.kill(state.keeper)
    run.adopt()
    assert isinstance(run.state().state, Running)
    # It has taken the run up, but what ends before it holds the job's pidfd has nobody who could know how.
    wait_until(lambda: holds_pidfd(run.supervisor().pid, state.job.process.pid), what="the job is watched")
    tell(f"{drive.workdir}/go")
    end = run.ended()
    # The kernel keeps the status on a pidfd since Linux 6.15; an older one leaves nobody who could know it.
    if tuple(map(int, os.uname().release.split(".")[:2])) >= (6, 15):
        assert end.exit_code == 31
    else:
        assert end.outcome is Outcome.LOST
    run.assert_gone()


@pytest.mark.requirement("PROC-15")
def test_PROC_15_everything_killed_is_lost_and_says_so(drive: Drive) -> None:
    run = drive(*job("stay"), containment=Rung.SUBREAPER)
    state = run.ready()
    run.kill_supervisor()
    run.kill(state.keeper)
    run.kill(state.job.process)
    # As long as it is a zombie the kernel can still be asked.
    wait_until(lambda: processes.read_stat(state.job.process.pid) is None, what="init has reaped it")
    run.adopt()
    end = run.ended()
    assert end.outcome is Outcome.LOST
    assert "nobody witnessed" in end.evidence
    assert len(run.events("exec")) == 1


@pytest.mark.requirement("PROC-15")
def test_PROC_15_after_a_reboot_a_run_is_lost_and_not_started_again(drive: Drive) -> None:
    run = drive(*job("stay"), containment=Rung.SUBREAPER)
    state = run.ready()
    run.kill_supervisor()
    run.kill(state.keeper)
    run.kill(state.job.process)
    data = run.read(wire.STATE)
    with open(run.path(wire.STATE), "wb") as file:
        file.write(wire.to_bytes({**data, "boot_id": "00000000-0000-4000-8000-000000000000"}))
    run.start("adopt")
    end = run.ended()
    assert end.outcome is Outcome.LOST
    assert "restarted" in end.evidence
    assert len(run.events("exec")) == 1


@pytest.mark.slow
def test_an_adopted_job_keeps_its_deadline(drive: Drive) -> None:
    run = drive(*job("stay"), timeouts=timeouts(run=2.5))
    began = run.ready().since
    run.kill_supervisor()
    run.adopt()
    end = run.ended()
    assert (end.outcome, end.exit_code) == (Outcome.TIMED_OUT, 124)
    stopping = run.events("stopping")[0]
    started = run.events("running")[0]
    assert began == started["data"]["since"]
    # A deadline that began anew would be a whole 2.5 s after the adoption.
    resumed = run.events("supervisor_resumed")[-1]
    assert stopping["monotonic_s"] - started["monotonic_s"] >= 2.4
    assert stopping["monotonic_s"] < max(resumed["monotonic_s"], started["monotonic_s"] + 0.9) + 2.5


@pytest.mark.slow
@pytest.mark.requirement("PROC-06")
def test_an_adopted_job_gets_its_grace(drive: Drive) -> None:
    run = drive(*job("save_slowly", 1.0), grace_s=600.0)
    run.ready()
    run.kill_supervisor()
    run.adopt()
    run.ask()
    end = run.ended()
    assert end.outcome is Outcome.STOPPED
    assert end.status is not None
    assert end.status.code == 0
    assert os.path.exists(f"{run.run_dir}/checkpoints/last")


@pytest.mark.slow
@pytest.mark.requirement("PROC-06")
def test_an_adopted_tree_keeps_its_grace_after_its_leader_left(drive: Drive) -> None:
    """A keeper without its first supervisor must not press on while another one leads the stop."""
    run = drive(*job("child_saves", 6.5), grace_s=600.0)
    run.ready()
    run.kill_supervisor()
    run.adopt()
    run.ask()
    end = run.ended(LIMIT_S)
    assert end.outcome is Outcome.STOPPED
    assert read_text(f"{run.run_dir}/checkpoints/by-the-child") == "whole\n"


@pytest.mark.requirement("PROC-14")
@pytest.mark.parametrize("wish", [Wish.STOP, Wish.STOP_NOW])
def test_PROC_14_a_supervisor_killed_while_stopping_is_replaced_by_one_that_goes_on(drive: Drive, wish: Wish) -> None:
    run = drive(*job("ignore_term"), grace_s=0.7)
    run.ready()
    run.ask()
    run.wait_kind("stopping")
    run.kill_supervisor()
    run.ask(wish)
    run.adopt()
    end = run.ended()
    assert end.outcome is Outcome.STOPPED
    assert end.request is not None
    assert end.request.by == "a test"
    run.assert_gone()


def watch_commits(run: Driven, number: int) -> bool:
    """KILL the supervisor right after its n-th commit in the attempt's directory; False when it made fewer."""
    queue, poller = Inotify(), select.poll()
    try:
        queue.add(run.directory, MOVED_TO)
        poller.register(queue.fileno(), select.POLLIN)
        run.start()
        seen = 0
        victim = None
        while True:
            assert poller.poll(20_000), "no commit came"
            for event in queue.read():
                seen += 1
                if event.name == wire.STATE and victim is None:
                    victim = run.state().supervisor
            if seen >= number and victim is not None:
                return processes.send_signal(victim, signal.SIGKILL)
            if isinstance(run.state().state, Ended):
                return False
    finally:
        queue.close()


@pytest.mark.requirement("PROC-14", "PROC-15", "OBS-03")
@pytest.mark.parametrize("number", range(1, 15))
def test_PROC_14_killed_at_every_commit_point_the_run_ends_as_it_should(drive: Drive, number: int) -> None:
    run = drive.create(*job("exit_with", 77), artifacts=())
    watch_commits(run, number)
    wait_until(lambda: not run.supervised(), what="the supervisor is dead")
    for name in os.listdir(run.directory):
        if name.endswith(".json"):
            run.read(name)
    run.adopt()
    end = run.ended()
    assert end.exit_code == 77, end
    assert run.read(wire.EXIT)["exit_code"] == 77
    assert len(run.events("exec")) <= 1
    run.assert_gone()


def resume(run: Driven) -> None:
    """As `Driven.adopt`, for a run whose state cannot be read before."""
    before = len(run.events("supervisor_resumed"))
    run.start("adopt")
    wait_until(lambda: len(run.events("supervisor_resumed")) > before, what=f"somebody took it up: {run.log()}")


@pytest.mark.requirement("PROC-14")
@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"schema": 1, "state": {"kind": "nonsense"}}', b"\0" * 4096])
def test_PROC_14_a_corrupt_state_is_rebuilt_and_the_job_is_not_started_again(drive: Drive, damage: bytes) -> None:
    run = drive(*job("leave_when_told", f"{drive.workdir}/go", 15))
    before = run.ready()
    run.kill_supervisor()
    with open(run.path(wire.STATE), "wb") as file:
        file.write(damage)
    resume(run)
    assert run.events("state_rebuilt")
    after = run.running()
    assert (after.job, after.keeper) == (before.job, before.keeper)
    tell(f"{drive.workdir}/go")
    assert run.ended().exit_code == 15
    assert len(run.events("exec")) == 1


@pytest.mark.requirement("PROC-14")
def test_PROC_14_a_corrupt_state_of_a_run_that_ended_meanwhile_is_rebuilt_from_its_status(drive: Drive) -> None:
    run = drive(*job("leave_when_told", f"{drive.workdir}/go", 16))
    state = run.ready()
    run.kill_supervisor()
    tell(f"{drive.workdir}/go")
    wait_until(lambda: not processes.is_alive(state.keeper))
    os.unlink(run.path(wire.STATE))
    resume(run)
    assert run.ended().exit_code == 16


@pytest.mark.requirement("PROC-14")
def test_PROC_14_a_corrupt_state_without_a_manifest_never_starts_the_job(drive: Drive) -> None:
    run = drive.create(*job("stay"))
    with open(run.path(wire.STATE), "wb") as file:
        file.write(b"garbage")
    resume(run)
    end = run.ended()
    assert end.outcome is Outcome.LOST
    assert run.events("exec") == []


@pytest.mark.requirement("PROC-14")
@pytest.mark.parametrize("rung", TWO_RUNGS)
def test_PROC_14_without_state_and_manifest_a_living_job_is_found_by_its_marker(drive: Drive, rung: Rung) -> None:
    run = drive(*job("leave_when_told", f"{drive.workdir}/go", 18), containment=rung)
    before = run.ready()
    run.kill_supervisor()
    os.unlink(run.path(wire.STATE))
    os.unlink(run.path(wire.MANIFEST))
    resume(run)
    assert run.events("state_rebuilt")[0]["data"]["source"] == "the process table"
    after = run.running()
    assert (after.job.process, after.keeper) == (before.job.process, before.keeper)
    tell(f"{drive.workdir}/go")
    assert run.ended().exit_code == 18
    run.assert_gone()


@pytest.mark.requirement("PROC-14")
def test_PROC_14_the_end_is_rebuilt_from_the_exit_record(drive: Drive) -> None:
    run = drive(*job("exit_with", 19))
    before = run.ended()
    with open(run.path(wire.STATE), "wb") as file:
        file.write(b"{")
    resume(run)
    after = run.ended()
    assert (after.exit_code, after.outcome, after.at) == (before.exit_code, before.outcome, before.at)
    assert len(run.events("exec")) == 1


@pytest.mark.requirement("PROC-14")
def test_PROC_14_a_damaged_manifest_does_not_stop_an_adoption(drive: Drive) -> None:
    run = drive(*job("leave_when_told", f"{drive.workdir}/go", 20))
    run.ready()
    run.kill_supervisor()
    with open(run.path(wire.MANIFEST), "wb") as file:
        file.write(b'{"schema": 1, "plan": {"run_s": "soon"}, "cgroup": 7, "containment": {"rung": "hope"}}')
    run.adopt()
    tell(f"{drive.workdir}/go")
    assert run.ended().exit_code == 20
