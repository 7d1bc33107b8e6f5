"""The roster against a tree of runs: the exact difference, and the one command that re-runs what is missing."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from holdfast.agent.queue.roster import check_roster
from holdfast.core.queue.completion import ProofStatus
from holdfast.model.queue import JobGroup, JobState
from holdfast.model.record import replace
from holdfast.model.run import Outcome
from tests.agent.queue.trees import RESULT, Roster

pytestmark = [pytest.mark.contract, pytest.mark.requirement("QUEUE-15")]


@pytest.fixture
def roster(tmp_path: Path, isolated_environment: dict[str, str]) -> Roster:
    return Roster(tmp_path)


@pytest.mark.requirement("QUEUE-05", "B-81")
def test_the_difference_is_exact_and_one_command_re_runs_it(roster: Roster) -> None:
    roster.add_run("whole")
    roster.add_run("failed", JobState.FAILED, outcome=Outcome.FAILED)
    roster.add_run("empty", content="")
    gone = roster.add_run("gone")
    shutil.rmtree(str(gone.run_dir))
    unread = roster.add_run("unread")
    Path(str(unread.run_dir), "attempts/1/exit.json").write_text("{")
    roster.add("waits")
    roster.add("taken out", JobState.CANCELLED)
    roster.add_run("runs", JobState.RUNNING)
    report = check_roster(roster, "night")
    assert {item.job.name: item.standing for item in report.items} == {
        "whole": ProofStatus.DONE,
        "failed": ProofStatus.FAILED,
        "empty": ProofStatus.EMPTY,
        "gone": ProofStatus.MISSING,
        "unread": ProofStatus.UNVERIFIED,
        "waits": ProofStatus.MISSING,
        "taken out": ProofStatus.MISSING,
        "runs": ProofStatus.OPEN,
    }
    labels = "night/failed night/empty night/gone night/unread 'night/taken out'"
    assert report.command == f"holdfast queue retry {labels}"
    assert not report.complete
    assert report.counts[ProofStatus.MISSING] == 3
    paths = {item.job.name: item.path for item in report.items}
    assert paths["empty"].endswith(f"/{RESULT}")
    assert paths["gone"] == gone.run_dir
    assert report.remarks == ()


def test_a_whole_roster_is_complete_and_asks_for_nothing(roster: Roster) -> None:
    roster.add_run("a")
    roster.add_run("b")
    report = check_roster(roster, "night", deep=True)
    assert (report.complete, report.command, report.remarks) == (True, None, ())


def test_an_empty_roster_proves_nothing(roster: Roster) -> None:
    report = check_roster(roster, "night")
    assert (report.complete, report.command) == (False, None)
    assert report.hint


def test_many_failed_jobs_are_asked_for_by_their_group(roster: Roster) -> None:
    roster.add_run("whole")
    for number in range(30):
        roster.add(f"c{number}", JobState.FAILED)
    assert check_roster(roster).command == "holdfast queue retry night/ --failed"


def test_jobs_that_wait_need_no_command_unless_their_group_is_paused(roster: Roster) -> None:
    roster.add("a")
    assert check_roster(roster).command is None
    roster.known["night"] = JobGroup("night", paused=True)
    assert check_roster(roster).command == "holdfast queue resume night"


def test_two_jobs_with_one_result_are_not_done(roster: Roster, tmp_path: Path) -> None:
    shared = str(tmp_path / "shared.json")
    roster.add_run("a", artifacts=(shared,))
    roster.add_run("b", artifacts=(shared,))
    roster.add_run("c")
    report = check_roster(roster)
    assert [item.standing for item in report.items] == [ProofStatus.DUPLICATE, ProofStatus.DUPLICATE, ProofStatus.DONE]
    (remark,) = report.remarks
    assert (remark.subject, remark.path, remark.suspicious) == ("night/a, night/b", shared, False)
    assert (report.complete, report.command) == (False, None)


def test_a_result_that_is_linked_to_another_is_not_a_second_one(roster: Roster) -> None:
    first, second = roster.add_run("a"), roster.add_run("b", artifacts=(RESULT,))
    result = Path(str(second.run_dir), RESULT)
    result.unlink()
    os.link(Path(str(first.run_dir), RESULT), result)
    standings = {item.job.name: item.standing for item in check_roster(roster).items}
    assert standings["a"] is not ProofStatus.DONE or standings["b"] is not ProofStatus.DONE


def test_two_jobs_of_one_run_are_not_done(roster: Roster) -> None:
    first = roster.add_run("a")
    roster.made.append(replace(first, id=9, name="b"))
    report = check_roster(roster)
    assert [item.standing for item in report.items] == [ProofStatus.DUPLICATE] * 2


def test_the_same_bytes_of_two_configurations_are_told_when_asked(roster: Roster) -> None:
    for name in ("a", "b"):
        roster.add_run(name, content='{"accuracy": 0.97, "loss": 0.1}')
    roster.add_run("c")
    assert check_roster(roster).remarks == ()
    report = check_roster(roster, deep=True)
    (remark,) = report.remarks
    assert (remark.standing, remark.subject, remark.suspicious) == (ProofStatus.DUPLICATE, "night/a, night/b", True)
    assert report.complete


def test_runs_of_no_job_are_named(roster: Roster) -> None:
    roster.add_run("a")
    extra = roster.add_run("b")
    roster.made.remove(extra)
    again = roster.add_run("a", JobState.DONE)
    roster.made.remove(again)
    report = check_roster(roster, "night")
    found = {remark.path: remark.standing for remark in report.remarks}
    assert found == {extra.run_dir: ProofStatus.EXTRA, again.run_dir: ProofStatus.DUPLICATE}
    assert report.complete


def test_a_job_that_failed_stays_failed_whatever_is_there_now(roster: Roster) -> None:
    roster.add_run("a", JobState.FAILED, note="unverified: could not be read")
    (item,) = check_roster(roster).items
    assert (item.standing, item.why) == (ProofStatus.FAILED, "unverified: could not be read")


def test_a_blocked_job_names_what_it_needs(roster: Roster) -> None:
    for number in range(5):
        roster.add(f"c{number}", JobState.FAILED)
    roster.add("last", JobState.BLOCKED)
    item = check_roster(roster).items[-1]
    assert item.why == "has not run, blocked; needs night/c0 (failed), night/c1 (failed), night/c2 (failed) and 2 more"
