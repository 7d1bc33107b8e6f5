"""Real ends of real jobs, each explained by the class that it has: real signals, a real OOM kill, a real full disk."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.diagnosis.ended.judge import examine_attempt
from holdfast.diagnosis.ended.judgement import read_judgement
from holdfast.host.contain import create
from holdfast.host.process.offload import Offload
from holdfast.model import wire
from holdfast.model.job import DiskNeeds, Limits
from holdfast.model.run import RequestKind
from holdfast.model.verdict import Confidence, FailureClass, RetryPolicy, Verdict
from tests.agent.driving import Drive, Driven, job, read_text, timeouts
from tests.diagnosis.ended.making import ended, write_attempt
from tests.host.small_disk import mount_small_disk
from tests.waiting import LIMIT_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.process
F = FailureClass
MIB = 1024**2
NOBODY = 65534
HUNGRY = "kept = []\nfor _ in range(100):\n    kept.append(bytearray(b'x' * (8 << 20)))\n"
WORKER = f"import os, sys\nif os.fork() == 0:\n    exec({HUNGRY!r})\nos.wait()\nsys.exit('a worker went away')\n"
SURVIVED = WORKER.replace("sys.exit('a worker went away')", "print('done')")
# Bounded: a disk or a limit that is not there must not cost the box its own.
FILLER = (
    "import sys\nwith open(sys.argv[1], 'wb') as file:\n    for _ in range(64):\n        file.write(bytes(1 << 20))\n"
)


def script(body: str, *arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-I", "-S", "-c", body, *arguments)


def verdict_of(run: Driven) -> Verdict:
    """The verdict that the supervisor has left, which is in the note and the exit record too."""
    run.ended()
    stored = read_judgement(run.run_dir, run.attempt)
    assert stored is not None
    assert stored.verdict is not None
    assert run.read(wire.EXIT)["failure_class"] == stored.verdict.kind.value
    assert f"- class: `{stored.verdict.kind.value}`" in read_text(run.path(wire.FAILURE))
    return stored.verdict


@pytest.fixture
def memory_limit() -> Limits:
    """A limit that a small hungry job reaches soon; kernel memory makes smaller ones unreliable."""
    places = create.find_cgroups()
    if places.v1_place("memory") is None and places.unified is None:
        pytest.skip("no memory controller here")
    return Limits(memory_bytes=96 * MIB)


@pytest.mark.slow
@pytest.mark.requirement("DIAG-02", "FAIL-04")
def test_FAIL_04_a_real_oom_kill_is_certain_and_asks_for_memory(drive: Drive, memory_limit: Limits) -> None:
    run = drive(*script(HUNGRY), limits=memory_limit)
    verdict = verdict_of(run)
    assert (verdict.kind, verdict.confidence, verdict.detector) == (F.OUT_OF_MEMORY, Confidence.CERTAIN, "V1")
    # It had no card, so there is no batch on one.
    assert "raise limits.memory" in verdict.action
    assert "batch" not in verdict.action
    assert "now 96 MiB" in verdict.action
    assert verdict.also == ()
    own = run.read(wire.MANIFEST)["baseline"]["memory_levels"][0]
    assert run.run_id in own["path"], "the run's own group is the first level"
    assert own["oom_kills"] == 0
    assert own["limit_bytes"] == 96 * MIB


@pytest.mark.slow
@pytest.mark.requirement("FAIL-04")
def test_FAIL_04_the_victim_may_be_a_worker(drive: Drive, memory_limit: Limits) -> None:
    run = drive(*script(WORKER), limits=memory_limit)
    verdict = verdict_of(run)
    assert run.ended().exit_code == 1
    assert verdict.kind is F.OUT_OF_MEMORY


@pytest.mark.slow
@pytest.mark.requirement("DIAG-02", "FAIL-09", "FAIL-14")
@pytest.mark.parametrize(
    ("number", "kind"),
    [(9, F.KILLED), (15, F.KILLED), (1, F.HANG_UP), (11, F.NATIVE_CRASH), (6, F.NATIVE_CRASH), (24, F.RESOURCE_LIMIT)],
)
def test_FAIL_09_a_signal_has_its_class_and_is_no_oom(drive: Drive, number: int, kind: FailureClass) -> None:
    verdict = verdict_of(drive(*job("die_by", number)))
    assert verdict.kind is kind
    assert "out_of_memory" not in verdict.also


@pytest.mark.slow
@pytest.mark.requirement("DIAG-02", "FAIL-14")
def test_DIAG_02_a_kill_by_somebody_else_is_told_from_ours(drive: Drive) -> None:
    run = drive(*job("stay"))
    run.kill(run.ready().job.process)
    verdict = verdict_of(run)
    assert (verdict.kind, verdict.retry) == (F.KILLED, RetryPolicy.NEVER)
    asked = drive(*job("stay"))
    asked.ready()
    asked.ask(RequestKind.STOP_NOW)
    assert verdict_of(asked).kind is F.STOPPED


@pytest.mark.requirement("FAIL-06", "FAIL-11")
@pytest.mark.parametrize(
    ("body", "kind"),
    [("{}['lr']", F.BUG), ("import no_such_module_here", F.ENVIRONMENT), ("raise SystemExit(3)", F.UNKNOWN)],
)
def test_FAIL_06_an_exception_is_told_from_an_environment(drive: Drive, body: str, kind: FailureClass) -> None:
    assert verdict_of(drive(*script(body))).kind is kind


@pytest.mark.slow
def test_a_time_limit_names_itself(drive: Drive) -> None:
    assert verdict_of(drive(*job("stay"), timeouts=timeouts(run=0.3))).kind is F.TIMED_OUT


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mount_small_disk(tmp_path / "small", 8 * MIB) as path:
        yield path


@pytest.mark.slow
@pytest.mark.requirement("FAIL-03")
def test_FAIL_03_a_full_disk_is_found_on_the_disk_and_in_the_words(drive: Drive, small_disk: Path) -> None:
    needs = DiskNeeds(paths=(str(small_disk),), min_free_bytes=0, min_free_inodes=0)
    run = drive(*script(FILLER, str(small_disk / "checkpoint")), disk=needs)
    verdict = verdict_of(run)
    assert (verdict.kind, verdict.confidence) == (F.DISK_FULL, Confidence.CERTAIN)
    assert verdict.retry is RetryPolicy.AFTER_SCRATCH
    assert str(small_disk) in verdict.action


@pytest.mark.slow
@pytest.mark.requirement("FAIL-13")
def test_FAIL_13_a_success_that_was_too_fast_is_doubted_and_stays_a_success(drive: Drive) -> None:
    run = drive(*job("exit_with", 0), expected_s=3600.0)
    assert run.ended().exit_code == 0
    stored = read_judgement(run.run_dir, 1)
    assert stored is not None
    assert stored.verdict is not None
    assert stored.verdict.kind is F.SUSPICIOUS_FINISH
    assert run.read(wire.EXIT)["failure_class"] == "suspicious_finish"
    assert not os.path.exists(run.path(wire.FAILURE))


@pytest.mark.slow
@pytest.mark.requirement("FAIL-13")
def test_FAIL_13_a_success_in_whose_group_the_kernel_killed_is_doubted(drive: Drive, memory_limit: Limits) -> None:
    run = drive(*script(SURVIVED), limits=memory_limit)
    assert run.ended().exit_code == 0
    stored = read_judgement(run.run_dir, 1)
    assert stored is not None
    assert stored.verdict is not None
    assert stored.verdict.kind is F.SUSPICIOUS_FINISH
    assert "was reached and the kernel killed within its tree" in stored.verdict.cause


def test_a_plain_success_has_no_verdict(drive: Drive) -> None:
    run = drive(*job("exit_with", 0))
    end = run.ended()
    assert examine_attempt(run.run_dir, 1, end).verdict is None
    assert not os.path.exists(run.path(wire.VERDICT))
    assert run.read(wire.EXIT)["failure_class"] is None


@pytest.mark.requirement("DIAG-02", "PROC-15", "BSSH-10")
def test_DIAG_02_a_run_whose_keepers_were_killed_is_said_to_have_lost_them(drive: Drive) -> None:
    run = drive(*job("stay"))
    state = run.ready()
    run.kill_supervisor()
    run.kill(state.keeper)
    run.kill(state.job.process)
    run.assert_gone()
    run.adopt()
    verdict = verdict_of(run)
    assert verdict.kind is F.SUPERVISOR_LOST
    assert "a gateway or a login service that ends what is in the background" in verdict.action
    assert [clue.text for clue in verdict.evidence_against if clue.text.startswith("not out_of_memory")]


@pytest.mark.slow
@pytest.mark.gotcha("U3", "GEN6")
@pytest.mark.requirement("DIAG-02")
def test_DIAG_02_after_another_boot_it_was_the_reboot(drive: Drive) -> None:
    run = drive(*job("stay"))
    state = run.ready()
    run.kill_supervisor()
    run.kill(state.keeper)
    run.kill(state.job.process)
    run.assert_gone()
    run.environ["HOLDFAST_BOOT_ID"] = "a-later-boot"
    run.start("adopt")
    # Its supervisor is of a boot that the test is not in, so that it looks dead from the start.
    wait_until(lambda: os.path.exists(run.path(wire.EXIT)), what="its end is on record")
    verdict = verdict_of(run)
    assert (verdict.kind, verdict.confidence, verdict.retry) == (F.REBOOT, Confidence.CERTAIN, RetryPolicy.SAME)


@pytest.mark.requirement("DIAG-02", "FAIL-14")
def test_DIAG_02_an_account_that_may_not_read_the_kernel_log_does_not_call_it_no_oom(public_path: Path) -> None:
    """The kernel's own refusal (dmesg_restrict), met by an account without rights."""
    if os.geteuid() != 0 or read_text("/proc/sys/kernel/dmesg_restrict").strip() == "0":
        pytest.skip("everybody may read the kernel log here, or we cannot be another account")
    end = ended(None, 9)
    run_dir = write_attempt(public_path, end, usage={})
    for directory, _, names in os.walk(public_path):
        os.chmod(directory, 0o755)
        for name in names:
            os.chmod(f"{directory}/{name}", 0o644)

    def judge_as_nobody() -> Any:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        return wire.encode(examine_attempt(run_dir, 1, end).verdict)

    verdict = wire.decode(Verdict, Offload(judge_as_nobody).wait(LIMIT_S))
    assert (verdict.kind, verdict.confidence) == (F.KILLED, Confidence.POSSIBLE)
    assert any("kernel log could not be read" in clue.text for clue in verdict.unknown)
    assert not any("out_of_memory" in clue.text for clue in verdict.evidence_against)
