"""Attempts that holdfast begins by itself, with real runs: which failures, how often, and of what configuration."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.agent import sentinel
from holdfast.agent.retrying import count_automatic, find_change, is_undecided, read_retry
from holdfast.model import wire
from holdfast.model.job import DiskNeeds, Retries
from tests.waiting import wait_until

if TYPE_CHECKING:
    from tests.agent.driving import Drive

pytestmark = pytest.mark.process

BLIP = (
    "import os, sys\n"
    "marks = os.environ['HOLDFAST_ARTIFACT_DIR'] + '/tries'\n"
    "open(marks, 'a').write('x')\n"
    "if len(open(marks).read()) <= int(sys.argv[1]):\n"
    "    sys.exit('wandb.errors.CommError: Run initialization has timed out after 90.0 sec.')\n"
)
"""A tracker that does not answer the first few times."""


def job(times: int) -> tuple[str, ...]:
    return (sys.executable, "-c", BLIP, str(times))


def newest(run_dir: str) -> int:
    return max(int(entry.name) for entry in Path(run_dir, wire.ATTEMPTS).iterdir())


@pytest.mark.requirement("FAIL-02", "FAIL-16")
def test_a_blip_is_followed_by_an_attempt_of_the_same_configuration(drive: Drive) -> None:
    run = drive(*job(1), retries=Retries(max=2, wait_s=0.01))
    run.ended()
    wait_until(lambda: newest(run.run_dir) == 2)
    run.attempt = 2
    assert run.ended().exit_code == 0
    decided = read_retry(run.run_dir, 1)
    assert decided["retry"] is True
    assert decided["class"] == "transient"
    origin = json.loads(Path(run.run_dir, wire.RUN).read_text())
    assert decided["job_sha256"] == origin["job_sha256"]
    assert newest(run.run_dir) == 2
    assert not is_undecided(run.run_dir, 1)


def test_attempts_that_nobody_asked_for_are_bounded(drive: Drive) -> None:
    run = drive(*job(9), retries=Retries(max=1, wait_s=0.01))
    run.ended()
    wait_until(lambda: newest(run.run_dir) == 2)
    run.attempt = 2
    assert run.ended().exit_code == 1
    decided = read_retry(run.run_dir, 2)
    assert decided["retry"] is False
    assert "1 of 1" in decided["why"]
    assert count_automatic(run.run_dir, 2) == 1
    assert newest(run.run_dir) == 2


@pytest.mark.requirement("FAIL-16")
def test_a_changed_configuration_is_not_run_again(drive: Drive, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("lr: 1\n")
    spoil = f"open({str(config)!r}, 'a').write('x')\n"
    run = drive(sys.executable, "-c", spoil + BLIP, "9", config=str(config), retries=Retries(max=3, wait_s=0.01))
    run.ended()
    decided = read_retry(run.run_dir, 1)
    assert decided["retry"] is False
    assert f"{config} was changed" in decided["why"]
    assert newest(run.run_dir) == 1


@pytest.mark.requirement("FAIL-06")
def test_a_bug_is_not_run_again(drive: Drive) -> None:
    run = drive(sys.executable, "-c", "{}['lr']", retries=Retries(max=3, wait_s=0.01))
    assert run.ended().exit_code == 1
    assert read_retry(run.run_dir, 1) == {}
    assert newest(run.run_dir) == 1


FULL = (
    "import os, sys\n"
    "scratch = os.environ['HOLDFAST_ARTIFACT_DIR'] + '/tmp-1'\n"
    "if os.environ['HOLDFAST_ATTEMPT'] == '1':\n"
    "    open(scratch, 'w').write('x' * 5000)\n"
    "    sys.exit(\"OSError: [Errno 28] No space left on device: 'model.pt'\")\n"
    "sys.exit(3 if os.path.exists(scratch) else 0)\n"
)


@pytest.mark.requirement("FAIL-03")
def test_a_full_disk_is_cleared_of_declared_scratch_and_tried_again(drive: Drive) -> None:
    disk = DiskNeeds(min_free_bytes=1, min_free_inodes=1, scratch=("artifacts/tmp-*",))
    run = drive(sys.executable, "-c", FULL, disk=disk, retries=Retries(max=1, wait_s=0.01))
    run.ended()
    wait_until(lambda: newest(run.run_dir) == 2)
    run.attempt = 2
    assert run.ended().exit_code == 0
    decided = read_retry(run.run_dir, 1)
    assert decided["class"] == "disk_full"
    assert decided["pruned"]["freed_bytes"] >= 5000


def test_a_damaged_record_is_no_identical_configuration(drive: Drive) -> None:
    run = drive("true")
    run.ended()
    assert find_change(run.run_dir) == ""
    record = Path(run.run_dir, wire.RUN)
    record.write_text(record.read_text().replace('"true"', '"false"'))
    assert "hash" in find_change(run.run_dir)
    record.write_text("{")
    assert "cannot be read" in find_change(run.run_dir)


def test_a_sentinel_for_the_end_waits_for_the_last_attempt(drive: Drive) -> None:
    run = drive(*job(1), retries=Retries(max=1, wait_s=0.5))
    answer = sentinel.wait(run.run_dir, sentinel.parse_condition("ended"), max_s=60, attempt=1)
    assert answer.verdict is sentinel.Verdict.MET
    assert "succeeded" in answer.words
    run.attempt = 2
    assert run.ended().exit_code == 0
