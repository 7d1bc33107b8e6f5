"""Attempts that holdfast begins by itself, with real runs: which failures, how often, and of what configuration."""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.agent import acting, observe, sentinel
from holdfast.agent.context import Context
from holdfast.agent.create import next_attempt
from holdfast.agent.record import Recorder
from holdfast.agent.retrying import (
    awaits_decision,
    count_automatic,
    find_change,
    follow_up,
    is_undecided,
    read_retry,
)
from holdfast.cli.diagnosing import tell_of_retry
from holdfast.host.quarantine import list_quarantined
from holdfast.model import wire
from holdfast.model.job import DiskNeeds, JobSpec, Retries
from holdfast.model.run import Desired, Outcome, Wish
from holdfast.model.verdict import Clue, Confidence, FailureClass, Verdict
from tests.rundirs import ended, living_process, make_run, write
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
def test_a_blip_is_followed_by_an_attempt_of_the_same_configuration(
    drive: Drive, capsys: pytest.CaptureFixture[str]
) -> None:
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
    tell_of_retry(run.run_dir)
    assert "attempt 2 was begun by holdfast after attempt 1 ended as transient" in capsys.readouterr().err


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_damaged_record_is_no_identical_configuration(drive: Drive) -> None:
    run = drive("true")
    run.ended()
    assert find_change(run.run_dir) == ""
    record = Path(run.run_dir, wire.RUN)
    record.write_text(record.read_text().replace('"true"', '"false"'))
    assert "hash" in find_change(run.run_dir)
    record.write_text("{")
    assert "cannot be read" in find_change(run.run_dir)


@pytest.mark.slow
def test_a_sentinel_for_the_end_waits_for_the_last_attempt(drive: Drive) -> None:
    run = drive(*job(1), retries=Retries(max=1, wait_s=0.5))
    answer = sentinel.wait(run.run_dir, sentinel.parse_condition("ended"), max_s=60, attempt=1)
    assert answer.verdict is sentinel.Verdict.MET
    assert "succeeded" in answer.words
    run.attempt = 2
    assert run.ended().exit_code == 0


@pytest.mark.slow
@pytest.mark.requirement("FAIL-16")
def test_the_next_attempt_has_the_umask_that_the_first_was_started_with(drive: Drive) -> None:
    mode = (
        "import os\nos.close(os.open(os.environ['HOLDFAST_ARTIFACT_DIR'] + '/' + os.environ['HOLDFAST_ATTEMPT'], 65))\n"
    )
    previous = os.umask(0o027)
    try:
        run = drive(sys.executable, "-c", mode + BLIP, "1", retries=Retries(max=1, wait_s=0.01))
    finally:
        os.umask(previous)
    run.ended()
    wait_until(lambda: newest(run.run_dir) == 2)
    run.attempt = 2
    assert run.ended().exit_code == 0
    modes = {name: os.stat(f"{run.run_dir}/{wire.ARTIFACTS}/{name}").st_mode & 0o777 for name in "12"}
    assert modes == {"1": 0o750, "2": 0o750}


def decide(run_dir: str, verdict: Verdict) -> dict[str, Any]:
    """What is decided after the first attempt of a run that failed so, when its supervisor decides now."""
    recorder = Recorder(run_dir, os.path.basename(run_dir), 1)
    spec = wire.decode(JobSpec, json.loads(Path(run_dir, wire.RUN).read_text())["job"])
    loop: Any = None
    follow_up(Context(run_dir, 1, spec, recorder, loop, lambda _: None, "start"), ended(Outcome.FAILED, 1), verdict)
    return read_retry(run_dir, 1)


def verdict(kind: FailureClass, sure: Confidence = Confidence.CERTAIN, **fields: Any) -> Verdict:
    return Verdict(kind, sure, "do something", **fields)


def test_nothing_is_begun_while_somebody_restarts_or_removes_the_run(drive: Drive) -> None:
    run = drive.create("true", retries=Retries(max=3, wait_s=0.01))
    with acting.hold(run.run_dir, what="restart"):
        decided = decide(run.run_dir, verdict(FailureClass.TRANSIENT))
    assert (decided["retry"], "restarting or removing" in decided["why"]) == (False, True)
    assert newest(run.run_dir) == 1


def test_nothing_is_begun_beside_an_attempt_of_a_person(drive: Drive) -> None:
    run = drive.create("true", retries=Retries(max=3, wait_s=0.01))
    assert next_attempt(run.run_dir, "restart") == 2
    decided = decide(run.run_dir, verdict(FailureClass.TRANSIENT))
    assert (decided["retry"], "another attempt" in decided["why"]) == (False, True)
    assert newest(run.run_dir) == 2


def test_a_wish_to_stop_that_came_after_the_end_is_obeyed(drive: Drive) -> None:
    run = drive.create("true", retries=Retries(max=3, wait_s=0.01))
    run.ask()
    decided = decide(run.run_dir, verdict(FailureClass.TRANSIENT))
    assert (decided["retry"], "stopped" in decided["why"]) == (False, True)
    assert newest(run.run_dir) == 1


