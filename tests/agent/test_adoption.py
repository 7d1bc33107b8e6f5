"""A supervisor that is killed anywhere is replaced by one that goes on: nothing is lost, nothing is started twice."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.agent.control.adopt import adopt
from holdfast.agent.queue.wait.run import code_of_gone
from holdfast.agent.supervise.job import JobControl
from holdfast.agent.supervise.recorder import Recorder
from holdfast.agent.view import observe
from holdfast.host.clock import format_utc, monotonic_s, parse_utc
from holdfast.host.files import files
from holdfast.host.files.inotify import MOVED_TO, Inotify
from holdfast.host.process import pidfd, processes, witness
from holdfast.model import wire
from holdfast.model.job import IsolationLevel, OrphanPolicy
from holdfast.model.run import Ended, Outcome, RequestKind, Running
from tests.agent.driving import Drive, Driven, job, read_text, timeouts
from tests.agent.test_start import LEVELS, TWO_LEVELS
from tests.leaks import read_descriptors
from tests.other_kernels import has_pidfds
from tests.waiting import LIMIT_S, wait_until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process

KERNEL = tuple(map(int, os.uname().release.split(".")[:2]))


def tell(path: str) -> None:
    with open(path, "w", encoding="ascii"):
        pass


@pytest.mark.requirement("PROC-15", "PROC-23")
@pytest.mark.parametrize("level", LEVELS)
def test_PROC_15_23_a_job_goes_on_without_its_supervisor_and_is_adopted(drive: Drive, level: IsolationLevel) -> None:
    run = drive(*job("leave_when_told", f"{drive.workdir}/go", 33), containment=level)
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


@pytest.mark.slow
@pytest.mark.requirement("PROC-23")
@pytest.mark.parametrize("level", TWO_LEVELS)
def test_PROC_23_the_other_policy_ends_the_tree_with_its_supervisor(drive: Drive, level: IsolationLevel) -> None:
    run = drive(*job("tree", "setsid", "double_fork"), containment=level, on_supervisor_death=OrphanPolicy.KILL)
    run.ready()
    run.kill_supervisor()
    run.assert_gone()
    run.adopt()
    end = run.ended()
    assert end.status is not None
    assert end.status.signal in (signal.SIGTERM, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.requirement("PROC-14", "PROC-15", "OBS-03", "OBS-07")
def test_PROC_14_twenty_supervisors_are_killed_and_the_records_are_those_of_an_undisturbed_run(drive: Drive) -> None:
    """Each one is killed a little later after it has taken the run up: 0 to 19 of the job's lines (5 ms each) later."""
    run = drive(*job("count_until_told", f"{drive.workdir}/go", 21))
    before = run.ready()
    takers = []
    for moment in range(20):
        seen = run.output().count(b"\n")
        wait_until(lambda lines=seen + moment: run.output().count(b"\n") >= lines, what="the job talks on")  # type: ignore[misc]
        run.kill_supervisor()
        assert run.running() == before, "what was committed is what the first one saw"
        run.adopt()
        takers.append(run.supervisor().pid)
    tell(f"{drive.workdir}/go")
    end = run.ended()
    assert (end.outcome, end.exit_code) == (Outcome.FAILED, 21)
    assert end.status is not None
    assert (end.status.code, end.status.source) == (21, "keeper")
    assert (run.read(wire.EXIT)["exit_code"], run.read(wire.STATUS)["code"]) == (21, 21)
    lines = run.output().splitlines()
    assert (lines[0], lines[-1]) == (b"ready", b"the last line")
    assert lines[1:-1] == [b"line %09d of a job that talks a lot" % number for number in range(len(lines) - 2)]
    numbers = [event["seq"] for event in run.events()]
    assert numbers == sorted(set(numbers))
    once = ("supervisor_started", "exec", "running", "finalizing", "ended", "exit_recorded")
    assert {name: len(run.events(name)) for name in once} == dict.fromkeys(once, 1)
    told = [event["data"]["pid"] for event in run.events("supervisor_resumed")]
    assert told[-1] == takers[-1]
    # One that dies between its entry in the state and this line has done nothing else yet.
    assert told == [pid for pid in takers if pid in told]
    assert not [name for name in os.listdir(run.directory) if name.startswith(".")], "no temporary file stays"
    run.assert_gone()


@pytest.mark.requirement("PROC-05", "PROC-15")
@pytest.mark.parametrize("level", TWO_LEVELS)
def test_PROC_05_a_job_that_ends_without_a_supervisor_keeps_its_exit_code(drive: Drive, level: IsolationLevel) -> None:
    run = drive(*job("leave_when_told", f"{drive.workdir}/go", 29), containment=level)
    state = run.ready()
    run.kill_supervisor()
    tell(f"{drive.workdir}/go")
    wait_until(lambda: not processes.is_alive(state.keeper), what="the keeper leaves last")
    assert run.read(wire.STATUS)["code"] == 29
    run.adopt()
    assert run.ended().exit_code == 29
    run.assert_gone()


