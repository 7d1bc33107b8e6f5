"""Attempts that holdfast begins by itself, with real runs: which failures, how often, and of what configuration."""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.agent.control.adopt import adopt
from holdfast.agent.control.create import next_attempt
from holdfast.agent.control.run_lock import hold_run_lock
from holdfast.agent.control.stop import stop as stop_and_wait
from holdfast.agent.kept_environment import keep_environment
from holdfast.agent.patrol.sentinel import wait
from holdfast.agent.supervise.context import SupervisorContext
from holdfast.agent.supervise.end.retry import follow_up
from holdfast.agent.supervise.recorder import Recorder
from holdfast.agent.view import run_view
from holdfast.agent.view.live.start import prove_start
from holdfast.agent.view.page.diagnosis import describe_retry, diagnose_run
from holdfast.agent.view.retries import count_automatic, is_followed, read_retry
from holdfast.agent.view.source_change import find_change
from holdfast.host.files import files
from holdfast.host.gpu.quarantine import list_quarantined
from holdfast.model import wire
from holdfast.model.gpu import GpuRequest
from holdfast.model.job import DiskNeeds, GpuOptions, JobSpec, Retries, Timeouts
from holdfast.model.run import Outcome, RequestKind, RunRequest
from holdfast.model.verdict import Clue, Confidence, FailureClass, Verdict
from tests.agent.driving import Driven
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


