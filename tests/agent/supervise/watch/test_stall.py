"""A stall that is reported comes with what the job is doing; one that stops the job does not wait for it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.agent.supervise.watch import stall as stall_diagnosis
from holdfast.agent.supervise.watch import stall_look
from holdfast.agent.supervise.watch.stall import StallDiagnosis
from holdfast.agent.supervise.watch.stall_look import diagnose_stall
from holdfast.host.clock import monotonic_s
from holdfast.host.process import processes
from holdfast.model.job import Notify, StallAction, StallOptions
from holdfast.model.run import Outcome, RequestKind
from tests.agent.driving import Drive, Driven
from tests.agent.loops import Turned
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.process

PACER = str(Path(__file__).parents[2] / "jobs" / "pacer.py")
STALLS = (sys.executable, PACER, "--stacks", "steps:8:0.2", "hang")


def hook(tmp_path: Path) -> tuple[str, ...]:
    return ("sh", "-c", f"cat >> {tmp_path}/messages")


def messages(tmp_path: Path) -> list[dict[str, Any]]:
    path = tmp_path / "messages"
    decoder, text, found = json.JSONDecoder(), path.read_text() if path.exists() else "", []
    while text.strip():
        message, end = decoder.raw_decode(text.lstrip())
        found.append(message)
        text = text.lstrip()[end:]
    return [message for message in found if message["state"] == "stalled"]


def stall(drive: Drive, tmp_path: Path, action: StallAction = StallAction.REPORT) -> Driven:
    rule = StallOptions(no_progress_s=2.5, startup_s=60.0, action=action)
    return drive(*STALLS, stall=rule, notify=Notify(hook(tmp_path)), grace_s=0.5)


@pytest.mark.slow
@pytest.mark.requirement("MON-07", "DIAG-03")
def test_MON_07_a_reported_stall_says_what_the_job_is_doing(drive: Drive, tmp_path: Path) -> None:
    run = stall(drive, tmp_path)
    (event,) = wait_until(lambda: run.events("diagnosed"), what=f"it was diagnosed; {run.log()}")
    assert event["data"]["class"] == "deadlock", event
    assert event["data"]["action"]
    assert event["data"]["evidence_for"]
    (message,) = wait_until(lambda: messages(tmp_path), what="it was told")
    assert message["diagnosis"] == event["data"]
    assert "no step for" in message["reason"]
    assert run.kind() == "running", "nothing was done to it"
    run.ask(RequestKind.STOP_NOW)
    run.ended()


@pytest.mark.slow
@pytest.mark.requirement("MON-07")
def test_MON_07_a_stop_does_not_wait_for_a_diagnosis(drive: Drive, tmp_path: Path) -> None:
    run = stall(drive, tmp_path, StallAction.STOP)
    assert run.ended().outcome is Outcome.TIMED_OUT
    assert run.events("diagnosed") == []
    (message,) = messages(tmp_path)
    assert (message["stopped"], "diagnosis" in message) == (True, False)


@pytest.mark.slow
@pytest.mark.requirement("MON-07")
def test_MON_07_a_job_that_ends_meanwhile_is_still_told_of(drive: Drive, tmp_path: Path) -> None:
    run = stall(drive, tmp_path)
    wait_until(lambda: run.events("stalled"), what=f"it stalled; {run.log()}")
    run.ask(RequestKind.STOP_NOW)
    assert run.ended().outcome is Outcome.STOPPED
    (event,) = run.events("diagnosed")
    assert event["data"] == {"failed": "the job's end came first"}
    (message,) = messages(tmp_path)
    assert message["diagnosis"] == event["data"]


class Bench:
    """A diagnosis beside a loop that the test turns by hand."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, work: Callable[[], object]) -> None:
        from types import SimpleNamespace

        self.events: list[dict[str, object]] = []
        self.told: list[dict[str, object]] = []
        self.loop = Turned()
        monkeypatch.setattr(stall_look, "diagnose_stall", lambda *_, **__: work())
        recorder = SimpleNamespace(event=lambda _, **data: self.events.append(data))
        context: Any = SimpleNamespace(run_id="r", run_dir=str(root), directory=str(root))
        context.loop, context.recorder = self.loop, recorder
        job: Any = SimpleNamespace(containment=None, list_processes=list)
        lease: Any = SimpleNamespace(leased_cards=frozenset())
        self.diagnosis = StallDiagnosis(context, job, lease)

    def run(self) -> None:
        self.diagnosis.begin(30.0, self.told.append)


def wait_for_ever() -> None:
    import signal

    signal.pause()


def test_a_diagnosis_that_hangs_is_given_up_and_is_no_part_of_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_leaks: None
) -> None:
    bench = Bench(tmp_path, monkeypatch, wait_for_ever)
    bench.run()
    (pid,) = bench.loop.helpers
    assert processes.read_stat(pid) is not None
    bench.run()
    assert bench.told == [{"failed": "another diagnosis is under way"}], "one at a time"
    monkeypatch.setattr("holdfast.agent.supervise.timers.monotonic_s", lambda: monotonic_s() + stall_diagnosis.WITHIN_S)
    bench.loop.timers.run_due()
    assert bench.told[1] == bench.events[-1] == {"failed": "no answer within 12 s"}
    assert (bench.loop.helpers, bench.loop.ready, bench.loop.timers.next_delay_ms()) == (set(), {}, None)
    assert processes.read_stat(pid) is None
    bench.diagnosis.end()
    assert len(bench.told) == 2, "told once"


def test_a_diagnosis_that_fails_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_leaks: None) -> None:
    def fail() -> None:
        raise RuntimeError("broken")

    bench = Bench(tmp_path, monkeypatch, fail)
    bench.run()

    def turn() -> bool:
        for take in list(bench.loop.ready.values()):
            take()
        return bool(bench.told)

    wait_until(turn, what="it failed")
    assert bench.told == [{"failed": "RuntimeError: broken"}]


def test_what_has_gone_is_diagnosed_without_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.diagnosis.live.judge.INTERVAL_S", 0.01)
    monkeypatch.setattr("holdfast.diagnosis.live.judge.time.sleep", lambda _: None)
    mine = processes.identify_self()
    gone = type(mine)(mine.pid, mine.start_ticks + 1, mine.boot_id)
    found = diagnose_stall("r", str(tmp_path), str(tmp_path), (gone,), group_dirs=(), cards=frozenset(), limit_s=30.0)
    assert found["class"] == "unclear"