@pytest.mark.requirement("FAIL-07")
def test_a_card_that_nobody_can_name_or_set_aside_is_not_tried_again(drive: Drive) -> None:
    for cards in ((), ("0000:3b:00",)):
        run = drive.create("true", retries=Retries(max=3, wait_s=0.01))
        decided = decide(run.run_dir, verdict(FailureClass.HARDWARE, cards=cards))
        assert (decided["retry"], "same card again" in decided["why"]) == (False, True), cards
        assert newest(run.run_dir) == 1
    assert list_quarantined() == ()


@pytest.mark.requirement("FAIL-07", "GPUH-09")
def test_what_everybody_can_read_of_a_card_does_not_cite_the_output(drive: Drive) -> None:
    clues = (Clue("Xid 79", "kernel log"), Clue("/data/secret-project failed", "/runs/output.log, byte 7"))
    broken = verdict(FailureClass.HARDWARE, cards=("GPU-1",), evidence_for=clues)
    possible = drive.create("true", retries=Retries(max=0))
    decide(possible.run_dir, verdict(FailureClass.HARDWARE, Confidence.POSSIBLE, cards=("GPU-2",)))
    sure = drive.create("true", retries=Retries(max=0))
    assert decide(sure.run_dir, broken)["set_aside"] == ["GPU-1"]
    (record,) = list_quarantined()
    assert (record.uuid, record.evidence) == ("GPU-1", ("Xid 79",))


def make_undecided(root: Path) -> str:
    """A run whose attempt has failed in a way that may pass, while its supervisor (this process) is still there."""
    run_dir = make_run(root, state=ended(Outcome.FAILED, 1), supervisor=living_process(os.getpid()))
    record = {"outcome": "failed", "exit_code": 1, "failure_class": "transient"}
    write(f"{run_dir}/attempts/1/{wire.EXIT}", json.dumps(record))
    return run_dir


@pytest.mark.parametrize("early", [False, True], ids=["its end is written", "its end is judged"])
@pytest.mark.parametrize("again", [False, True])
def test_a_stop_while_it_is_decided_reaches_whatever_was_decided(tmp_path: Path, *, again: bool, early: bool) -> None:
    run_dir = make_undecided(tmp_path)
    exit_record = f"{run_dir}/attempts/1/{wire.EXIT}"
    if early:
        os.rename(exit_record, f"{exit_record}.later")
    assert awaits_decision(observe.observe(run_dir))
    looks: list[observe.RunView] = []

    def stop() -> None:
        looks.append(acting.stop(run_dir, Wish.STOP, by="a person", wait_s=30, tell=lambda _: None))

    stopping = threading.Thread(target=stop)
    stopping.start()
    wished = Path(run_dir, "attempts/1", wire.DESIRED)
    wait_until(wished.exists, what="the supervisor is asked not to go on")
    assert wire.from_bytes(Desired, wished.read_bytes(), wire.DESIRED).wish is Wish.STOP
    assert stopping.is_alive()
    if early:
        os.rename(f"{exit_record}.later", exit_record)
    if again:
        make_run(tmp_path, state=ended(Outcome.STOPPED, 130), attempt=2)
    os.rename(_write_aside(run_dir, {"retry": again}), f"{run_dir}/attempts/1/{wire.RETRY}")
    stopping.join()
    assert [look.attempt for look in looks] == [2 if again else 1]
    assert not awaits_decision(observe.observe(run_dir, attempt=1))


def _write_aside(run_dir: str, value: dict[str, Any]) -> str:
    path = f"{run_dir}/attempts/1/.aside"
    write(path, json.dumps(value))
    return path


def test_between_the_decision_and_the_next_attempt_nothing_is_over(tmp_path: Path) -> None:
    run_dir = make_undecided(tmp_path)
    write(f"{run_dir}/attempts/1/{wire.RETRY}", json.dumps({"retry": True}))
    assert awaits_decision(observe.observe(run_dir, attempt=1))
    make_run(tmp_path, attempt=2)
    assert not awaits_decision(observe.observe(run_dir, attempt=1))


@pytest.mark.slow
@pytest.mark.requirement("FAIL-03")
def test_a_full_disk_without_anything_to_prune_is_asked_about(drive: Drive) -> None:
    words = "import sys; sys.exit('OSError: [Errno 28] No space left on device: model.pt')"
    disk = DiskNeeds(min_free_bytes=1, min_free_inodes=1)
    run = drive(sys.executable, "-c", words, disk=disk, retries=Retries(max=3, wait_s=0.01))
    run.ended()
    decided = read_retry(run.run_dir, 1)
    assert decided["retry"] is False
    assert "no declared scratch" in decided["why"]
    assert newest(run.run_dir) == 1
