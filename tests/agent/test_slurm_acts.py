"""Stopping, waiting for and listing runs whose jobs Slurm has, by what its commands say; each is one look at it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.agent.control import restart
from holdfast.agent.control.restart import Restarted, restart_run
from holdfast.agent.control.scheduled import stop as scheduled_stop
from holdfast.agent.control.scheduled.stop import settle_over
from holdfast.agent.control.stop import StopResult, stop_run
from holdfast.agent.patrol.patrol import run_patrol
from holdfast.agent.place.foreground import batch
from holdfast.agent.queue.change.stop import pause, resume
from holdfast.agent.queue.wait import run as wait_run
from holdfast.agent.queue.wait.run import wait_for_run
from holdfast.agent.view import scheduled
from holdfast.agent.view.follow import RunFollower
from holdfast.agent.view.observe import observe_run
from holdfast.agent.view.page.dossier import read_dossier
from holdfast.agent.view.runs.row import read_row
from holdfast.agent.view.scheduled import hear, hear_rows
from holdfast.cli.render.stop import print_stopped
from holdfast.host.clock import monotonic_s, utc_now
from holdfast.model import wire
from holdfast.model.errors import Unreachable, UsageError
from holdfast.model.job import JobSpec
from holdfast.model.origin import JobChange, KeyChange
from holdfast.model.record import replace
from holdfast.model.run import Outcome, StopCause, StopRequest
from tests.rundirs import ended, running
from tests.waiting import LONG_S

if TYPE_CHECKING:
    from tests.slurm.programs import Programs

pytestmark = pytest.mark.process

WARNED = replace(
    ended(Outcome.PREEMPTED, 143), request=StopRequest(StopCause.PREEMPTION, "SIGUSR1 to the supervisor", warned=True)
)
SHOWN = (Path(__file__).parents[1] / "fixtures/slurm/22.05.8/job-running.txt").read_text()


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look again without a pause."""
    monkeypatch.setattr(scheduled_stop, "LOOK_S", 0.01)
    monkeypatch.setattr(scheduled, "AGAIN_S", 0.0)
    monkeypatch.setattr(wait_run, "LOOK_AGAIN_S", 0.05)


def _stop(run_dir: str, *, now: bool = False) -> StopResult:
    """A stop that would wait for longer than a test may take."""
    return stop_run(run_dir, force=now, reason="", wait_s=600.0, tell=lambda _: None)


def _read_exit(run_dir: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(run_dir, "attempts/1/exit.json").read_text())
    return found


def test_an_end_that_only_slurm_saw_of_a_run_that_never_began_is_lost_as_it_is_shown(programs: Programs) -> None:
    run_dir = programs.make_run()
    assert hear(observe_run(run_dir)).condition == "lost"
    assert settle_over(run_dir).over
    end = _read_exit(run_dir)
    assert (end["outcome"], end["exit_code"]) == ("lost", 71)
    assert "does not know job 7 any more" in end["evidence"]
    assert "given up before its job started; slurm said" in end["evidence"]


def test_one_that_slurm_cancelled_before_it_began_is_stopped_and_one_that_a_person_stops_too(
    programs: Programs,
) -> None:
    cancelled, stopped = programs.make_run(), programs.make_run(name="other", job_id="8")
    programs.list_job(cancelled, "CANCELLED")
    assert settle_over(cancelled).over
    programs.list_job(stopped, "PENDING", job_id="8", reason="Priority")
    programs.write("scancel", f": > {programs.bin}/squeue.txt")
    assert _stop(stopped).ended
    assert [_read_exit(each)["exit_code"] for each in (cancelled, stopped)] == [130, 130]
    assert programs.count("scancel") == 1


def test_a_stop_asks_squeue_once_before_it_cancels_and_once_whether_that_is_so(programs: Programs) -> None:
    run_dir = programs.make_run()
    programs.list_job(run_dir, "PENDING", reason="Priority")
    programs.write("scancel", f"sed -i s/PENDING/CANCELLED/ {programs.bin}/squeue.txt")
    assert _stop(run_dir).ended
    assert programs.list_calls() == ["squeue", "scancel", "squeue"]


