"""Following a run: its bytes, its end, its exit code; and that leaving it never hurts it."""

from __future__ import annotations

import os
import signal
from getpass import getuser
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.agent.view.observe import observe_run
from holdfast.cli.run import here
from holdfast.cli.run.wish import RunWish
from holdfast.host.clock import utc_now
from holdfast.host.files import files
from holdfast.host.process.processes import identify_self
from holdfast.model import wire
from holdfast.model.job import JobSpec
from holdfast.model.lease import BusyReason, Witness
from holdfast.model.run import Outcome, Preflight, RequestKind, Waiting
from holdfast.platforms.local.start import SubmittedRun
from tests.cli.live import STUBBORN, live_run, started
from tests.rundirs import ended, make_run, write
from tests.waiting import LIMIT_S, wait_until

if TYPE_CHECKING:
    import subprocess

    from tests.cli.conftest import Command

pytestmark = pytest.mark.cli


def read_until(process: subprocess.Popen[str], text: str) -> str:
    """Lines of standard error up to the one with `text`."""
    assert process.stderr is not None
    seen = ""
    while text not in seen:
        line = process.stderr.readline()
        assert line, f"ended without {text!r}: {seen}"
        seen += line
    return seen


@pytest.mark.parametrize("code", [0, 3, *(pytest.param(code, marks=pytest.mark.slow) for code in (1, 77, 255))])
@pytest.mark.requirement("PROC-05")
def test_run_passes_the_jobs_bytes_and_code_through(holdfast: Command, code: int) -> None:
    done = holdfast("run", "--", "sh", "-c", f"printf 'no newline'; exit {code}")
    assert done.code == code
    assert done.out == "no newline"
    assert f"(exit {code})" in done.err
    assert "holdfast show" in done.err


@pytest.mark.slow
def test_an_ended_run_is_printed_and_summarised(holdfast: Command) -> None:
    run_dir = make_run(os.environ["HOLDFAST_RUNS"], state=ended(Outcome.FAILED, 9))
    write(f"{wire.attempt_dir(run_dir, 1)}/{wire.OUTPUT}", "one\ntwo\nthree\n")
    done = holdfast("attach", run_dir)
    assert (done.code, done.out) == (9, "one\ntwo\nthree\n")
    assert len(done.err.splitlines()) == 3
    assert holdfast("attach", "-n", "1", "digits").out == "three\n"
    value = holdfast("attach", "--json", "digits").json()
    assert (value["condition"], value["exit_code"]) == ("failed", 9)


@pytest.mark.slow
@pytest.mark.requirement("PROC-12")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGHUP, 129), (signal.SIGTERM, 143)])
def test_PROC_12_losing_the_terminal_only_detaches(holdfast: Command, number: int, code: int) -> None:
    with live_run(holdfast) as run, started("attach", run.run_id) as follower:
        assert follower.stdout is not None
        assert follower.stdout.readline() == "ready\n"
        follower.send_signal(number)
        assert follower.wait(LIMIT_S) == code
        assert run.look().condition == "running"
        assert run.look().desired is None


@pytest.mark.slow
def test_a_reader_that_leaves_only_detaches(holdfast: Command) -> None:
    body = "echo ready; while :; do echo more; sleep 0.05; done"
    with live_run(holdfast, job=("sh", "-c", body)) as run, started("attach", run.run_id) as follower:
        assert follower.stdout is not None
        follower.stdout.readline()
        follower.stdout.close()
        follower.stdout = None
        assert follower.wait(LIMIT_S) == 141
        assert run.look().condition == "running"


@pytest.mark.slow
def test_interrupting_once_asks_twice_kills(holdfast: Command) -> None:
    with live_run(holdfast, "--grace", "10m", job=STUBBORN) as run, started("attach", run.run_id) as follower:
        assert follower.stdout is not None
        assert follower.stdout.readline() == "ready\n"
        follower.send_signal(signal.SIGINT)
        said = read_until(follower, "asked")
        assert "Ctrl-C again kills" in said
        run.wait_condition("stopping")
        follower.send_signal(signal.SIGINT)
        read_until(follower, "KILL")
        assert follower.wait(LIMIT_S) == 130
        assert run.wait_condition("stopped").exit_code == 130


def test_interrupting_a_third_time_leaves(holdfast: Command) -> None:
    # No supervisor will ever answer here: the pid in the state is the test's own, which knows nothing of it.
    run_dir = make_run(
        os.environ["HOLDFAST_RUNS"],
        state=Preflight(utc_now()),
        supervisor=identify_self(),
    )
    with started("attach", run_dir) as follower:
        wait_until(lambda: _catches_interrupts(follower.pid), what="the follower to listen")
        for text in ("asked", "KILL", "detached"):
            follower.send_signal(signal.SIGINT)
            read_until(follower, text)
        assert follower.wait(LIMIT_S) == 130
    desired = observe_run(run_dir).desired
    assert desired is not None
    assert desired.kind is RequestKind.STOP_NOW


