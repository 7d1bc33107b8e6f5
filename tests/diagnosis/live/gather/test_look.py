"""One look at real processes: all threads, what vanishes, what is not readable, and what a look costs."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest

from holdfast.diagnosis.live.change import compare_trees
from holdfast.diagnosis.live.detect.waits import Wait
from holdfast.diagnosis.live.gather.box import look_at_box
from holdfast.diagnosis.live.gather.descriptors import find_waited_on
from holdfast.diagnosis.live.gather.look import take_snapshot
from holdfast.diagnosis.live.gather.run_files import RunFiles, read_run_files
from holdfast.diagnosis.live.gather.target import LiveTarget
from holdfast.host.process.processes import identify, read_stat
from tests.diagnosis.live.bench import behaving, look
from tests.waiting import LIMIT_S, wait_until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.process, pytest.mark.requirement("DIAG-01")]


@pytest.mark.requirement("B-82")
def test_a_leader_that_ended_before_its_threads_is_alive(tmp_path: Path) -> None:
    with behaving("leaderless", tmp_path) as target:
        pid = target.roots[0].pid
        wait_until(lambda: (stat := read_stat(pid)) is not None and stat.state == "Z")
        facts = take_snapshot((pid,)).processes[0]
    assert facts.main.state == "Z"
    assert not facts.is_dead
    assert len(facts.living) == 1


def test_every_thread_is_seen_with_what_it_waits_for() -> None:
    done = threading.Event()
    helper = threading.Thread(target=done.wait, daemon=True)
    helper.start()
    try:
        wait_until(
            lambda: any(t.wait is Wait.FUTEX for t in take_snapshot((os.getpid(),)).processes[0].threads[1:]),
            what="the helper waits for its lock",
        )
        facts = take_snapshot((os.getpid(),)).processes[0]
    finally:
        done.set()
        helper.join()
    assert facts.main.tid == os.getpid()
    assert facts.own
    assert facts.io.value is not None
    assert all(not thread.unread for thread in facts.threads)


def test_processes_that_are_gone_are_named_and_no_error() -> None:
    snapshot = take_snapshot((os.getpid(), 4_000_000))
    assert [process.pid for process in snapshot.processes] == [os.getpid()]
    assert snapshot.gone == (4_000_000,)


def test_a_number_that_was_used_again_is_an_end_and_a_beginning() -> None:
    before = take_snapshot((os.getpid(),))
    from holdfast.model.record import replace

    other = replace(before, at_s=before.at_s + 5, processes=(replace(before.processes[0], start_ticks=1),))
    change = compare_trees(before, other)
    assert change.processes == ()
    assert change.started == change.ended == (os.getpid(),)


def test_a_root_whose_number_was_used_again_is_not_looked_at() -> None:
    identity = identify(os.getppid())
    assert identity is not None
    from holdfast.model.record import replace

    assert LiveTarget("reused", (replace(identity, start_ticks=1),)).list_pids() == ()


STAT = "{pid} (a) S (b c) {state} 1 7 7 0 -1 0 0 0 {faults} 0 3 4 0 0 20 0 1 0 {start} 0 0\n"


def fake_process(proc: Path, pid: int, **files: str) -> None:
    """A process in a /proc of files: of a kernel that tells only what is given."""
    for base in (proc / str(pid), proc / str(pid) / "task" / str(pid)):
        base.mkdir(parents=True, exist_ok=True)
        (base / "stat").write_text(STAT.format(pid=pid, state="S", faults=9, start=77))
        (base / "status").write_text("Name:\ta\nVmRSS:\t 12 kB\nSigCgt:\t0000000000000002\n")
        for name, text in files.items():
            (base / name).write_text(text)


def test_a_kernel_that_tells_little_leaves_reasons_and_no_zeros(tmp_path: Path) -> None:
    fake_process(tmp_path, 7)
    facts = take_snapshot((7,), proc=str(tmp_path)).processes[0]
    assert facts.name == "a) S (b c"
    assert (facts.start_ticks, facts.ppid) == (77, 1)
    main = facts.main
    assert (main.wchan, main.syscall, main.run_ns, main.switches) == (None, None, None, None)
    assert set(main.unread) == {"wchan", "syscall", "schedstat", "switches"}
    assert main.cpu_ticks == 7
    assert not facts.io.known
    assert not facts.files.known


@pytest.mark.parametrize("garbage", ["", "\0\0", "x" * 5000, "-1 0x0 0x0", "1 2", "io: x\n"])
def test_garbage_in_proc_is_survived(tmp_path: Path, garbage: str) -> None:
    fake_process(
        tmp_path, 7, schedstat=garbage, syscall=garbage, wchan=garbage, io=garbage, cmdline=garbage, environ=garbage
    )
    assert take_snapshot((7,), proc=str(tmp_path)).processes
    (tmp_path / "7" / "stat").write_text(garbage)
    assert take_snapshot((7,), proc=str(tmp_path)).gone == (7,)


def test_secrets_on_a_command_line_are_taken_out(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", "import sys; sys.stdin.read()", "--api-key", "s3cr3t-s3cr3t-s3cr3t"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, env={"WANDB_API_KEY": "s3cr3t", "RANK": "3"}) as process:
        # The kernel shows neither for a moment while the process begins.
        wait_until(lambda: take_snapshot((process.pid,)).processes[0].environment.known)
        facts = take_snapshot((process.pid,)).processes[0]
        process.communicate()
    assert facts.command.value is not None
    assert "s3cr3t" not in facts.command.value
    assert facts.environment.value == {"RANK": "3"}


def test_a_process_with_a_thread_in_uninterruptible_sleep_is_not_asked_for_its_memory(tmp_path: Path) -> None:
    with behaving("vfork", tmp_path) as target:
        pid = target.roots[0].pid
        # A page that is read from the disk is such a sleep too, before the one that is meant.
        wait_until(lambda: take_snapshot((pid,)).processes[0].main.wait is Wait.VFORK)
        facts = take_snapshot((pid,)).processes[0]
    assert "uninterruptible" in facts.command.unread
    assert "uninterruptible" in facts.environment.unread


def test_what_another_account_hides_is_unread_with_the_reason(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to look as somebody else")
    from holdfast.host.process.offload import Offload
    from holdfast.model import wire

    own = os.getpid()

    def work() -> object:
        os.setresuid(65534, 65534, 65534)
        return wire.encode(take_snapshot((own,)))

    facts = Offload(work).wait(LIMIT_S)["processes"][0]
    assert not facts["own"]
    for name in ("io", "files", "environment"):
        assert facts[name]["value"] is None
        assert facts[name]["unread"]
    assert facts["threads"][0]["unread"]["syscall"]


@pytest.mark.parametrize(("mode", "kind"), [("pipe", Wait.PIPE), ("busy", None)])
def test_what_a_thread_waits_on_is_told(tmp_path: Path, mode: str, kind: Wait | None) -> None:
    with behaving(mode, tmp_path) as target:
        pid = target.roots[0].pid

        def find_kind() -> Wait | None:
            facts = take_snapshot((pid,)).processes[0]
            on = find_waited_on(facts, facts.main)
            return None if on is None else on.kind

        wait_until(lambda: find_kind() is kind, what=f"{kind} is told")


EPOLL = """
import os, select, sys
poller, (reader, writer) = select.epoll(), os.pipe()
poller.register(reader, select.EPOLLIN)
print("ready", flush=True)
poller.poll()
"""


def test_an_epoll_tells_what_it_watches() -> None:
    with subprocess.Popen([sys.executable, "-c", EPOLL], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        wait_until(lambda: take_snapshot((process.pid,)).processes[0].main.wait is Wait.POLL)
        facts = take_snapshot((process.pid,)).processes[0]
        on = find_waited_on(facts, facts.main)
        process.kill()
    assert on is not None
    assert on.kind is Wait.PIPE


def test_the_box_tells_its_counters() -> None:
    box = look_at_box((), os.getpid())
    assert box.busy_s is not None
    assert box.load is not None
    assert box.allowed_cpus is not None


def test_files_of_a_run_behind_a_mount_that_does_not_answer_cost_the_deadline_only(tmp_path: Path) -> None:
    fifo = tmp_path / "stop.json"
    os.mkfifo(fifo)
    (tmp_path / "health.jsonl").symlink_to(fifo)
    begun = time.monotonic()
    # Opening a FIFO for reading waits for a writer, as a dead server's file does.
    answer = read_run_files(RunFiles(attempt_dir=str(tmp_path)), deadline_s=0.3)
    assert time.monotonic() - begun < 60
    assert answer.value is None
    assert "no answer within" in answer.unread


HOSTILE = [b"", b"[1]", b"{", b"\xff\xfe", b'{"step": 1e400}', b"[" * 100_000, b'{"step": "x", "phase": 7}', b"\0" * 64]


@pytest.mark.parametrize("content", HOSTILE)
def test_garbage_in_the_runs_files_is_survived(tmp_path: Path, content: bytes) -> None:
    for name in ("heartbeat.json", "stop.json", "health.jsonl", "heartbeat.rank-1.json", "stacks.json", "events.jsonl"):
        (tmp_path / name).write_bytes(content + b"\n")
    path = str(tmp_path)
    answer = read_run_files(RunFiles(f"{path}/output.log", f"{path}/heartbeat.json", path, (f"{path}/artifacts",)))
    assert answer.value is not None, answer.unread
    assert answer.value.step is None
    assert answer.value.log_bytes is None


def test_samples_and_artifacts_are_read(tmp_path: Path) -> None:
    (tmp_path / "health.jsonl").write_text(
        '{"utc": "2026-11-20T10:00:00.000Z", "step": 5, "steps_per_s": 2, "cpu_s": 1.5}\n'
        '{"utc": "yesterday", "step": 6}\n{"utc": "2026-11-20T10:00:30.000Z", "step": true}\n{"utc": "2026-'
    )
    (tmp_path / "artifacts" / "deep").mkdir(parents=True)
    (tmp_path / "artifacts" / "deep" / "best.pt").write_bytes(b"x")
    answer = read_run_files(RunFiles(attempt_dir=str(tmp_path), artifact_dirs=(str(tmp_path / "artifacts"),)))
    assert answer.value is not None
    assert [(sample.step, sample.steps_per_s) for sample in answer.value.samples] == [(5, 2.0), (None, None)]
    assert answer.value.artifacts == 2
    assert answer.value.artifacts_at_s is not None


def test_a_stall_is_read_until_the_run_goes_on(tmp_path: Path) -> None:
    events = tmp_path / "events.jsonl"
    data = '{"clock": "no_progress", "what": "no step for 5m01s", "limit_s": 300.0}'
    stalled = f'{{"event": "stalled", "utc": "2026-11-20T10:00:00.000Z", "data": {data}}}\n{{"event": "diagnosed"}}\n'
    read = []
    for text in ("", stalled, stalled.replace("no_progress", "no_output"), stalled + '{"event": "recovered"}\n'):
        events.write_text(text)
        facts = read_run_files(RunFiles(attempt_dir=str(tmp_path))).value
        assert facts is not None
        read.append((facts.stalled, facts.stall_limit_s))
    told = "no step for 5m01s, at 2026-11-20T10:00:00.000Z"
    assert read == [("", None), (told, 300.0), (told, None), ("", None)]


THREADS = """
import threading
never = threading.Event()
for _ in range(200):
    threading.Thread(target=never.wait, daemon=True).start()
print("ready", flush=True)
never.wait()
"""


@pytest.mark.soak
def test_a_look_at_two_hundred_threads_costs_at_most_30_ms_of_cpu() -> None:
    with subprocess.Popen([sys.executable, "-c", THREADS], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        costs = []
        for _ in range(5):
            begun = time.process_time()
            assert take_snapshot((process.pid,)).threads == 201
            costs.append(time.process_time() - begun)
        process.kill()
    print(f"200 threads: {sorted(costs)[2] * 1000:.1f} ms of CPU")
    assert sorted(costs)[2] <= 0.030


@pytest.mark.soak
def test_a_whole_diagnosis_takes_at_most_6_s_and_300_ms_of_cpu(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", THREADS.replace("200", "50")], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        identity = identify(process.pid)
        assert identity is not None
        report = look(LiveTarget("threads", (identity,), ours=True), interval_s=5.0)
        process.kill()
    print(f"50 threads: {report.wall_s:.2f} s, {report.cpu_s * 1000:.0f} ms of CPU")
    assert report.wall_s <= 6.0
    assert report.cpu_s <= 0.3