@pytest.mark.slow
@pytest.mark.requirement("FAIL-02", "FAIL-16")
def test_a_blip_is_followed_by_an_attempt_of_the_same_configuration(
    drive: Drive,
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
    assert is_followed(run.run_dir, 1)
    assert "attempt 2 was begun by holdfast after attempt 1 ended as transient" in describe_retry(run.run_dir)


@pytest.mark.requirement("FAIL-02")
@pytest.mark.parametrize("decided", [False, True], ids=["undecided", "decided"])
def test_the_attempt_that_was_to_follow_is_begun_after_an_adoption_too(drive: Drive, *, decided: bool) -> None:
    """Its supervisor was killed while it wrote the end: who adopts the run is no reason against the attempt."""
    run = drive(*job(1), retries=Retries(max=1, wait_s=0.01))
    run.ended()
    later = Driven(run.run_dir, run.run_id, run.environ, 2)
    later.ended()
    wait_until(lambda: not files.is_locked(f"{run.run_dir}/{wire.SUPERVISOR_LOCK}"))
    shutil.rmtree(wire.attempt_dir(run.run_dir, 2))
    for name in (wire.EXIT, *(() if decided else (wire.RETRY,))):
        os.unlink(run.path(name))
    keep_environment(run.run_id, drive.environ)
    adopt(run.run_dir, environ=drive.environ)
    run.ended()
    assert read_retry(run.run_dir, 1)["retry"] is True
    assert newest(run.run_dir) == 2
    assert later.ended().exit_code == 0


@pytest.mark.requirement("FAIL-02")
def test_a_run_that_was_adopted_in_line_saw_its_end_too(drive: Drive) -> None:
    """Seen: "no supervisor saw it end", where the adopting one had started the job and seen all of it."""
    card = {"environ": {"HOLDFAST_SIMULATED_GPUS": "1"}, "gpus": GpuRequest(count=1)}
    holder = drive("sleep", "600", gpu=GpuOptions(idle_window_s=0.0), **card)
    holder.running()
    run = drive(*job(1), retries=Retries(max=1, wait_s=0.01), gpu=GpuOptions(idle_window_s=0.0, wait_s=600.0), **card)
    wait_until(lambda: run.events("blocked"), what="it stands in line")
    run.kill_supervisor()
    run.adopt()
    holder.ask(RequestKind.STOP_NOW)
    holder.ended()
    run.ended()
    assert read_retry(run.run_dir, 1)["retry"] is True
    assert Driven(run.run_dir, run.run_id, run.environ, 2).ended().exit_code == 0


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


@pytest.mark.slow
@pytest.mark.requirement("FAIL-02")
def test_a_pause_is_as_long_as_it_was_decided_also_beyond_the_deadline_of_the_checks(drive: Drive) -> None:
    run = drive(*job(1), retries=Retries(max=1, wait_s=5.1), timeouts=Timeouts(preflight_s=5.0))
    run.ended()
    wait_until(lambda: newest(run.run_dir) == 2)
    told: list[str] = []

    def look() -> bool:
        report = diagnose_run(run.run_dir, None, deep=False, tell=lambda _: None)
        told[:] = [report.cause, "" if report.verdict is None else report.verdict.action]
        return "it pauses until " in report.cause

    wait_until(look)
    assert "because attempt 1 ended as transient" in told[0]
    assert told[1] == f"wait for it, or end it: holdfast stop {run.run_id}"
    run.attempt = 2
    assert run.ended().exit_code == 0
    decided = read_retry(run.run_dir, 1)["wait_s"]
    assert decided >= 5.1
    assert [event["data"]["wait_s"] for event in run.events() if event["event"] == "retry_wait"] == [decided]


@pytest.mark.slow
def test_a_start_whose_job_failed_says_that_another_attempt_follows(drive: Drive) -> None:
    run = drive(*job(1), retries=Retries(max=1, wait_s=600.0))
    started = prove_start(run.run_dir, 1, prove_s=30.0)
    assert started.condition == "failed"
    assert started.warnings[0].startswith("attempt 2 begins by itself after a pause of ")
    assert started.warnings[0].endswith(": this one ended as transient")
    run.attempt = 2
    run.ask(RequestKind.STOP)
    run.ended()


@pytest.mark.slow
@pytest.mark.requirement("FAIL-16", "FAIL-02")
def test_what_is_changed_in_the_pause_is_not_run_by_an_automatic_attempt(drive: Drive, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(BLIP)
    run = drive(sys.executable, str(script), "9", retries=Retries(max=1, wait_s=6.0))
    wait_until(lambda: newest(run.run_dir) == 2)
    script.write_text("print('edited')\n")
    run.ended()
    run.attempt = 2
    end = run.ended()
    assert end.exit_code == 78
    assert f"{script} was changed" in end.evidence
    assert b"edited" not in run.output()
    found = [item for item in run.read(wire.PREFLIGHT)["findings"] if item["id"] == "code.changed"]
    assert [item["remedy"] for item in found] == [f"run it as it is now: holdfast restart {run.run_id}"]


@pytest.mark.slow
@pytest.mark.requirement("FAIL-16", "FAIL-02")
@pytest.mark.parametrize("adopted", [False, True], ids=["at work", "taken over"])
def test_what_is_changed_while_it_waits_in_line_is_not_run_either(drive: Drive, tmp_path: Path, adopted: bool) -> None:
    script = tmp_path / "train.py"
    script.write_text("print('first')\n")
    cards = {"HOLDFAST_SIMULATED_GPUS": "1"}
    options = GpuOptions(wait_s=600.0, idle_window_s=0.0)
    fields: dict[str, Any] = {"gpus": GpuRequest(count=1), "gpu": options, "environ": cards}
    run = drive(sys.executable, str(script), **fields)
    assert run.ended().exit_code == 0
    holder = drive("sleep", "600", **fields)
    holder.running()
    write(run.path(wire.RETRY), json.dumps({"schema": 1, "retry": True, "wait_s": 0.0}))
    run.attempt = next_attempt(run.run_dir, "retry")
    run.start("retry")
    run.wait_kind("waiting")
    if adopted:
        run.kill_supervisor()
        run.adopt()
    script.write_text("print('edited')\n")
    holder.ask(RequestKind.STOP_NOW)
    end = run.ended()
    assert end.exit_code == 78, end
    assert f"{script} was changed" in end.evidence
    assert b"edited" not in run.output()


@pytest.mark.requirement("FAIL-06")
def test_a_bug_is_not_run_again(drive: Drive) -> None:
    run = drive(sys.executable, "-c", "{}['lr']", retries=Retries(max=3, wait_s=0.01))
    assert run.ended().exit_code == 1
    assert read_retry(run.run_dir, 1) == {}
    assert newest(run.run_dir) == 1


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
    answer = wait.wait_for_condition(run.run_dir, wait.parse_condition("ended"), max_s=60, attempt=1)
    assert answer.verdict is wait.ConditionState.MET
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
    follow_up(
        SupervisorContext(run_dir, 1, spec, recorder, loop, lambda _: None, "start"), ended(Outcome.FAILED, 1), verdict
    )
    return read_retry(run_dir, 1)


def verdict(kind: FailureClass, sure: Confidence = Confidence.CERTAIN, **fields: Any) -> Verdict:
    return Verdict(kind, sure, "do something", **fields)


def test_nothing_is_begun_while_somebody_restarts_or_removes_the_run(drive: Drive) -> None:
    run = drive.create("true", retries=Retries(max=3, wait_s=0.01))
    with hold_run_lock(run.run_dir, what="restart"):
        decided = decide(run.run_dir, verdict(FailureClass.TRANSIENT))
    assert (decided["retry"], "restarting or removing" in decided["why"]) == (False, True)
    assert newest(run.run_dir) == 1


def test_nothing_is_begun_beside_an_attempt_of_a_person(drive: Drive) -> None:
    run = drive.create("true", retries=Retries(max=3, wait_s=0.01))
    assert next_attempt(run.run_dir, "restart") == 2
    decided = decide(run.run_dir, verdict(FailureClass.TRANSIENT))
    assert (decided["retry"], "another attempt" in decided["why"]) == (False, True)
    assert newest(run.run_dir) == 2


def test_a_request_to_stop_that_came_after_the_end_is_obeyed(drive: Drive) -> None:
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


@pytest.mark.parametrize("again", [False, True])
def test_a_stop_while_it_is_decided_reaches_whatever_was_decided(tmp_path: Path, *, again: bool) -> None:
    """The attempt has failed, and its supervisor (this process) has still to say whether another one follows."""
    run_dir = make_run(tmp_path, state=ended(Outcome.FAILED, 1), supervisor=living_process(os.getpid()))
    exit_record = f"{run_dir}/attempts/1/{wire.EXIT}"
    os.rename(exit_record, f"{exit_record}.later")
    looks: list[run_view.RunView] = []

    def stop() -> None:
        looks.append(stop_and_wait(run_dir, RequestKind.STOP, by="a person", wait_s=30, tell=lambda _: None))

    stopping = threading.Thread(target=stop)
    stopping.start()
    wished = Path(run_dir, wire.DESIRED)
    wait_until(wished.exists, what="the supervisor is asked not to go on")
    assert wire.from_bytes(RunRequest, wished.read_bytes(), wire.DESIRED).kind is RequestKind.STOP
    assert stopping.is_alive()
    # As the supervisor does it: what follows is on record and begun before the exit record is written.
    write(f"{run_dir}/attempts/1/{wire.RETRY}", json.dumps({"retry": again}))
    if again:
        make_run(tmp_path, state=ended(Outcome.STOPPED, 130), attempt=2)
    os.rename(f"{exit_record}.later", exit_record)
    stopping.join()
    assert [look.attempt for look in looks] == [2 if again else 1]


KEPT = "import os, sys; sys.exit(3 if os.path.exists(os.environ['HOLDFAST_ARTIFACT_DIR'] + '/tmp-1') else 0)"


@pytest.mark.slow
@pytest.mark.requirement("FAIL-03")
def test_a_disk_that_was_measured_full_is_cleared_of_declared_scratch_and_tried_again(drive: Drive) -> None:
    disk = DiskNeeds(min_free_bytes=1, min_free_inodes=1, scratch=("artifacts/tmp-*",))
    run = drive.create(sys.executable, "-c", KEPT, disk=disk, retries=Retries(max=1, wait_s=0.01))
    write(f"{run.run_dir}/artifacts/tmp-1", "x" * 5000)
    told = decide(run.run_dir, verdict(FailureClass.DISK_FULL, Confidence.LIKELY))
    assert (told["retry"], "pruned" in told, "measured full" in told["why"]) == (False, False, True)
    os.unlink(f"{run.run_dir}/attempts/1/{wire.RETRY}")
    decided = decide(run.run_dir, verdict(FailureClass.DISK_FULL))
    assert (decided["retry"], decided["pruned"]["freed_bytes"] >= 5000) == (True, True)
    run.attempt = 2
    assert run.ended().exit_code == 0


@pytest.mark.slow
@pytest.mark.requirement("FAIL-03")
def test_a_full_disk_without_anything_to_prune_is_asked_about(drive: Drive) -> None:
    run = drive.create("true", disk=DiskNeeds(min_free_bytes=1, min_free_inodes=1), retries=Retries(max=3, wait_s=0.01))
    decided = decide(run.run_dir, verdict(FailureClass.DISK_FULL))
    assert (decided["retry"], "no declared scratch" in decided["why"]) == (False, True)
    assert newest(run.run_dir) == 1
