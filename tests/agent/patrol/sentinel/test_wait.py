"""Sentinels: what they wait for, when they give up, that there is one of a kind, and that nothing needs them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.agent.patrol.sentinel import records, wait
from holdfast.agent.patrol.sentinel.wait import (
    ConditionKind,
    ConditionState,
    SentinelCondition,
    judge_condition,
    parse_condition,
)
from holdfast.agent.view import observe, run_view
from holdfast.core.patrol.evidence import StallLimits
from holdfast.host.clock import epoch_s, utc_now
from holdfast.host.process import processes
from holdfast.model import wire
from holdfast.model.errors import UsageError
from holdfast.model.record import replace
from holdfast.model.run import Outcome, Preflight
from tests.agent.driving import job
from tests.rundirs import dead_process, ended, living_process, make_run, running, write
from tests.waiting import LIMIT_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.agent.driving import Drive

pytestmark = pytest.mark.process

SOON = StallLimits(first_s=0.0, floor_s=0.0)


def look(run_dir: str) -> run_view.RunView:
    """The run as it is."""
    return observe.observe_run(run_dir)


def make_live(root: Path, run_id: str = "20261120-100000-digits-0a1b") -> str:
    """A run whose processes are ours."""
    me = living_process(os.getpid())
    return make_run(root, run_id, running(keeper=me, job=me), supervisor=me)


@pytest.mark.parametrize("text", ["ended", "started", "stalled", "failed", "step=0", "step=5000", "artifact=a/b.json"])
def test_a_condition_is_what_was_written(text: str) -> None:
    assert parse_condition(text).text == text


@pytest.mark.parametrize("text", ["", "done", "step", "step=", "step=x", "step=-1", "step=٣", "artifact=", "ended=1"])
def test_a_condition_that_there_is_not_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_condition(text)


@pytest.mark.requirement("MON-03")
@pytest.mark.parametrize(
    ("outcome", "condition", "verdict"),
    [
        (Outcome.SUCCEEDED, "ended", ConditionState.MET),
        (Outcome.SUCCEEDED, "started", ConditionState.MET),
        (Outcome.SUCCEEDED, "failed", ConditionState.NEVER),
        (Outcome.SUCCEEDED, "stalled", ConditionState.NEVER),
        (Outcome.SUCCEEDED, "step=5", ConditionState.NEVER),
        (Outcome.SUCCEEDED, "artifact=artifacts/none", ConditionState.NEVER),
        (Outcome.FAILED, "failed", ConditionState.MET),
        (Outcome.TIMED_OUT, "failed", ConditionState.MET),
        (Outcome.LOST, "failed", ConditionState.MET),
        (Outcome.STOPPED, "failed", ConditionState.NEVER),
        (Outcome.STOPPED, "ended", ConditionState.MET),
    ],
)
def test_after_the_end_a_condition_is_met_or_never_will_be(
    tmp_path: Path, outcome: Outcome, condition: str, verdict: ConditionState
) -> None:
    run_dir = make_run(tmp_path, state=ended(outcome, 0 if outcome is Outcome.SUCCEEDED else 1))
    answer = judge_condition(parse_condition(condition), look(run_dir))
    assert (answer.verdict, answer.exit_code) == (verdict, 0 if verdict is ConditionState.MET else 1)
    assert answer.words


@pytest.mark.requirement("MON-03", "MON-09")
def test_a_run_without_processes_is_lost_also_when_we_carry_its_marker(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path, state=running(), supervisor=dead_process())
    verdicts = {text: judge_condition(parse_condition(text), look(run_dir)) for text in ("ended", "step=9", "failed")}
    assert [answer.verdict for answer in verdicts.values()] == [
        ConditionState.NEVER,
        ConditionState.NEVER,
        ConditionState.MET,
    ]
    assert all("run lost" in answer.words for answer in verdicts.values())
    view = look(run_dir)
    assert wait.is_lost(replace(view, members=(living_process(os.getpid()),)))
    assert not wait.is_lost(replace(view, members=(living_process(1),)))


def test_a_run_that_has_not_begun_has_not_started(tmp_path: Path) -> None:
    me = living_process(os.getpid())
    run_dir = make_run(tmp_path, state=Preflight(utc_now()), supervisor=me)
    assert judge_condition(SentinelCondition(ConditionKind.STARTED), look(run_dir)).verdict is ConditionState.WAITING


@pytest.mark.requirement("MON-12")
def test_a_result_counts_when_it_is_whole_and_of_this_attempt(tmp_path: Path) -> None:
    run_dir = make_live(tmp_path)
    wanted = parse_condition("artifact=artifacts/result.json")
    path = wait.place_of(wanted, run_dir)
    assert judge_condition(wanted, look(run_dir)).verdict is ConditionState.WAITING
    write(path, "")
    assert judge_condition(wanted, look(run_dir)).verdict is ConditionState.WAITING
    write(path, '{"accuracy": 0.')
    assert judge_condition(wanted, look(run_dir)).verdict is ConditionState.WAITING
    write(path, '{"accuracy": 0.9}')
    assert judge_condition(wanted, look(run_dir)).verdict is ConditionState.MET
    os.utime(path, (1000.0, 1000.0))
    assert judge_condition(wanted, look(run_dir)).verdict is ConditionState.WAITING
    os.mkdir(f"{run_dir}/artifacts/half")
    assert judge_condition(parse_condition("artifact=artifacts/half"), look(run_dir)).verdict is ConditionState.WAITING


class Waiting:
    """`sentinel.wait` in a process of its own."""

    def __init__(self, run_dir: str, condition: str, *, max_s: float = 30.0) -> None:
        code = (
            "import sys; from holdfast.agent.patrol.sentinel import wait as s; print('armed', flush=True);"
            "a = s.wait_for_condition(sys.argv[1], s.parse_condition(sys.argv[2]), "
            "max_s=float(sys.argv[3]), attempt=1);print(a.words); sys.exit(a.exit_code)"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, run_dir, condition, str(max_s)], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "armed\n"

    def __enter__(self) -> Waiting:  # noqa: PYI034 - typing.Self is newer than Python 3.10
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def end(self) -> tuple[int, str]:
        said, _ = self.process.communicate(timeout=LIMIT_S)
        return self.process.returncode, said


@pytest.mark.requirement("MON-03")
def test_it_ends_when_the_result_appears_in_a_directory_that_was_not_there_yet(tmp_path: Path) -> None:
    run_dir = make_live(tmp_path)
    with Waiting(run_dir, "artifact=artifacts/deep/er/r.json") as waiting:
        os.makedirs(f"{run_dir}/artifacts/deep/er")
        write(f"{run_dir}/artifacts/deep/er/.r.tmp", "{}")
        os.rename(f"{run_dir}/artifacts/deep/er/.r.tmp", f"{run_dir}/artifacts/deep/er/r.json")
        code, said = waiting.end()
    assert code == 0
    assert "r.json is there" in said


@pytest.mark.slow
@pytest.mark.requirement("MON-03")
def test_it_ends_at_a_step_and_when_its_life_is_over(tmp_path: Path) -> None:
    run_dir = make_live(tmp_path)
    with Waiting(run_dir, "step=7") as waiting:
        write(f"{run_dir}/attempts/1/{wire.HEARTBEAT}", json.dumps({"step": 6}))
        write(f"{run_dir}/attempts/1/{wire.HEARTBEAT}", json.dumps({"step": 8}))
        assert waiting.end()[0] == 0
    with Waiting(run_dir, "step=99", max_s=0.2) as late:
        assert late.end()[0] == 124


def test_it_ends_when_it_is_told_to(tmp_path: Path) -> None:
    with Waiting(make_live(tmp_path), "ended") as waiting:
        wait_until(lambda: handles_term(waiting.process.pid), what="it listens to TERM")
        waiting.process.terminate()
        assert waiting.end()[0] == 130


def handles_term(pid: int) -> bool:
    """Whether it has a handler for TERM. Source: proc_pid_status(5), SigCgt."""
    with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
        caught = next(line for line in file if line.startswith("SigCgt"))
    return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


@pytest.mark.slow
@pytest.mark.gotcha("U18")
@pytest.mark.requirement("MON-03", "MON-01")
def test_killed_watchers_change_nothing_and_a_living_one_hears_of_the_end(drive: Drive, tmp_path: Path) -> None:
    gate = tmp_path / "go"
    script = f'echo ready; while [ ! -e {gate} ]; do sleep 0.05; done; echo done > "$HOLDFAST_ARTIFACT_DIR/r"'
    run = drive("sh", "-c", script, artifacts=("artifacts/r",))
    run.ready()
    with Waiting(run.run_dir, "ended") as killed, Waiting(run.run_dir, "ended") as waiting:
        killed.process.kill()
        killed.process.wait()
        gate.touch()
        assert waiting.end()[0] == 0
    assert run.ended().outcome is Outcome.SUCCEEDED


@pytest.mark.requirement("MON-03")
def test_a_run_that_is_killed_with_everything_ends_its_sentinel(drive: Drive) -> None:
    run = drive(*job("stay"))
    state = run.ready()
    with Waiting(run.run_dir, "step=9") as waiting:
        run.kill_supervisor()
        run.kill(state.keeper)
        run.kill(state.job.process)
        code, said = waiting.end()
    assert code == 1
    assert "run lost" in said


@pytest.mark.slow
@pytest.mark.requirement("MON-07")
def test_a_real_run_that_stands_still_is_seen_to_stall(drive: Drive) -> None:
    run = drive(*job("stay"), health_every_s=0.2)
    run.ready()
    answer = wait.wait_for_condition(
        run.run_dir, SentinelCondition(ConditionKind.STALLED), max_s=90, attempt=1, limits=SOON
    )
    assert answer.verdict is ConditionState.MET
    assert "stalls" in answer.words
    run.ask()
    run.ended()


# ------------------------------------------------------------------------------------------------------------- records


@pytest.fixture
def sleeper() -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    """Processes that stand for sentinels."""
    made: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        made.append(subprocess.Popen(["sleep", "600"], start_new_session=True))
        return made[-1]

    yield start
    for process in made:
        process.kill()
        process.wait()


def record_of(pid: int, run_dir: str, condition: str = "ended", **changes: Any) -> records.SentinelRecord:
    """A sentinel's record."""
    values: dict[str, Any] = {
        "run_id": os.path.basename(run_dir),
        "run_dir": run_dir,
        "attempt": 1,
        "condition": condition,
        "host": os.uname().nodename,
        "process": living_process(pid),
        "armed_at": utc_now(),
        "until": epoch_s() + 600,
    }
    return records.SentinelRecord(**{**values, **changes})