@pytest.mark.requirement("PROC-15", "POST-04")
@pytest.mark.parametrize(
    "level", [IsolationLevel.PID_NAMESPACE, pytest.param(IsolationLevel.SUBREAPER, marks=pytest.mark.slow)]
)
def test_POST_04_leftovers_are_ended_without_a_supervisor(drive: Drive, level: IsolationLevel) -> None:
    # On one level with a member that ignores TERM, which costs the keeper's whole patience.
    kinds = ("escapee", "double_fork") if level is IsolationLevel.SUBREAPER else ("setsid", "double_fork", "stopped")
    run = drive(*job("tree", *kinds), containment=level)
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
@pytest.mark.parametrize("level", [IsolationLevel.SUBREAPER, IsolationLevel.PROCESS_GROUP])
def test_PROC_14_supervisor_and_keeper_may_both_be_killed(drive: Drive, level: IsolationLevel) -> None:
    run = drive(*job("leave_when_told", f"{drive.workdir}/go", 31), containment=level)
    state = run.ready()
    run.kill_supervisor()
    run.kill(state.keeper)
    run.adopt()
    assert isinstance(run.state().state, Running)
    # It has taken the run up, but what ends before it holds the job's pidfd has nobody who could know how.
    if has_pidfds():
        wait_until(lambda: holds_pidfd(run.supervisor().pid, state.job.process.pid), what="the job is watched")
    tell(f"{drive.workdir}/go")
    end = run.ended()
    # The kernel keeps the status on a pidfd since Linux 6.15; an older one leaves nobody who could know it.
    if has_pidfds() and KERNEL >= (6, 15):
        assert end.exit_code == 31
    else:
        assert end.outcome is Outcome.LOST
    run.assert_gone()


