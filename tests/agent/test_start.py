"""How a job is started: identity from the child's side, a clean environment, exec errors, nothing inherited."""

from __future__ import annotations

import errno
import json
import os
import random
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.agent.supervise.job import JobControl
from holdfast.core.run.events import StartFailed
from holdfast.host.process import processes
from holdfast.model import wire
from holdfast.model.job import IsolationLevel, Priority
from holdfast.model.run import Outcome, Refusal, RequestKind
from tests.agent.driving import Drive, Driven, job
from tests.kernel_calls import list_open_files
from tests.waiting import wait_until

pytestmark = pytest.mark.process

LEVELS = (
    IsolationLevel.PID_NAMESPACE,
    IsolationLevel.CGROUP_V2,
    IsolationLevel.CGROUP_V1,
    IsolationLevel.SUBREAPER,
    IsolationLevel.PROCESS_GROUP,
)

TWO_LEVELS = (IsolationLevel.PID_NAMESPACE, IsolationLevel.SUBREAPER)
"""Where the keeper is process 1 of a namespace, and where it is an ordinary process: the two ways of things."""


def shown(run: Driven) -> dict[str, Any]:
    assert run.ended().exit_code == 0, run.log() + run.output().decode()
    found: dict[str, Any] = json.loads(run.output().splitlines()[0])
    return found


@pytest.mark.requirement("PROC-01", "PROC-03", "B-03")
@pytest.mark.parametrize("level", LEVELS)
def test_PROC_01_03_the_job_leads_its_own_session_and_says_so_itself(drive: Drive, level: IsolationLevel) -> None:
    run = drive(*job("stay"), containment=level)
    state = run.ready()
    pid = state.job.process.pid
    stat = processes.read_stat(pid)
    assert stat is not None
    assert (stat.pgid, stat.sid) == (pid, pid) == (state.job.pgid, state.job.sid)
    assert stat.start_ticks == state.job.process.start_ticks
    supervisor = processes.read_stat(run.supervisor().pid)
    assert supervisor is not None
    assert stat.pgid not in (supervisor.pgid, os.getpgid(0))
    assert stat.sid not in (supervisor.sid, os.getsid(0))
    assert stat.ppid == state.keeper.pid
    run.ask(RequestKind.STOP_NOW)
    assert run.ended().outcome is Outcome.STOPPED
    run.assert_gone()


@pytest.mark.slow
@pytest.mark.requirement("PROC-03", "B-03")
def test_PROC_03_twenty_starts_report_twenty_jobs_and_none_is_our_group(drive: Drive) -> None:
    runs = [drive(*job("stay")) for _ in range(20)]
    groups = []
    for run in runs:
        state = run.ready()
        groups.append(state.job.pgid)
        own = processes.read_stat(run.supervisor().pid)
        assert own is not None
        assert state.job.pgid not in (own.pgid, os.getpgid(0))
    assert len(set(groups)) == 20
    for run in runs:
        run.ask()
    for run in runs:
        assert run.ended().outcome is Outcome.STOPPED
        assert not run.log(), "no supervisor was hit by its own stop"


@pytest.mark.requirement("PROC-11", "B-61", "B-71")
def test_PROC_11_stdin_is_dev_null_and_reading_it_ends(drive: Drive) -> None:
    run = drive(*job("read_stdin"))
    assert run.ended().exit_code == 0
    assert run.output() == b"stdin /dev/null b'' tty=False\n"


@pytest.mark.requirement("PROC-11")
def test_PROC_11_a_pty_is_given_when_asked_for(drive: Drive) -> None:
    run = drive("sh", "-c", "test -t 0 && test -t 1 && echo terminal; exit 6", pty=True)
    assert run.ended().exit_code == 6
    assert b"terminal" in run.output()


@pytest.mark.gotcha("U2")
@pytest.mark.requirement("PROC-19", "B-30")
def test_PROC_19_the_callers_environment_and_the_jobs_own_arrive(drive: Drive) -> None:
    run = drive(*job("show"), environ={"PLAIN": "from the caller", "FOO": "caller"}, env={"FOO": "bar baz=1"})
    environ = shown(run)["environ"]
    assert (environ["PLAIN"], environ["FOO"]) == ("from the caller", "bar baz=1")
    assert environ["HOLDFAST_RUN_ID"] == run.run_id
    assert environ["HOLDFAST_RUN_DIR"] == run.run_dir
    assert environ["HOLDFAST_ATTEMPT"] == "1"


@pytest.mark.gotcha("U43")
@pytest.mark.requirement("RAIL-12", "B-70")
def test_RAIL_12_python_output_is_unbuffered(drive: Drive) -> None:
    program = "import time\nprint('line')\ntime.sleep(600)"
    run = drive(sys.executable, "-c", program)
    run.running()
    wait_until(lambda: run.output() == b"line\n", what="the line is in the log while the job sleeps")
    run.ask(RequestKind.STOP_NOW)
    run.ended()