def test_interrupting_before_anything_is_followed_asks_as_well(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What follows a run is loaded while it starts: Ctrl-C says the same then."""
    run_dir = make_run(os.environ["HOLDFAST_RUNS"], state=Preflight(utc_now()), supervisor=identify_self())
    taken = SubmittedRun(os.path.basename(run_dir), run_dir)
    monkeypatch.setattr(here, "start_here", lambda *_: taken)

    def interrupt(_text: str) -> None:
        for _ in range(3):
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(here, "note", interrupt)
    assert (
        here.run(JobSpec(name="true", command=("true",), workdir="/tmp"), RunWish(None, False, 0.0, None, False, False))
        == 130
    )
    said = capsys.readouterr().err
    assert [said.index(word) for word in ("asked", "KILL", "detached")] == sorted(
        said.index(word) for word in ("asked", "KILL", "detached")
    )
    desired = observe_run(run_dir).desired
    assert desired is not None
    assert desired.kind is RequestKind.STOP_NOW


def _catches_interrupts(pid: int) -> bool:
    """Whether HUP has a handler there (ours; Python sets none), by the kernel's mask of caught signals."""
    with open(f"/proc/{pid}/status") as file:
        caught = next(int(line.split()[1], 16) for line in file if line.startswith("SigCgt"))
    return bool(caught >> (signal.SIGHUP - 1) & 1)


@pytest.mark.requirement("PROC-15")
def test_a_supervisor_that_dies_is_told_and_the_job_goes_on_being_followed(holdfast: Command) -> None:
    with live_run(holdfast) as run, started("attach", run.run_id) as follower:
        assert follower.stdout is not None
        follower.stdout.readline()
        run.kill_supervisor()
        assert f"holdfast adopt {run.run_id}" in read_until(follower, "adopt")
        assert holdfast("stop", "--now", run.run_id).code == 0
        assert follower.wait(LIMIT_S) == 130


@pytest.mark.slow
def test_a_job_that_ends_without_a_supervisor_keeps_its_exit_code(holdfast: Command) -> None:
    body = 'echo ready; while [ ! -e "$HOLDFAST_ARTIFACT_DIR/go" ]; do sleep 0.05; done; exit 42'
    with live_run(holdfast, job=("sh", "-c", body)) as run, started("attach", run.run_id) as follower:
        assert follower.stdout is not None
        follower.stdout.readline()
        run.kill_supervisor()
        read_until(follower, "adopt")
        write(f"{run.run_dir}/artifacts/go", "")
        assert follower.wait(LIMIT_S) == 42
        assert run.look().condition == "finalizing, unsupervised"
        assert holdfast("reconcile").code == 0
        assert run.wait_condition("failed").exit_code == 42


@pytest.mark.slow
@pytest.mark.requirement("LEASE-05")
def test_a_waiting_run_says_for_whom_and_its_place_in_line(holdfast: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_SIMULATED_GPUS", "1x24GiB")
    asked = ("--gpus", "1", "--idle-window", "0s")
    with live_run(holdfast, *asked) as holder, started("run", *asked, "--wait", "1m", "--", "echo", "mine") as waiter:
        said = read_until(waiter, "in line")
        assert f"waiting for card 0, held by root, run {holder.run_id}" in said.replace(getuser(), "root")
        assert "you are number 1 of 1 in line" in said
        assert holdfast("stop", "--now", holder.run_id).code == 0
        assert waiter.wait(LIMIT_S) == 0
        assert waiter.stdout is not None
        assert waiter.stdout.read() == "mine\n"


def test_a_reason_to_wait_is_said_anew_when_it_is_another_not_when_it_is_older(holdfast: Command) -> None:
    def wait_for(pid: int, size: str, age: str) -> None:
        words = f"unmanaged: pid {pid} with {size} without a lease (anna: python train.py, since {age})"
        busy = BusyReason("GPU-1", Witness.CARD, words, pids=(pid,), index=0)
        content = {**state, "state": wire.encode(Waiting(utc_now(), blocked_by=(busy,)))}
        files.commit(path, wire.to_bytes(content))

    run_dir = make_run(os.environ["HOLDFAST_RUNS"], state=Waiting(utc_now()), supervisor=identify_self())
    path = f"{wire.attempt_dir(run_dir, 1)}/{wire.STATE}"
    state = wire.parse_object(Path(path).read_bytes(), path)
    wait_for(4242, "3.2 GiB", "9.8 s")
    with started("attach", run_dir) as follower:
        said = read_until(follower, "waiting for card 0")
        for size, age in (("3.2 GiB", "10 s"), ("900 MB", "59 s"), ("3.2 GiB", "1m00s"), ("12 GiB", "2d03h")):
            wait_for(4242, size, age)
            # Time to look: what the follower does not see it cannot say twice.
            holdfast("show", run_dir)
        wait_for(4243, "3.2 GiB", "2.0 s")
        said += read_until(follower, "4243")
    told = [line for line in said.splitlines() if "waiting for" in line]
    assert [line.partition(" without")[0] for line in told] == [
        "holdfast: waiting for card 0: unmanaged: pid 4242 with 3.2 GiB",
        "holdfast: waiting for card 0: unmanaged: pid 4243 with 3.2 GiB",
    ]
    assert told[0].endswith("(anna: python train.py, since 9.8 s)")


def test_a_run_that_nobody_supervises_is_not_followed_for_ever(holdfast: Command) -> None:
    run_dir = make_run(os.environ["HOLDFAST_RUNS"])
    write(f"{run_dir}/attempts/1/state.json", "{broken")
    done = holdfast("attach", run_dir)
    assert done.code == 69
    assert "state.json" in done.err


@pytest.mark.slow
def test_refusals_say_what_to_do(holdfast: Command) -> None:
    done = holdfast("run", "--", "/no/such/program")
    assert done.code == 78
    assert "/no/such/program" in done.err
