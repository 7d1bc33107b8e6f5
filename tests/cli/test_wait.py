"""``holdfast wait``: 0 only for what is proven done, and no wait for what cannot go on."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.agent.queue.wait.names import Waited
from holdfast.agent.queue.wait.run import wait_for_run
from holdfast.cli.placed.wait import read_answer
from holdfast.desk.runs.wait import WaitedPlace
from holdfast.host.clock import utc_now
from holdfast.host.process.processes import identify_self
from holdfast.model import wire
from holdfast.model.ids import name_of
from holdfast.model.lease import BusyReason, Witness
from holdfast.model.queue import JobState
from holdfast.model.run import Waiting
from holdfast.store.paths import queue_directory
from tests.cli.queues import no_worker, put, say
from tests.rundirs import ended, make_run

if TYPE_CHECKING:
    from holdfast.agent.view.run_view import RunView

pytestmark = pytest.mark.contract

__all__ = ["no_worker"]
RUN = "20261120-104501-{}-3fa2"


def end(name: str, state: JobState, **facts: object) -> None:
    """Take a job through its states as a worker would."""
    put(name, JobState.CLAIMED, run_id=RUN.format(name.rpartition("/")[2]))
    put(name, JobState.RUNNING)
    if state is JobState.DONE:
        put(name, JobState.PRODUCED, outcome="succeeded", exit_code=0)
    put(name, state, **facts)


@pytest.mark.usefixtures("no_worker")
class TestWithoutAWorker:
    """What can be told at once."""

    def test_an_empty_queue_is_nothing_to_wait_for(self) -> None:
        assert say("wait").code == 66
        said = say("wait", "nothing")
        assert (said.code, "`holdfast queue ls` lists the jobs, `holdfast ls` the runs" in said.err) == (66, True)

    @pytest.mark.requirement("QUEUE-05")
    def test_everything_proven_done_is_0(self) -> None:
        for name in ("a", "b"):
            say("submit", "--name", name, "--", "true")
            end(name, JobState.DONE)
        said = say("wait")
        assert (said.code, said.out) == (0, "done: 2 of 2 done\n")
        assert say("wait", "a", "b").code == 0
        assert say("wait", "default/", "--quiet").code == 0

    @pytest.mark.requirement("QUEUE-05", "QUEUE-06")
    def test_what_failed_or_was_cancelled_is_listed_with_the_command_for_it(self) -> None:
        for name in ("a", "b", "c"):
            say("submit", "--group", "g", "--name", name, "--", "true")
        end("g/a", JobState.DONE)
        end("g/b", JobState.FAILED, exit_code=3, outcome="failed", failure="program_error", note="it said 3")
        say("queue", "cancel", "g/c")
        said = say("wait", "g/")
        assert said.code == 1
        assert "1 of 3 done, 1 failed, 1 cancelled" in said.out
        assert "exit 3" in said.out
        assert "it said 3" in said.out
        assert "try again what is missing, once its cause is mended: holdfast queue retry g/b\n" in said.err
        assert "cancelled: g/c; if it is still wanted: holdfast queue retry g/c\n" in said.err
        value = say("wait", "g", "--json").json()
        assert value["rerun"] == "holdfast queue retry g/b g/c"
        assert value["rerun_failed"] == "holdfast queue retry g/b"
        assert value["rerun_cancelled"] == "holdfast queue retry g/c"
        assert "try again" not in say("wait", "g/c").err
        assert (value["exit_code"], value["done"], value["total"]) == (1, 1, 3)

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (("queue", "pause"), "queue is paused"),
            (("queue", "drain"), "being drained"),
            (("queue", "pause", "g"), "group g is paused"),
        ],
    )
    def test_a_pause_ends_the_wait_with_its_reason(self, arguments: tuple[str, ...], words: str) -> None:
        say("submit", "--group", "g", "--", "true")
        assert say(*arguments).code == 0
        said = say("wait", "g/")
        assert said.code == 1
        assert words in said.err
        assert "holdfast queue resume" in said.err

    def test_no_cpu_slots_end_the_wait_but_of_jobs_for_cards(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOLDFAST_SIMULATED_GPUS", "1x80GB")
        say("submit", "--name", "a", "--", "true")
        say("submit", "--name", "b", "--gpus", "1", "--", "true")
        say("queue", "set", "--cpu-slots", "0")
        assert "no CPU slots" in say("wait", "a").err
        assert say("wait", "b", "--timeout", "0.05s").code == 124

    def test_a_held_job_ends_the_wait(self) -> None:
        say("submit", "--name", "a", "--", "true")
        put("a", JobState.HELD, note="changed since submit: train.py")
        said = say("wait", "a")
        assert said.code == 1
        assert "changed since submit" in said.err

    @pytest.mark.requirement("QUEUE-10")
    def test_a_job_behind_a_failure_ends_the_wait(self) -> None:
        say("submit", "--name", "a", "--", "true")
        say("submit", "--name", "b", "--after", "a", "--", "true")
        end("a", JobState.FAILED, exit_code=1, outcome="failed")
        said = say("wait", "b")
        assert said.code == 1
        assert "b needs a (failed)" in said.err

    def test_only_a_job_that_needs_what_was_cancelled_can_go_without_it(self) -> None:
        say("submit", "--name", "a", "--", "true")
        say("submit", "--name", "b", "--after", "a", "--", "true")
        say("submit", "--name", "c", "--after", "b", "--", "true")
        say("queue", "cancel", "a")
        without = "; without it: holdfast queue cancel b, then submit it again without --after"
        assert f"b needs a (cancelled): holdfast queue retry a{without}\n" in say("wait", "b").err
        assert "c needs a (cancelled): holdfast queue retry a\n" in say("wait", "c").err

    @pytest.mark.requirement("QUEUE-10")
    def test_a_job_behind_a_failure_does_not_wait_for_jobs_that_are_no_concern_of_its(self) -> None:
        say("submit", "--name", "other", "--group", "more", "--", "true")
        say("submit", "--name", "a", "--", "true")
        say("submit", "--name", "b", "--after", "a", "--", "true")
        say("submit", "--name", "c", "--after", "b,more/other", "--", "true")
        end("a", JobState.FAILED, exit_code=1, outcome="failed")
        said = say("wait", "c", "--timeout", "5s")
        assert said.code == 1
        assert "c needs a (failed), more/other (queued)" in said.err

    def test_a_job_whose_needs_all_go_on_is_waited_for(self) -> None:
        say("submit", "--name", "a", "--", "true")
        say("submit", "--name", "b", "--after", "a", "--", "true")
        say("submit", "--name", "c", "--after", "b", "--", "true")
        assert say("wait", "c", "--timeout", "0.3s").code == 124

    def test_no_worker_to_be_had_ends_the_wait(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("holdfast.agent.queue.wait.wait.COME_UP_S", 0.1)
        say("submit", "--", "true")
        said = say("wait")
        assert said.code == 1
        assert "no worker stays" in said.err

    def test_jobs_that_were_cleared_meanwhile_are_not_done(self, monkeypatch: pytest.MonkeyPatch) -> None:
        say("submit", "--group", "g", "--name", "a", "--", "true")
        say("submit", "--group", "g", "--name", "b", "--", "true")
        orders = iter([("queue", "cancel", "g/", "--yes"), ("queue", "clear", "g", "--yes")])

        def act(*_: object) -> frozenset[str]:
            for _each in range(2):
                assert say(*next(orders)).code == 0
            return frozenset()

        # What would be slept through happens.
        monkeypatch.setattr("holdfast.agent.view.changes.ChangeWatch.wait", act)
        said = say("wait", "g/")
        assert said.code == 1, said

    def test_a_terminal_gets_one_line_that_goes_on(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("holdfast.cli.render.redrawn_line.is_terminal", lambda _: True)
        for _ in range(3):
            say("submit", "--group", "g", "--", "true")
        end("g/true", JobState.DONE, ended_at=60.0, started_at=0.0)
        put("g/true-2", JobState.CLAIMED, run_id=RUN.format("b"))
        put("g/true-2", JobState.RUNNING, started_at=0.0)
        said = say("wait", "g", "--timeout", "0.05s")
        assert said.code == 124
        assert said.err.startswith("\r1 of 3 done, 1 running, 1 waiting, about 1m00s (from 1 done job)")
        assert say("wait", "g", "--timeout", "0.05s", "--quiet").err.count("\r") == 0

    def test_a_timeout_is_124(self) -> None:
        say("submit", "--not-before", "+1h", "--", "true")
        said = say("wait", "--timeout", "0.05s")
        assert said.code == 124
        assert "not yet done" in said.out
        assert say("wait", "--timeout", "soon").code == 64

    def test_what_is_not_done_when_the_time_is_up_has_its_reason(self) -> None:
        say("submit", "--name", "a", "--", "true")
        say("submit", "--name", "b", "--", "true")
        say("submit", "--name", "c", "--after", "b", "--", "true")
        assert say("queue", "pause", "a", "--reason", "not today").code == 0
        said = say("wait", "--timeout", "0.05s")
        assert said.code == 124
        lines = {line.split()[0]: line for line in said.out.splitlines()[1:]}
        assert "not today" in lines["a"], said
        assert "it is next" in lines["b"] or "worker" in lines["b"], said
        assert "needs b" in lines["c"], said

    def test_a_job_whose_run_stands_in_line_is_not_said_to_run(self) -> None:
        say("submit", "--name", "a", "--", "true")
        busy = BusyReason("GPU-1", Witness.RECORD, "run x of bob", index=0)
        run_dir = make_run(
            os.environ["HOLDFAST_RUNS"], state=Waiting(utc_now(), blocked_by=(busy,)), supervisor=identify_self()
        )
        put("a", JobState.CLAIMED, run_id=os.path.basename(run_dir))
        put("a", JobState.RUNNING, started_at=0.0)
        said = say("wait", "a", "--timeout", "0.05s")
        assert said.out.splitlines()[1:] == ["  a  waiting: card 0 is held by run x of bob"], said


@pytest.mark.usefixtures("no_worker")
def test_what_is_handed_in_and_waited_for_is_one_object_for_programs() -> None:
    say("submit", "--paused", "--group", "g", "--name", "a", "--", "true")
    said = say("submit", "--group", "g", "--name", "b", "--wait", "--json", "--", "true")
    assert said.code == 1
    assert [(job["job"], job["state"]) for job in said.json()["missing"]] == [("g/b", "queued")]
    assert "nothing of it starts: group g is paused" in said.err


@pytest.mark.usefixtures("no_worker")
def test_a_run_that_cannot_be_waited_for_takes_nothing_from_what_is_said_of_the_jobs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    say("submit", "--name", "a", "--", "true")
    end("a", JobState.FAILED, exit_code=1, outcome="failed")
    root = Path("runs", RUN.format("x"))
    root.mkdir(parents=True)
    said = say("wait", "a", str(root.resolve()))
    assert (said.code, "has no attempt: nothing was ever started" in said.err) == (66, True)
    assert "of the jobs: 0 of 1 done, 1 failed" in said.err


def test_a_run_that_did_not_end_in_the_time_has_no_exit_code_of_its_own(isolated_environment: dict[str, str]) -> None:
    run_dir = make_run(os.environ["HOLDFAST_RUNS"], state=Waiting(utc_now()), supervisor=identify_self())
    said = say("wait", run_dir, "--timeout", "0.05s")
    words = f"holdfast: {os.path.basename(run_dir)}: no end was seen in this time; it is waiting\n"
    assert (said.code, said.out, said.err) == (124, "", words)
    value = say("wait", run_dir, "--timeout", "0.05s", "--json").json()
    assert (value["timed_out"], value["runs"][0]["timed_out"], value["exit_code"]) == (True, True, 124)


def test_while_a_run_is_waited_for_no_queue_is_made_that_a_kill_would_leave(
    isolated_environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = make_run(os.environ["HOLDFAST_RUNS"], state=ended())
    own = tmp_path / "temporary"
    own.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(own))
    seen = []

    def look(run_dir: str, *, deadline: float | None) -> tuple[RunView, int | None]:
        seen.append((os.listdir(own), os.path.exists(queue_directory())))
        return wait_for_run(run_dir, deadline=deadline)

    monkeypatch.setattr("holdfast.agent.queue.wait.names.wait_for_run", look)
    assert say("wait", name_of(os.path.basename(run_dir))).code == 0
    assert seen == [([], False)]


def test_the_answer_of_a_place_is_its_record_or_its_error_or_nothing() -> None:
    waited = Waited(True, 1, 1, {"succeeded": 1}, "1 of 1", False, "", (), "", (), 0, ())
    said = read_answer(WaitedPlace("gpu1", 0, json.dumps({"schema": 1, **wire.encode(waited)})))
    assert (said.answer, said.error) == (waited, None)
    refused = {"schema": 1, "error": {"code": "no_such_run", "exit_code": 66}}
    said = read_answer(WaitedPlace("gpu1", 66, json.dumps(refused)))
    assert (said.answer, said.error, said.exit_code) == (None, refused["error"], 66)
    for other in ("", "[1]", '{"error": 1}', '{"done": 1}'):
        said = read_answer(WaitedPlace("gpu1", 69, other, reason="cut off"))
        assert (said.answer, said.error, said.reason) == (None, None, "cut off"), other