@pytest.mark.requirement("MON-03")
def test_five_of_a_kind_leave_one_and_another_kind_is_left_alone(
    tmp_path: Path, sleeper: Callable[[], subprocess.Popen[bytes]]
) -> None:
    run_dir = make_live(tmp_path)
    other = sleeper()
    assert records.arm(record_of(other.pid, run_dir, "step=5")) is None
    started = [sleeper() for _ in range(5)]
    for before, process in zip([None, *started], started, strict=False):
        superseded = records.arm(record_of(process.pid, run_dir))
        assert (superseded.process.pid if superseded else None) == (before.pid if before else None)
    assert [process.poll() for process in started[:-1]] == [-signal.SIGTERM] * 4
    assert started[-1].poll() is None
    assert other.poll() is None
    waiting = [record for _, record in records.list_all() if record and records.is_waiting(record)]
    assert {record.process.pid for record in waiting} == {other.pid, started[-1].pid}


@pytest.mark.requirement("MON-03", "PROC-08")
def test_a_record_whose_pid_is_somebody_elses_now_ends_nobody(
    tmp_path: Path, sleeper: Callable[[], subprocess.Popen[bytes]]
) -> None:
    run_dir = make_live(tmp_path)
    stranger, mine = sleeper(), sleeper()
    real = living_process(stranger.pid)
    stale = type(real)(real.pid, real.start_ticks - 1, real.boot_id)
    records.arm(record_of(stranger.pid, run_dir, process=stale))
    assert records.arm(record_of(mine.pid, run_dir)) is None
    assert stranger.poll() is None
    assert records.end(stale)
    assert stranger.poll() is None