def test_the_job_inherits_no_descriptor_and_no_signal_disposition(drive: Drive) -> None:
    facts = shown(drive(*job("show")))
    assert facts["fds"].keys() <= {"0", "1", "2", "3"}, "3 is the listing itself"
    assert facts["fds"]["0"] == "/dev/null"
    assert facts["fds"]["1"] == facts["fds"]["2"]
    # Python itself ignores SIGPIPE and SIGXFSZ (13 and 25). 32 and 33 are libc's own: no call of its sets them, so they
    # stay as they were inherited from whatever started the tests.
    assert int(facts["ignored"], 16) & ~(1 << 12 | 1 << 24 | 1 << 31 | 1 << 32) == 0
    assert int(facts["blocked"], 16) == 0


@pytest.mark.slow
def test_the_keeper_holds_nothing_of_the_supervisors(drive: Drive) -> None:
    run = drive(*job("stay"))
    state = run.ready()
    assert not [link for link in list_open_files(state.keeper.pid) if "supervisor.lock" in link or "inotify" in link]
    run.ask(RequestKind.STOP_NOW)
    run.ended()


@pytest.mark.slow
@pytest.mark.requirement("PROC-13", "PROC-25")
@pytest.mark.parametrize(
    ("command", "code", "words"),
    [(("/no/such/program",), 127, "No such file"), (("/etc/passwd",), 126, "Permission denied")],
)
def test_PROC_13_an_exec_that_fails_is_said_with_its_reason(
    drive: Drive, command: tuple[str, ...], code: int, words: str
) -> None:
    run = drive(*command)
    end = run.ended()
    assert end.outcome is Outcome.FAILED
    assert end.refusal is not None
    # Preflight may have seen it first; whoever says it names the command.
    assert end.exit_code in (code, 78)
    assert command[0] in end.refusal.message
    assert end.exit_code == 78 or words in end.refusal.message
    run.assert_gone()


def test_a_missing_workdir_is_an_error_with_words(drive: Drive) -> None:
    run = drive("true", workdir="/no/such/dir")
    end = run.ended()
    assert end.outcome is Outcome.FAILED
    assert end.refusal is not None
    assert "/no/such/dir" in end.refusal.message or "workdir" in end.refusal.message
    run.assert_gone()


@pytest.mark.slow
def test_low_priority_is_nice_and_normal_is_not(drive: Drive) -> None:
    polite = drive(*job("show"), priority=Priority.LOW)
    plain = drive(*job("show"), priority=Priority.NORMAL)
    assert shown(polite)["nice"] == max(10, os.nice(0))
    assert shown(plain)["nice"] == os.nice(0)


AWKWARD = (
    *("$HOME", "`id`", ";reboot", "a b", "'", '"', "|", "\n", "--", "-n", "*", "\\", "$(x)", "", "a=b"),
    *("é\U0001f600", "\x01\x7f"),
)


@pytest.mark.requirement("RAIL-13", "B-16")
def test_RAIL_13_arguments_arrive_as_they_were_given(drive: Drive) -> None:
    """Two hundred lists of awkward words, one behind the other: each word is one argument, whatever is in it."""
    draw = random.Random(13)
    words = ["".join(draw.choices(AWKWARD, k=draw.randint(0, 4))) for _ in range(200 * 5)]
    assert shown(drive(*job("show"), *words))["argv"] == words


@pytest.mark.gotcha("U34")
def test_a_job_that_cannot_be_told_to_begin_has_not_started() -> None:
    """Seen: an error of the pipe left the run in `starting`, with its cards."""

    def go() -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    control, said, watched = JobControl.__new__(JobControl), list[Any](), list[Any]()
    loop = SimpleNamespace(add=lambda *words: watched.append(words))
    for name, value in {
        "_started": SimpleNamespace(error_fd=0, go=go), "_hold_processes": lambda: None,
        "_context": SimpleNamespace(loop=loop, emit=said.append),
    }.items():  # fmt: skip
        setattr(control, name, value)
    control.let_go()
    refusal = Refusal("spawn", 71, "the job could not be told to begin: Input/output error", "look at the kernel's log")
    assert (said, watched) == ([StartFailed(refusal)], [])


@pytest.mark.requirement("OBS-01", "OBS-04")
def test_OBS_01_04_the_manifest_is_complete_before_the_job_starts_and_holds_no_secret(drive: Drive) -> None:
    secrets = {"WANDB_API_KEY": "abcdef01" * 5, "HF_TOKEN": "hf_" + "qwertyuiop" * 3}
    run = drive(
        *("sh", "-c", 'cp "$HOLDFAST_RUN_DIR/attempts/1/manifest.json" "$HOLDFAST_ARTIFACT_DIR/seen.json"'),
        environ=secrets,
        seed=11,
    )
    assert run.ended().exit_code == 0
    with open(f"{run.run_dir}/artifacts/seen.json", "rb") as file:
        seen = wire.parse_object(file.read(), "manifest")
    assert seen["run_id"] == run.run_id
    assert seen["host"] == os.uname().nodename
    assert seen["seed"] == 11
    assert seen["containment"]
    # The job's own id follows when there is one: the job may be faster than this note.
    (began,) = run.events("exec")
    assert run.read(wire.MANIFEST)["job"]["process"]["pid"] == began["data"]["pid"]
    assert "ended_at" not in seen
    for directory, _, names in os.walk(run.run_dir):
        for name in names:
            with open(f"{directory}/{name}", "rb") as file:
                content = file.read()
            for value in secrets.values():
                assert value.encode() not in content, f"{directory}/{name}"
