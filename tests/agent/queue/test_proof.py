"""A job is done when everything about its run says so, read from the disk now."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.agent.queue.proof import judge_ended, prove_job
from holdfast.core.queue.completion import ProofStatus
from holdfast.model import wire
from holdfast.model.queue import JobState
from holdfast.model.record import replace
from holdfast.model.run import Outcome
from tests.agent.queue.trees import RESULT, STARTED_S, Roster

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.model.queue import QueuedJob

pytestmark = [pytest.mark.contract, pytest.mark.requirement("QUEUE-05", "QUEUE-16")]


@pytest.fixture
def roster(tmp_path: Path, isolated_environment: dict[str, str]) -> Roster:
    return Roster(tmp_path)


def where(job: QueuedJob) -> str:
    assert job.run_dir is not None
    return job.run_dir


def edit(path: str, change: Callable[[dict[str, object]], object]) -> None:
    """Change a record by hand."""
    record = json.loads(Path(path).read_text())
    change(record)
    Path(path).write_text(json.dumps(record))


def test_a_proven_job_is_done(roster: Roster) -> None:
    job = roster.add_run("a")
    assert judge_ended(job, where(job), job.sha256)[0] is JobState.DONE
    assert prove_job(job, where(job), deep=True).done


def test_a_job_without_declared_results_rests_on_its_exit_record(roster: Roster) -> None:
    job = roster.add_run("a", artifacts=())
    state, note = judge_ended(job, where(job), job.sha256)
    assert (state, "no artifacts declared" in note) == (JobState.DONE, True)


@pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if outcome is not Outcome.SUCCEEDED])
def test_no_other_outcome_is_done(roster: Roster, outcome: Outcome) -> None:
    job = roster.add_run("a", outcome=outcome)
    assert judge_ended(job, where(job))[0] is JobState.FAILED


def test_a_result_that_went_is_not_done_any_more(roster: Roster) -> None:
    job = roster.add_run("a")
    Path(where(job), RESULT).unlink()
    assert prove_job(job, where(job)).standing is ProofStatus.MISSING


def test_a_result_that_was_written_later_is_not_the_runs(roster: Roster) -> None:
    job = roster.add_run("a")
    result = Path(where(job), RESULT)
    os.utime(result, (STARTED_S + 500, STARTED_S + 500))
    assert "after the end" in prove_job(job, where(job)).why
    result.write_text("longer than it was" * 9)
    assert prove_job(job, where(job)).standing is ProofStatus.UNVERIFIED


def test_a_result_from_before_the_start_is_another_runs(roster: Roster, tmp_path: Path) -> None:
    shared = tmp_path / "shared.json"
    job = roster.add_run("a", artifacts=(str(shared),))
    assert prove_job(job, where(job)).done
    os.utime(shared, (STARTED_S - 500, STARTED_S - 500))
    found = prove_job(job, where(job))
    assert (found.standing, found.path) == (ProofStatus.UNVERIFIED, str(shared))


def test_a_cut_result_is_seen_when_it_is_read(roster: Roster) -> None:
    job = roster.add_run("a", content='{"loss": 0.1')
    assert prove_job(job, where(job)).done
    assert prove_job(job, where(job), deep=True).standing is ProofStatus.FAILED


def test_every_match_of_a_pattern_is_looked_at(roster: Roster) -> None:
    job = roster.add_run("a", artifacts=("artifacts/part-*",))
    assert prove_job(job, where(job)).done
    Path(where(job), "artifacts/part-2").touch()
    assert prove_job(job, where(job)).standing is ProofStatus.EMPTY


@pytest.mark.requirement("FAIL-16")
def test_another_configuration_is_not_this_jobs(roster: Roster) -> None:
    job = roster.add_run("a")
    state, note = judge_ended(job, where(job), "f" * 64)
    assert (state, note.startswith("unverified: ")) == (JobState.FAILED, True)
    edit(f"{where(job)}/{wire.RUN}", lambda record: record["job"].update(name="b"))  # type: ignore[attr-defined]
    assert "hash" in prove_job(job, where(job)).why


def test_the_run_of_another_job_proves_nothing(roster: Roster) -> None:
    first, second = roster.add_run("a"), roster.add_run("b")
    assert (
        prove_job(replace(first, run_id=None), where(second), expected_sha=second.sha256).standing
        is ProofStatus.UNVERIFIED
    )
    assert prove_job(first, where(second), expected_sha=second.sha256).standing is ProofStatus.UNVERIFIED


@pytest.mark.parametrize("name", [wire.EXIT, wire.STATE, wire.POSTFLIGHT])
def test_what_cannot_be_read_is_never_done(roster: Roster, name: str) -> None:
    job = roster.add_run("a")
    Path(where(job), "attempts/1", name).write_text("{")
    assert prove_job(job, where(job)).standing is ProofStatus.UNVERIFIED


def test_what_the_job_itself_left_torn_does_not_matter(roster: Roster) -> None:
    job = roster.add_run("a")
    Path(where(job), "attempts/1", wire.HEARTBEAT).write_text("{")
    assert prove_job(job, where(job)).done


@pytest.mark.parametrize(("level", "standing"), [("fail", ProofStatus.FAILED), ("unknown", ProofStatus.UNVERIFIED)])
def test_a_check_that_did_not_pass_speaks_against_it(roster: Roster, level: str, standing: ProofStatus) -> None:
    job = roster.add_run("a")
    finding = {"id": "data", "level": level, "subject": "data", "evidence": "was not to be read", "remedy": ""}
    Path(where(job), "attempts/1", wire.POSTFLIGHT).write_bytes(wire.to_bytes({"findings": [finding]}))
    assert prove_job(job, where(job)).standing is standing


def test_a_success_that_something_speaks_against_is_unverified(roster: Roster) -> None:
    job = roster.add_run("a")
    edit(f"{where(job)}/attempts/1/{wire.EXIT}", lambda record: record.update(failure_class="suspicious_finish"))
    assert prove_job(job, where(job)).standing is ProofStatus.UNVERIFIED


def test_a_run_that_is_not_there_is_missing(roster: Roster, tmp_path: Path) -> None:
    assert prove_job(roster.add("a"), str(tmp_path / "nowhere")).standing is ProofStatus.MISSING


def test_an_attempt_that_was_never_begun_hides_nothing(roster: Roster) -> None:
    job = roster.add_run("a")
    Path(where(job), "attempts/2").mkdir()
    assert prove_job(job, where(job)).done