@pytest.mark.slow
def test_one_that_was_stopped_by_a_signal_is_ended_too(sleeper: Callable[[], subprocess.Popen[bytes]]) -> None:
    stopped = sleeper()
    identity = living_process(stopped.pid)
    stopped.send_signal(signal.SIGSTOP)
    wait_until(lambda: getattr(processes.read_stat(stopped.pid), "state", "") == "T", what="it has stopped")
    # Its parent must wait for it, or it stays as a zombie and its pidfd says so at once anyway.
    reaper = threading.Thread(target=stopped.wait)
    reaper.start()
    assert records.end(identity)
    reaper.join()
    assert stopped.returncode == -signal.SIGKILL


def test_the_outcome_of_a_detached_one_is_kept_and_a_watched_one_leaves_nothing(
    tmp_path: Path, sleeper: Callable[[], subprocess.Popen[bytes]]
) -> None:
    run_dir = make_live(tmp_path)
    watched, detached = record_of(sleeper().pid, run_dir), record_of(sleeper().pid, run_dir, "failed", detached=True)
    for record in (watched, detached):
        records.arm(record)
        records.finish(record, "met", "it has ended", 0)
    kept = [record for _, record in records.list_all()]
    assert [(record.condition, record.outcome, record.exit_code) for record in kept if record] == [("failed", "met", 0)]
    later = record_of(sleeper().pid, run_dir, "failed")
    records.arm(later)
    records.finish(detached, "met", "too late", 0)
    assert records.read(records.path_of(later.run_id, "failed")) == later
