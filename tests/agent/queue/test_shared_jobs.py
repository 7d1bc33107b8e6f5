"""A worker claims a shared job before it makes a run, and reads from other boxes' records what became of theirs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from holdfast.agent.queue.shared_jobs import ClaimAnswer, SharedJobs
from holdfast.host.files import claims
from holdfast.host.files.claims import Claim, ClaimEnd
from holdfast.model.queue import JobState, QueuedJob
from holdfast.model.record import replace

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.contract, pytest.mark.requirement("QUEUE-12")]

RUN, OTHER = "20261120-100000-a-0001", "20261120-100000-b-0002"
NOW = "2026-11-20T10:00:00.000Z"


@pytest.fixture
def job(tmp_path: Path) -> QueuedJob:
    place = tmp_path / "claims"
    claims.open_directory(str(place), expiry_s=1.0)
    return QueuedJob(id=1, key="1.0", group="g", name="job", state=JobState.QUEUED, claims=str(place))


def claimed(answer: ClaimAnswer) -> Claim:
    assert answer.claim is not None, answer
    return answer.claim


def test_a_free_job_becomes_ours_and_then_nobody_elses(job: QueuedJob) -> None:
    assert claimed(SharedJobs().claim(job, RUN)).number == 1
    other = SharedJobs().claim(job, OTHER)
    assert other.claim is None
    assert other.state is JobState.ELSEWHERE
    assert "claimed by" in other.note


def test_a_worker_that_died_after_its_claim_finds_it_again(job: QueuedJob) -> None:
    first = claimed(SharedJobs().claim(job, RUN))
    assert claimed(SharedJobs().claim(job, RUN)) == first


@pytest.mark.parametrize(("outcome", "state"), [("succeeded", JobState.DONE), ("failed", JobState.FAILED)])
def test_a_job_that_ended_on_another_box_is_closed_here(job: QueuedJob, outcome: str, state: JobState) -> None:
    claim = claimed(SharedJobs().claim(job, OTHER))
    claims.end_claim(claim, ClaimEnd(outcome, "gpu2", f"/runs/{OTHER}", NOW, 0))
    answer = SharedJobs().claim(job, RUN)
    assert (answer.claim, answer.state) == (None, state)
    assert "gpu2" in answer.note
    assert SharedJobs().review(job).state is state


def test_our_own_end_may_be_followed_by_ourselves(job: QueuedJob) -> None:
    claim = claimed(SharedJobs().claim(job, RUN))
    claims.end_claim(claim, ClaimEnd("failed", "here", f"/runs/{RUN}", NOW, 1))
    assert claimed(SharedJobs().claim(job, RUN)).number == 2


def test_a_preempted_job_is_anybodys(job: QueuedJob) -> None:
    claim = claimed(SharedJobs().claim(job, OTHER))
    claims.end_claim(claim, ClaimEnd("preempted", "gpu2", f"/runs/{OTHER}", NOW, 1))
    assert SharedJobs().review(job).state is JobState.QUEUED
    assert claimed(SharedJobs().claim(job, RUN)).number == 2


def test_a_silent_owner_is_taken_over_once(job: QueuedJob, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("holdfast.agent.queue.shared_jobs.monotonic_s", lambda: now[0])
    claimed(SharedJobs().claim(job, OTHER))
    ours, third = SharedJobs(), SharedJobs()
    for box in (ours, third):
        assert box.claim(job, RUN).state is JobState.ELSEWHERE
    now[0] += 1.5
    assert claimed(ours.claim(job, RUN)).number == 2
    assert third.claim(job, "20261120-100000-c-0003").state is JobState.ELSEWHERE


def test_a_look_never_claims(job: QueuedJob) -> None:
    assert SharedJobs().review(job).state is JobState.QUEUED
    assert claimed(SharedJobs().claim(job, RUN)).number == 1


def test_a_directory_that_cannot_be_used_says_nothing_about_the_job(job: QueuedJob, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    answer = SharedJobs().claim(replace(job, claims=str(blocked / "claims")), RUN)
    assert (answer.claim, answer.state) == (None, None)
    assert "cannot be used" in answer.note


def test_a_claim_of_another_configuration_says_nothing_about_this_job(job: QueuedJob) -> None:
    claim = claimed(SharedJobs().claim(replace(job, sha256="a" * 64), OTHER))
    claims.end_claim(claim, ClaimEnd("succeeded", "gpu2", f"/runs/{OTHER}", NOW, 0))
    answer = SharedJobs().claim(replace(job, sha256="b" * 64), RUN)
    assert (answer.claim, answer.state) == (None, JobState.HELD)
    assert "another configuration" in answer.note
    assert SharedJobs().claim(replace(job, sha256="a" * 64), RUN).state is JobState.DONE