@pytest.mark.requirement("PROC-14")
@pytest.mark.skipif(
    KERNEL < (6, 15) or not has_pidfds(), reason="the kernel keeps the status on a pidfd since Linux 6.15"
)
def test_PROC_14_a_job_that_is_reaped_between_two_looks_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what these lines ask for is there of the supervisor; the job is a real one, and its parent this test."""
    child = subprocess.Popen(["sh", "-c", "exit 31"])
    process = processes.identify(child.pid)
    assert process is not None
    held = pidfd.hold_process(process)
    assert held is not None
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    job, said, timers = JobControl.__new__(JobControl), list[Any](), list[Any]()
    context = SimpleNamespace(
        loop=SimpleNamespace(timers=SimpleNamespace(arm=lambda *words: timers.append(words))), emit=said.append
    )
    for name, value in {
        "_told_status": False, "_held_job": held, "_job": SimpleNamespace(process=process), "_containment": None,
        "_witness_until": monotonic_s() + 60, "_context": context, "_container": None,
    }.items():  # fmt: skip
        setattr(job, name, value)
    read = witness.read_kernel_record

    def read_and_reap(one: pidfd.HeldProcess) -> object:
        found = read(one)
        child.wait()
        return found

    monkeypatch.setattr(witness, "read_kernel_record", read_and_reap)
    job._settle_unwitnessed()
    held.close()
    assert (said, [words[0] for words in timers]) == ([], ["witness"]), "it is asked for once more"


@pytest.mark.requirement("PROC-15")
def test_PROC_15_everything_killed_is_lost_and_says_so(drive: Drive) -> None:
    run = drive(*job("stay"), containment=IsolationLevel.SUBREAPER)
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


@pytest.mark.gotcha("GEN6")
@pytest.mark.requirement("PROC-15")
def test_PROC_15_after_a_reboot_a_run_is_lost_and_not_started_again(drive: Drive) -> None:
    run = drive(*job("stay"), containment=IsolationLevel.SUBREAPER)
    state = run.ready()
    run.kill_supervisor()
    run.kill(state.keeper)
    run.kill(state.job.process)
    data = run.read(wire.STATE)
    with open(run.path(wire.STATE), "wb") as file:
        box = {**data["box"], "boot_id": "00000000-0000-4000-8000-000000000000"}
        file.write(wire.to_bytes({**data, "box": box}))
    run.start("adopt")
    end = run.ended()
    assert end.outcome is Outcome.LOST
    assert "restarted" in end.evidence
    assert len(run.events("exec")) == 1


@pytest.mark.slow
def test_an_adopted_job_keeps_its_deadline(drive: Drive) -> None:
    run = drive(*job("stay"), timeouts=timeouts(run=600))
    run.ready()
    run.kill_supervisor()
    # As if the job had run for ten minutes: a deadline that began anew would be ten minutes from now.
    data = run.read(wire.STATE)
    data["state"]["began"] -= 600.0
    with open(run.path(wire.STATE), "wb") as file:
        file.write(wire.to_bytes(data))
    run.adopt()
    end = run.ended()
    assert (end.outcome, end.exit_code) == (Outcome.TIMED_OUT, 124)
    assert run.events("running")[0]["data"]["since"] == data["state"]["since"]


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
    end = run.ended()
    assert end.outcome is Outcome.STOPPED
    assert read_text(f"{run.run_dir}/checkpoints/by-the-child") == "whole\n"


@pytest.mark.requirement("PROC-14")
@pytest.mark.parametrize("kind", [RequestKind.STOP, RequestKind.STOP_NOW])
def test_PROC_14_a_supervisor_killed_while_stopping_is_replaced_by_one_that_goes_on(
    drive: Drive, kind: RequestKind
) -> None:
    run = drive(*job("ignore_term"), grace_s=5.0)
    run.ready()
    run.ask()
    run.wait_kind("stopping")
    run.kill_supervisor()
    run.ask(kind)
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
            assert poller.poll(LIMIT_S * 1000), "no commit came"
            for event in queue.read():
                seen += 1
                if event.name == wire.STATE and victim is None:
                    victim = run.state().supervisor
            if seen >= number and victim is not None:
                return pidfd.send_signal(victim, signal.SIGKILL)
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
@pytest.mark.parametrize("level", TWO_LEVELS)
def test_PROC_14_without_state_and_manifest_a_living_job_is_found_by_its_marker(
    drive: Drive, level: IsolationLevel
) -> None:
    run = drive(*job("leave_when_told", f"{drive.workdir}/go", 18), containment=level)
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
        file.write(b'{"schema": 1, "plan": {"run_s": "soon"}, "cgroup": 7, "containment": {"level": "hope"}}')
    run.adopt()
    tell(f"{drive.workdir}/go")
    assert run.ended().exit_code == 20


def test_who_adopts_a_run_whose_job_has_ended_sees_its_end(drive: Drive) -> None:
    run = drive(*job("leave_when_told", f"{drive.workdir}/go", 0))
    state = run.ready()
    run.kill_supervisor()
    tell(f"{drive.workdir}/go")
    wait_until(lambda: not processes.is_alive(state.keeper), what="the keeper leaves last")
    gone = observe.observe_run(run.run_dir)
    assert (gone.condition, code_of_gone(gone)) == ("finalizing, unsupervised", 0)
    assert adopt(run.run_dir, environ=os.environ).condition == "succeeded"


@pytest.mark.parametrize("level", [IsolationLevel.SUBREAPER, IsolationLevel.PROCESS_GROUP])
def test_a_job_that_is_to_die_with_its_supervisor_dies_with_the_keeper_too(drive: Drive, level: IsolationLevel) -> None:
    run = drive(*job("stay"), containment=level, on_supervisor_death=OrphanPolicy.KILL)
    state = run.ready()
    supervisor = run.supervisor()
    # Stopped first, so that the keeper does not end the job itself.
    pidfd.send_signal(state.keeper, signal.SIGSTOP)
    run.kill(supervisor)
    run.kill(state.keeper)
    wait_until(lambda: not processes.is_alive(state.job.process), what="the kernel ends the job")


@pytest.mark.slow
@pytest.mark.requirement("PROC-15")
def test_a_wall_clock_that_jumped_moves_no_deadline_of_an_adopted_job(drive: Drive) -> None:
    """As if the wall clock had stood a day behind when the attempt was created and its job began."""
    run = drive(*job("stay"), timeouts=timeouts(run=600, total=600))
    run.ready()
    run.kill_supervisor()
    data = run.read(wire.STATE)
    data["boot_epoch_s"] -= 86400.0
    data["created_at"] = format_utc(parse_utc(data["created_at"]) - 86400.0)
    data["state"]["began"] -= 86400.0
    with open(run.path(wire.STATE), "wb") as file:
        file.write(wire.to_bytes(data))
    run.adopt()
    assert isinstance(run.running(), Running)
    wait_until(lambda: run.events("supervisor_resumed"), what="it is resumed")
    run.ask(RequestKind.STOP_NOW)
    assert run.ended().outcome is Outcome.STOPPED


def test_events_of_two_supervisors_are_numbered_on(tmp_path: Path) -> None:
    """The second one is made while the first still writes, and writes when that has gone."""
    os.makedirs(tmp_path / "run/attempts/1")
    first, second = (Recorder(str(tmp_path / "run"), "run", 1) for _ in range(2))
    first.event("one")
    first.event("two")
    files.append(first.path(wire.EVENTS), b'{"seq": 3, "ut')
    second.event("three")
    found = [json.loads(line)["seq"] for line in files.read_last_lines(first.path(wire.EVENTS)) if line.endswith(b"}")]
    assert found == [1, 2, 3]
