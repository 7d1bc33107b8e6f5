"""Real processes, each in its own kind of trouble or health: each gets its class, and no healthy one a hang."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from holdfast.diagnosis.live.detect.slow import OWN_SHARE
from holdfast.diagnosis.live.gather.target import LiveTarget, target_from_pid
from holdfast.diagnosis.live.judge import diagnose_live
from holdfast.host.process.processes import identify, read_stat
from holdfast.model import wire
from holdfast.model.verdict import HANGS, Confidence, LiveClass
from tests.diagnosis.live.bench import behaving, explain, look, stand_still
from tests.waiting import PATIENCE, wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.diagnosis.live.report import LiveReport

pytestmark = pytest.mark.process

LOOKING_S = 30.0 * PATIENCE

HUNG = [
    ("deadlock", LiveClass.DEADLOCK),
    ("queue_deadlock", LiveClass.DEADLOCK),
    ("busy", LiveClass.BUSY_NO_PROGRESS),
    ("busy_calls", LiveClass.BUSY_NO_PROGRESS),
    ("pipe", LiveClass.WAITING_FOR_CHILD),
    ("child", LiveClass.WAITING_FOR_CHILD),
    ("stuck_worker", LiveClass.WAITING_FOR_CHILD),
    ("vfork", LiveClass.WAITING_FOR_CHILD),
]


@pytest.mark.slow
@pytest.mark.requirement("DIAG-01", "DIAG-03", "DIAG-04", "DIAG-06", "MON-07", "B-42", "B-82")
@pytest.mark.parametrize(("mode", "expected"), HUNG, ids=[mode for mode, _ in HUNG])
def test_a_process_that_hangs_gets_the_class_of_its_hang(tmp_path: Path, mode: str, expected: LiveClass) -> None:
    with behaving(mode, tmp_path) as target:
        stand_still(tmp_path)
        report = look(target)
    assert report.verdict.kind is expected, explain(report)
    assert report.verdict.confidence is not Confidence.POSSIBLE, explain(report)
    assert report.verdict.evidence_for
    assert "{" not in report.verdict.action


@pytest.mark.slow
@pytest.mark.requirement("DIAG-06")
@pytest.mark.parametrize("mode", ["network", "network_poll"])
def test_a_process_that_waits_for_the_network_is_told_with_the_other_end(tmp_path: Path, mode: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        with behaving(mode, tmp_path, port) as target:
            stand_still(tmp_path)
            report = look(target)
    assert report.verdict.kind is LiveClass.NETWORK_WAIT, explain(report)
    assert f"127.0.0.1:{port}" in report.verdict.action


@pytest.mark.requirement("DIAG-06")
@pytest.mark.parametrize(
    ("mode", "kind", "clue", "advice"),
    [
        ("pipe", LiveClass.WAITING_FOR_CHILD, "nobody else can write to it", "what should write to pipe:["),
        (
            "unread_child",
            LiveClass.WAITING_FOR_CHILD,
            "waits for the end of a child and does not read",
            "(Python: `communicate()` in place of `wait()`",
        ),
        (
            "unfed_child",
            LiveClass.WAITING_FOR_CHILD,
            "waits for the end of a child and does not write",
            ", or close that end, before it waits for its child",
        ),
        ("locked", LiveClass.UNCLEAR, "is held by a process of the job itself, pid ", ", which holds the lock of /"),
        ("locked itself", LiveClass.UNCLEAR, "is held by this very process (pid ", "a lock that it has itself"),
        (
            "fifo",
            LiveClass.WAITING_FOR_CHILD,
            "/batches, a FIFO that no process has open for writing",
            "/batches for w",
        ),
        (
            "fifo at",
            LiveClass.WAITING_FOR_CHILD,
            "/batches, a FIFO that no process has open for reading",
            "/batches for r",
        ),
        ("network_itself", LiveClass.NETWORK_WAIT, "and has not accepted it", " is this very process (pid "),
        (
            "network_itself accepted",
            LiveClass.NETWORK_WAIT,
            ", is this very process (pid ",
            " is this very process (pid ",
        ),
    ],
)
def test_a_wait_that_only_the_job_itself_can_end_is_told_so(
    tmp_path: Path, mode: str, kind: LiveClass, clue: str, advice: str
) -> None:
    name, *more = mode.split()
    with behaving(name, tmp_path, *more) as target:
        wait_until(lambda: (stat := read_stat(target.roots[0].pid)) is not None and stat.state == "S")
        report = look(target)
    assert report.verdict.kind is kind, explain(report)
    assert any(clue in found.text for found in report.verdict.evidence_for), explain(report)
    assert advice in report.verdict.action
    assert "{" not in report.verdict.action


@pytest.mark.slow
@pytest.mark.requirement("DIAG-03")
def test_a_deadlock_in_which_nobody_can_wake_another_needs_no_heartbeat(tmp_path: Path) -> None:
    with behaving("deadlock", tmp_path) as target:
        report = look(target)
    assert report.verdict.kind is LiveClass.DEADLOCK, explain(report)


@pytest.mark.requirement("DIAG-03", "DIAG-05")
def test_the_process_that_writes_the_checkpoints_hides_no_deadlock_of_the_training(tmp_path: Path) -> None:
    with behaving("library_deadlock", tmp_path) as target:
        until_s = time.monotonic() + LOOKING_S
        report = look(target)
        # At first that process may still be busy with its own start.
        while report.verdict.kind is not LiveClass.DEADLOCK and time.monotonic() < until_s:
            report = look(target)
        asked = (tmp_path / "stacks.txt").read_text()
    assert report.verdict.kind is LiveClass.DEADLOCK, explain(report)
    assert any("all 2 threads of it" in clue.text for clue in report.verdict.evidence_for), explain(report)
    assert any("is in deadlock (" in clue.text for clue in report.verdict.evidence_for), explain(report)
    assert asked


@pytest.mark.slow
@pytest.mark.requirement("DIAG-04")
def test_a_busy_process_without_a_heartbeat_is_not_called_hung(tmp_path: Path) -> None:
    with behaving("busy", tmp_path) as target:
        report = look(target)
    # On a crowded machine what it can be said to suffer from is that.
    assert report.verdict.kind in (LiveClass.UNCLEAR, LiveClass.NOISY_NEIGHBOUR), explain(report)
    assert "busy_no_progress" in report.verdict.also


@pytest.mark.slow
@pytest.mark.requirement("DIAG-06")
def test_a_stopped_process_is_paused_and_stays_as_it_is(tmp_path: Path) -> None:
    with behaving("slow_step", tmp_path) as target:
        pid = target.roots[0].pid
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: (stat := read_stat(pid)) is not None and stat.state == "T")
        report = look(target)
        stat = read_stat(pid)
        assert stat is not None
        assert stat.state == "T"
    assert report.verdict.kind is LiveClass.PAUSED, explain(report)
    assert report.verdict.confidence is Confidence.CERTAIN


@pytest.mark.requirement("DIAG-06")
def test_an_ended_process_that_nobody_reaped_is_a_zombie(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "pass"]) as process:
        identity = identify(process.pid)
        assert identity is not None
        wait_until(lambda: (stat := read_stat(process.pid)) is not None and stat.state == "Z")
        report = look(LiveTarget("zombie", (identity,), ours=True), interval_s=0.1)
    assert report.verdict.kind is LiveClass.ZOMBIE, explain(report)
    assert str(os.getpid()) in report.verdict.action


def test_a_target_that_is_gone_is_unclear_and_says_so(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "pass"]) as process:
        identity = identify(process.pid)
        assert identity is not None
    report = look(LiveTarget("gone", (identity,), ours=True), interval_s=0.0)
    assert report.verdict.kind is LiveClass.UNCLEAR
    assert "ended" in report.verdict.evidence_for[0].text


@pytest.mark.slow
@pytest.mark.requirement("DIAG-06")
def test_a_training_that_said_finished_and_does_not_end_hangs_at_its_exit(tmp_path: Path) -> None:
    with behaving("exit_hang", tmp_path) as target:
        report = look(target)
    assert report.verdict.kind is LiveClass.EXIT_HANG, explain(report)


# -------------------------------------------------------------------------------------------------------------- healthy

HEALTHY = [
    ("slow_step", {LiveClass.PROGRESSING, LiveClass.NOISY_NEIGHBOUR}),
    ("loader", {LiveClass.LOADER_BOUND, LiveClass.NOISY_NEIGHBOUR, LiveClass.PROGRESSING}),
    ("leaderless", {LiveClass.PROGRESSING}),
    ("storm", {LiveClass.OVERSUBSCRIBED}),
    ("buffered", {LiveClass.BUFFERED}),
    ("sleeping", {LiveClass.UNCLEAR}),
]


def get_cores_used(report: LiveReport) -> float:
    (line,) = (line for section in report.sections for line in section.lines if line.startswith("the tree used "))
    return float(line.split()[3])


@pytest.mark.slow
@pytest.mark.requirement("DIAG-03", "DIAG-04", "DIAG-10", "MON-07")
@pytest.mark.parametrize(("mode", "expected"), HEALTHY, ids=[mode for mode, _ in HEALTHY])
def test_a_healthy_process_is_never_said_to_hang(tmp_path: Path, mode: str, expected: set[LiveClass]) -> None:
    with behaving(mode, tmp_path) as target:
        until_s = time.monotonic() + LOOKING_S
        while True:
            report = look(target)
            assert report.verdict.kind not in HANGS, explain(report)
            if report.verdict.kind in expected:
                return
            if time.monotonic() > until_s:
                break
    # Too many threads can be told only of a process that gets its share of the machine.
    assert mode == "storm", explain(report)
    assert get_cores_used(report) < OWN_SHARE * len(os.sched_getaffinity(0)), explain(report)


@pytest.mark.slow
@pytest.mark.requirement("DIAG-10")
def test_a_process_that_sets_unbuffered_output_is_not_called_buffered(tmp_path: Path) -> None:
    with behaving("sleeping", tmp_path, unbuffered=True) as target:
        report = look(target)
    assert report.verdict.kind is not LiveClass.BUFFERED, explain(report)


# ------------------------------------------------------------------------------------------------------- the report

SECTIONS = ["states", "cpu", "io", "files", "kernel_stack", "stacks", "calls", "cards", "storage"]


@pytest.mark.slow
@pytest.mark.requirement("DIAG-01")
def test_the_report_has_its_sections_in_order_and_can_be_written_down(tmp_path: Path) -> None:
    with behaving("pipe", tmp_path) as target:
        report = look(target)
    assert [section.name for section in report.sections] == SECTIONS
    encoded = wire.encode(report)
    assert encoded["verdict"]["kind"] == "waiting_for_child"
    assert encoded["sections"][0]["lines"]


@pytest.mark.slow
@pytest.mark.requirement("DIAG-01", "DIAG-05")
def test_a_bare_pid_is_looked_at_and_never_signalled(tmp_path: Path) -> None:
    with behaving("asked:deadlock", tmp_path) as target:
        foreign = target_from_pid(target.roots[0].pid)
        assert foreign is not None
        assert not foreign.ours
        assert foreign.files.log == str(tmp_path / "output.log")
        report = diagnose_live(foreign, interval_s=0.5)
    assert report.verdict.kind is LiveClass.DEADLOCK, explain(report)
    assert not (tmp_path / "stacks.txt").read_text()
    stacks = next(section for section in report.sections if section.name == "stacks")
    assert "never signalled" in stacks.lines[0]


def test_there_is_no_target_for_a_pid_that_nobody_has() -> None:
    assert target_from_pid(4_000_000) is None


def test_our_own_process_and_its_reader_are_no_part_of_a_shell_that_is_looked_at() -> None:
    parent = target_from_pid(os.getppid())
    assert parent is not None
    assert os.getpid() not in parent.list_pids()