def test_a_job_that_runs_is_not_asked_about_again_before_its_end_is_written(
    programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = programs.make_run(running())
    programs.list_job(run_dir, "RUNNING")
    looks: list[int] = []

    def rest(_: RunFollower, _limit_s: float) -> None:
        looks.append(programs.count("squeue"))
        if len(looks) == 5:
            # Its supervisor writes the end, and the batch process is gone.
            shutil.rmtree(Path(run_dir, "attempts"))
            programs.make_run(ended(Outcome.STOPPED, 130))
            programs.list_job(run_dir, "COMPLETED")

    monkeypatch.setattr(RunFollower, "rest", rest)
    assert _stop(run_dir).ended
    assert (looks, programs.count("squeue")) == ([1] * 5, 2)


def test_a_job_that_waits_is_held_by_slurm_and_let_go_and_one_that_runs_is_not(programs: Programs) -> None:
    waits, runs = programs.make_run(), programs.make_run(running(), name="other", job_id="8")
    programs.list_job(waits, "PENDING", reason="Priority")
    programs.answer("scontrol", "")
    held = pause([waits], reason="", by="anna")
    assert [(job.job, job.state.value, job.note) for job in held.jobs] == [(Path(waits).name, "held", "job 7 of slurm")]
    assert "queue resume" in held.notes[-1]
    assert resume([waits], accept_changes=False, with_environment=False).jobs[0].state.value == "queued"
    calls = [line for line in programs.log.read_text().splitlines() if line.startswith("scontrol")]
    assert calls == ["scontrol uhold 7", "scontrol release 7"]
    with pytest.raises(UsageError, match="keeps no reason"):
        pause([waits], reason="later", by="anna")
    programs.list_job(runs, "RUNNING", job_id="8")
    with pytest.raises(UsageError, match="only a job that waits can be held"):
        pause([runs], reason="", by="anna")


def test_a_damaged_slurm_json_hides_no_job_and_ends_a_wait_once_there_is_none(programs: Programs) -> None:
    run_dir = programs.make_run()
    Path(run_dir, "slurm.json").write_text('{"name": "x", "jo')
    Path(run_dir, "batch.sh").touch()
    programs.list_job(run_dir, "PENDING", reason="Priority")
    assert hear(observe_run(run_dir)).condition == "pending (Priority)"
    programs.answer("squeue", "")
    view, code = wait_for_run(run_dir, deadline=monotonic_s() + LONG_S)
    assert (view.condition, code) == ("lost", 71)
    assert "slurm.json" in view.note
    # A job of a sweep has no script of its own: while there are arrays it may be a task of one.
    Path(run_dir, "batch.sh").unlink()
    programs.answer("squeue", f"9_[0-3]|PENDING|N/A|0:00|1:00|None|()|{programs.runs}/.sweeps-0/rates/1/batch.sh\n")
    assert hear(observe_run(run_dir)).condition == "unknown (damaged slurm.json)"


def test_a_suspended_run_is_not_waited_for_and_stop_now_has_slurm_end_it(programs: Programs) -> None:
    run_dir = programs.make_run(running())
    programs.list_job(run_dir, "SUSPENDED")
    assert hear(observe_run(run_dir)).condition == "suspended"
    left = _stop(run_dir)
    assert (left.condition, left.exit_code) == ("suspended", 124)
    assert "nothing of it hears a stop before" in left.note
    assert "scancel" not in programs.list_calls()
    programs.write("scancel", f"sed -i s/SUSPENDED/CANCELLED/ {programs.bin}/squeue.txt")
    assert _stop(run_dir, now=True).ended
    assert _read_exit(run_dir)["exit_code"] in (71, 130)


@pytest.mark.parametrize("outcome", [Outcome.PREEMPTED, Outcome.FAILED])
def test_a_job_that_somebody_has_put_back_is_shown_as_waiting_and_stop_takes_it_out(
    programs: Programs, capsys: pytest.CaptureFixture[str], outcome: Outcome
) -> None:
    run_dir = programs.make_run(ended(outcome, 1, at=utc_now()))
    programs.list_job(run_dir, "REQUEUE_HOLD", reason="job requeued in held state")
    assert hear(observe_run(run_dir)).condition == "pending (job requeued in held state)"
    row = read_row(str(programs.runs), Path(run_dir).name)
    (heard,) = hear_rows([row])
    assert (heard.condition, heard.ended) == ("pending (job requeued in held state)", False)
    assert programs.count("sacct") == 0

    (seen,) = run_patrol([str(programs.runs)]).seen
    assert (seen.judgement.ending.row, seen.judgement.escalate) == ("queued", False)
    assert programs.count("sacct") == 0

    programs.write("scancel", f": > {programs.bin}/squeue.txt")
    print_stopped(_stop(run_dir))
    assert "job 7, which was to begin it again, is taken out of the queue" in capsys.readouterr().out
    calls = len(programs.list_calls())
    print_stopped(_stop(run_dir))
    assert "is taken out of the queue" not in capsys.readouterr().out
    assert programs.list_calls()[calls:] == ["squeue"]
    # An end that nobody has put back asks for no accounts, and a success asks for nothing.
    assert hear(observe_run(run_dir)).condition == outcome.value
    assert programs.count("sacct") == 0


def test_a_success_is_never_asked_about(programs: Programs) -> None:
    run_dir = programs.make_run(ended())
    assert hear(observe_run(run_dir)).condition == "succeeded"
    assert _stop(run_dir).already_ended
    assert programs.list_calls() == []


def test_a_restart_that_is_killed_anywhere_keeps_what_was_asked_of_it(
    programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = programs.make_run(ended(Outcome.FAILED, 1, at=utc_now()))
    programs.take_jobs()
    took = (programs.bin / "sbatch").read_text()
    spec = wire.decode(JobSpec, observe_run(run_dir).spec)
    changed = JobChange(replace(spec, slurm={"time": "480"}), (KeyChange("slurm.time", "", "480"),), "anna", utc_now())

    def again(change: JobChange | None = None) -> Restarted:
        return restart_run(run_dir, environ={}, by="anna", wait_s=5.0, tell=lambda _: None, change=lambda: change)

    programs.write("sbatch", "echo 'sbatch: error: Unable to contact slurm controller' >&2; exit 1")
    with pytest.raises(Unreachable):
        again(changed)

    def die(*_: object, **__: object) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(restart, "next_attempt", die)
        patch.setattr(restart, "amend_attempt", die)
        with pytest.raises(KeyboardInterrupt):
            again()
    (programs.bin / "sbatch").write_text(took)
    assert again().attempt == 2
    assert "#SBATCH --time=480" in programs.read_script(1)
    assert sorted(entry.name for entry in Path(run_dir, "attempts").iterdir()) == ["1", "2"]


@pytest.mark.parametrize(("restarts", "said"), [(1, "is put back into the queue"), (0, "was not put back")])
def test_a_requeue_whose_answer_came_too_late_is_told_as_what_it_became(
    programs: Programs, capfd: pytest.CaptureFixture[str], restarts: int, said: str
) -> None:
    shown = SHOWN.replace("JobId=1 ", "JobId=7 ").replace("Restarts=0", f"Restarts={restarts}")
    (programs.bin / "shown.txt").write_text(shown)
    refused = "echo 'slurm_requeue error: Job is pending execution' >&2; exit 1"
    programs.write("scontrol", f'case "$1" in requeue) {refused};; esac; cat {programs.bin}/shown.txt')
    run_dir = programs.make_run(WARNED)
    batch._go_on(run_dir, batch._Batch("7", 0))
    assert said in capfd.readouterr().err
    told = f"{wire.attempt_dir(run_dir, 1)}/{wire.REQUEUE}"
    assert os.path.exists(told) == (restarts == 0)
    assert restarts or "Job is pending execution" in Path(told).read_text()


@pytest.mark.requirement("SLM-11")
def test_a_job_that_somebody_ends_after_the_warning_is_not_put_back(
    programs: Programs, capfd: pytest.CaptureFixture[str]
) -> None:
    programs.answer("scontrol", SHOWN.replace("JobId=1 ", "JobId=7 "))
    run_dir = programs.make_run(WARNED)
    heard = batch._Batch("7", 0)
    assert heard.explain(signal.SIGUSR1).cause is StopCause.PREEMPTION
    assert heard.explain(signal.SIGTERM).cause is StopCause.SIGNAL
    batch._go_on(run_dir, heard)
    assert "was not put back into the queue: somebody ended it" in capfd.readouterr().err

    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)  # another thread holds nothing back
        batch._go_on(run_dir, batch._Batch("7", 0))
        signal.sigwait({signal.SIGTERM})
        calls = programs.log.read_text()
        assert "scontrol requeue" not in calls
        batch._go_on(run_dir, batch._Batch("7", 0))
        assert programs.log.read_text().removeprefix(calls).splitlines()[-1] == "scontrol requeue 7"
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def test_a_term_that_nobody_explains_is_the_time_limit_once_that_has_come(programs: Programs) -> None:
    place = batch._Batch("7", 0)
    for left_s, cause in ((60.0, StopCause.SIGNAL), (-1.0, StopCause.DEADLINE)):
        place.end_s = time.time() + left_s
        assert place.explain(signal.SIGTERM).cause is cause


def test_a_run_that_gets_nowhere_is_not_put_back_and_says_what_to_do(
    programs: Programs, capfd: pytest.CaptureFixture[str]
) -> None:
    for attempt in (1, 2, 3):
        run_dir = programs.make_run(WARNED, attempt=attempt)
        record = Path(run_dir, wire.RUN)
        origin = json.loads(record.read_text())
        record.write_text(json.dumps({**origin, "job": {**origin["job"], "workdir": run_dir}}))
        Path(wire.attempt_dir(run_dir, attempt), wire.NATIVE).touch()
    batch._go_on(run_dir, batch._Batch("7", 0))
    assert "scontrol requeue" not in programs.log.read_text()
    words = f"holdfast restart {Path(run_dir).name}"
    assert words in capfd.readouterr().err
    requeue = read_dossier(run_dir, None).requeue
    assert requeue is not None
    assert requeue.startswith("no other attempt: Slurm's job was not put back: 3 attempts in a row were warned")
    assert words in requeue
