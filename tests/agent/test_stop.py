"""The stop ladder on real trees: gentle first, by measured grace, the whole tree, and honest about what survives."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from holdfast.agent.requests import write_request
from holdfast.host.clock import utc_now
from holdfast.host.process import processes
from holdfast.model.errors import NotPermitted
from holdfast.model.job import IsolationLevel
from holdfast.model.run import Finalizing, Outcome, RequestKind, RunRequest, Stopping, StopRung
from tests.agent.driving import Drive, job, read_text
from tests.agent.test_start import LEVELS, TWO_LEVELS
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.process

FAMILY = ("setsid", "double_fork", "ignore_term", "stopped", "escapee")


@pytest.mark.slow
@pytest.mark.requirement("PROC-02", "B-05", "B-07")
@pytest.mark.parametrize("level", LEVELS)
def test_PROC_02_nothing_of_a_hard_family_survives_on_any_level(drive: Drive, level: IsolationLevel) -> None:
    run = drive(*job("tree", *FAMILY), containment=level, grace_s=0.2)
    run.ready()
    assert len(run.marked()) == 1 + len(FAMILY)
    run.ask()
    end = run.ended()
    assert end.outcome is Outcome.STOPPED
    run.assert_gone()
    assert [event["event"] for event in run.events() if event["event"] in ("term_sent", "kill_sent")] == [
        "term_sent",
        "kill_sent",
    ]


@pytest.mark.slow
@pytest.mark.requirement("PROC-02")
@pytest.mark.parametrize("level", [IsolationLevel.AUTO, IsolationLevel.SUBREAPER])
def test_PROC_02_a_crowd_of_two_hundred_escapees_is_ended(drive: Drive, level: IsolationLevel) -> None:
    run = drive(*job("tree", "escapee:200"), containment=level, grace_s=0.1)
    run.ready()
    run.ask()
    assert run.ended().outcome is Outcome.STOPPED
    run.assert_gone()


@pytest.mark.slow
@pytest.mark.requirement("B-07")
@pytest.mark.parametrize("level", [IsolationLevel.PID_NAMESPACE, IsolationLevel.SUBREAPER])
def test_B_07_term_reaches_the_program_behind_a_shell(drive: Drive, level: IsolationLevel) -> None:
    words = " ".join(job("leave_on_term", 0))
    run = drive("sh", "-c", f"{words}; echo shell ends with $?", containment=level, grace_s=600.0)
    run.ready()
    run.ask()
    end = run.ended()
    assert end.outcome is Outcome.STOPPED
    assert not run.events("kill_sent") or run.events("kill_sent")[0]["data"]["processes"] == 0
    run.assert_gone()


@pytest.mark.requirement("PROC-06")
def test_PROC_06_a_job_that_obeys_is_not_killed(drive: Drive) -> None:
    run = drive(*job("leave_on_term", 0), grace_s=600.0)
    run.ready()
    run.ask(reason="enough")
    end = run.ended()
    assert end.status is not None
    assert end.status.code == 0
    assert not run.events("kill_sent")
    assert end.request is not None
    assert (end.request.by, end.request.detail) == ("a test", "enough")


@pytest.mark.slow
@pytest.mark.requirement("PROC-06", "B-06")
def test_PROC_06_grace_is_extended_while_the_checkpoint_grows(drive: Drive) -> None:
    run = drive(*job("save_slowly", 5.0), grace_s=2.0, grace_max_s=60.0)
    run.ready()
    run.ask()
    end = run.ended()
    assert end.status is not None
    assert end.status.code == 0, "it ended by itself"
    assert os.path.getsize(f"{run.run_dir}/checkpoints/last") > 0
    assert not os.path.exists(f"{run.run_dir}/checkpoints/last.partial")
    assert not run.events("kill_sent")


@pytest.mark.slow
@pytest.mark.requirement("PROC-06")
def test_PROC_06_the_extension_has_a_ceiling(drive: Drive) -> None:
    run = drive(*job("save_slowly", 600), grace_s=0.2, grace_max_s=1.0)
    run.ready()
    run.ask()
    end = run.ended()
    assert end.status is not None
    assert end.status.signal == signal.SIGKILL
    assert run.events("kill_sent")


@pytest.mark.slow
@pytest.mark.requirement("PROC-06")
def test_PROC_06_a_job_that_ignores_term_is_killed_after_its_grace_and_each_level_is_told(drive: Drive) -> None:
    run = drive(*job("ignore_term"), grace_s=0.5)
    run.ready()
    run.ask()
    end = run.ended()
    assert end.status is not None
    assert end.status.signal == signal.SIGKILL
    term, kill = run.events("term_sent")[0], run.events("kill_sent")[0]
    assert kill["monotonic_s"] - term["monotonic_s"] >= 0.5
    assert run.events("timer")[0]["data"] == {"timer": "grace"}


@pytest.mark.requirement("PROC-07", "B-06")
def test_PROC_07_grace_comes_from_the_measured_save(drive: Drive) -> None:
    run = drive(*job("beat", 40.0), grace_max_s=300.0)
    run.ready()
    run.ask()
    end = run.ended()
    assert end.outcome is Outcome.STOPPED
    stopping = run.events("stopping")[0]["data"]
    assert stopping["grace_s"] == 80.0


@pytest.mark.requirement("PROC-17")
def test_PROC_17_a_second_interrupt_kills_at_once(drive: Drive) -> None:
    run = drive(*job("ignore_term"), grace_s=600.0)
    run.ready()
    run.signal_supervisor(signal.SIGINT)
    run.wait_kind("stopping")
    run.signal_supervisor(signal.SIGINT)
    end = run.ended()
    assert end.outcome is Outcome.STOPPED
    assert end.request is not None
    assert end.request.force
    assert any(event["data"]["force"] for event in run.events("stop_requested"))


@pytest.mark.slow
@pytest.mark.requirement("PROC-17")
def test_PROC_17_stop_now_skips_the_grace_of_a_stop_under_way(drive: Drive) -> None:
    run = drive(*job("ignore_term"), grace_s=600.0)
    run.ready()
    run.ask()
    found = run.wait_kind("stopping")
    assert isinstance(found, Stopping)
    assert found.rung is StopRung.TERM
    run.ask(RequestKind.STOP_NOW)
    assert run.ended().outcome is Outcome.STOPPED


@pytest.mark.requirement("PROC-18")
def test_PROC_18_asking_twice_changes_nothing(drive: Drive) -> None:
    run = drive(*job("save_slowly", 0.5), grace_s=600.0)
    run.ready()
    run.ask()
    run.wait_kind("stopping")
    run.ask(by="somebody else")
    run.ask(by="a third one")
    end = run.ended()
    assert end.request is not None
    assert end.request.by == "a test"
    assert len(run.events("term_sent")) == 1
    run.ask()
    assert run.kind() == "ended"


@pytest.mark.requirement("PROC-18")
def test_PROC_18_another_account_is_refused(drive: Drive) -> None:
    if os.geteuid() != 0:
        pytest.skip("changing the account needs root")
    run = drive(*job("stay"))
    run.ready()
    # The whole way is opened, so that it is our own check that refuses and not a directory in between.
    path = run.directory
    while path != "/tmp":
        os.chmod(path, os.stat(path).st_mode | 0o055)
        path = os.path.dirname(path)
    # The state is for its owner alone: what the request needs of it is read before.
    desired = RunRequest(RequestKind.STOP, "a test", utc_now(), "", run.state().generation)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setgid(65534)
            os.setuid(65534)
            write_request(run.run_dir, desired)
        except NotPermitted as error:
            code = 0 if "another account" in str(error) + error.hint else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert run.kind() == "running"
    run.ask()
    run.ended()


@pytest.mark.slow
@pytest.mark.requirement("PROC-22")
@pytest.mark.parametrize("level", TWO_LEVELS)
def test_PROC_22_a_helper_outlives_the_thread_that_spawned_it_and_not_its_trainer(
    drive: Drive, level: IsolationLevel
) -> None:
    program = (
        "import subprocess, threading, time\n"
        "def spawn():\n  global child\n  child = subprocess.Popen(['sleep', '600'])\n"
        "thread = threading.Thread(target=spawn)\nthread.start()\nthread.join()\n"
        "print('ready' if child.poll() is None else 'dead', flush=True)\ntime.sleep(600)\n"
    )
    run = drive(job()[0], "-c", program, containment=level)
    leader = run.ready().job.process
    assert len(run.marked()) == 2
    run.kill(leader)
    end = run.ended()
    assert end.exit_code == 137
    run.assert_gone()


@pytest.mark.requirement("B-50")
def test_B_50_exit_code_0_after_a_stop_is_not_success(drive: Drive) -> None:
    run = drive(*job("leave_on_term", 0), artifacts=())
    run.ready()
    run.ask()
    end = run.ended()
    assert (end.outcome, end.exit_code) == (Outcome.STOPPED, 130)


@pytest.mark.slow
@pytest.mark.requirement("PROC-06")
def test_PROC_06_the_rest_of_the_tree_keeps_the_grace_when_the_leader_leaves(drive: Drive) -> None:
    run = drive(*job("child_saves", 0.6), grace_s=600.0)
    run.ready()
    run.ask()
    end = run.ended()
    assert end.outcome is Outcome.STOPPED
    assert read_text(f"{run.run_dir}/checkpoints/by-the-child") == "whole\n"
    assert not run.events("kill_sent")


@pytest.mark.slow
@pytest.mark.requirement("POST-04")
@pytest.mark.parametrize("level", LEVELS)
def test_POST_04_what_outlives_the_leader_is_found_named_and_ended(drive: Drive, level: IsolationLevel) -> None:
    run = drive(*job("leave_child", "double_fork", 4), containment=level)
    end = run.ended()
    assert end.exit_code == 4
    run.assert_gone()
    assert run.events("leftovers")[0]["data"]["count"] >= 1


@pytest.mark.requirement("B-43")
def test_B_43_no_signal_but_term_cont_and_kill_is_ever_sent(drive: Drive) -> None:
    run = drive(*job("count_handlers"), grace_s=600.0)
    run.ready()
    run.ask()
    run.ended()
    assert b"got signal" not in run.output()


@pytest.mark.requirement("PROC-10")
@pytest.mark.parametrize("level", TWO_LEVELS)
def test_PROC_10_no_zombies_are_left_during_and_after(drive: Drive, level: IsolationLevel) -> None:
    run = drive(*job("zombies", 50), containment=level)
    state = run.ready()
    line = {state.keeper.pid, state.job.process.pid, run.supervisor().pid}

    def zombies() -> list[int]:
        found = [processes.read_stat(pid) for pid in processes.list_pids()]
        return [stat.pid for stat in found if stat is not None and stat.state == "Z" and stat.ppid in line]

    wait_until(lambda: not zombies(), what="all are reaped")
    run.ask(RequestKind.STOP_NOW)
    run.ended()
    run.assert_gone()


@pytest.mark.requirement("PROC-09")
def test_PROC_09_a_stop_works_without_terminal_session_or_shell(drive: Drive) -> None:
    run = drive(*job("stay"), environ={"PATH": "/usr/bin:/bin", "TERM": "", "SHELL": ""})
    run.ready()
    run.ask()
    assert run.ended().outcome is Outcome.STOPPED


@pytest.fixture
def freezer(tmp_path: Path) -> Iterator[str]:
    """A v1 freezer group outside of the run's: what is frozen in it does not act on KILL, like sleep in the kernel."""
    root = "/sys/fs/cgroup/freezer"
    if not os.path.exists(f"{root}/cgroup.procs"):
        pytest.skip("no v1 freezer here")
    path = f"{root}/holdfast-test-{os.getpid()}-{os.urandom(3).hex()}"
    os.mkdir(path)
    yield path
    thaw(path)
    wait_until(lambda: not read_text(f"{path}/cgroup.procs"))
    os.rmdir(path)


def freeze(path: str) -> None:
    with open(f"{path}/freezer.state", "w") as file:
        file.write("FROZEN")


def thaw(path: str) -> None:
    with open(f"{path}/freezer.state", "w") as file:
        file.write("THAWED")


@pytest.mark.slow
@pytest.mark.requirement("PROC-16", "B-41")
def test_PROC_16_what_survives_kill_is_named_and_waited_for(drive: Drive, freezer: str) -> None:
    run = drive(*job("enter_frozen", freezer, 0), containment=IsolationLevel.SUBREAPER)
    pid = run.ready().job.process.pid
    freeze(freezer)
    run.ask(RequestKind.STOP_NOW)
    wait_until(lambda: getattr(run.state().state, "stuck", ()), what="the survivor is named")
    state = run.state().state
    assert isinstance(state, Finalizing)
    assert str(pid) in state.stuck[0]
    assert processes.is_alive(state.job.process)  # type: ignore[union-attr]
    thaw(freezer)
    end = run.ended()
    assert end.outcome is Outcome.STOPPED
    assert end.status is not None
    assert end.status.signal == signal.SIGKILL
    run.assert_gone()
