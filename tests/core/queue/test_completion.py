"""From a job's evidence to a standing: only a complete proof is done."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.queue.completion import (
    NO_ARTIFACTS,
    Artifact,
    ArtifactState,
    JobEvidence,
    ProofStatus,
    judge_completion,
)
from holdfast.model.record import replace
from holdfast.model.run import Outcome
from tests.each import each

pytestmark = [pytest.mark.pure, pytest.mark.requirement("QUEUE-05", "QUEUE-15", "QUEUE-16")]

RESULT = Artifact("artifacts/result.json", "/runs/r/artifacts/result.json", ArtifactState.WHOLE)
PROVEN = JobEvidence(outcome=Outcome.SUCCEEDED, artifacts=(RESULT,))


def test_a_success_with_its_result_is_done() -> None:
    assert judge_completion(PROVEN).done


def test_a_job_that_declares_nothing_says_so() -> None:
    assert judge_completion(replace(PROVEN, artifacts=())).why == NO_ARTIFACTS


@each(
    ("change", "standing"),
    [
        ({"exists": False}, ProofStatus.MISSING),
        ({"problem": "exit.json: Permission denied"}, ProofStatus.UNVERIFIED),
        ({"mistaken": "its configuration is aaaa"}, ProofStatus.UNVERIFIED),
        ({"outcome": None}, ProofStatus.OPEN),
        ({"outcome": Outcome.FAILED, "following": True}, ProofStatus.OPEN),
        ({"outcome": Outcome.FAILED}, ProofStatus.FAILED),
        ({"outcome": Outcome.STOPPED}, ProofStatus.FAILED),
        ({"outcome": Outcome.PREEMPTED}, ProofStatus.FAILED),
        ({"failed": ("result.json: is empty",)}, ProofStatus.FAILED),
        ({"unknown": ("data: could not be read",)}, ProofStatus.UNVERIFIED),
        ({"failure": "suspicious_finish"}, ProofStatus.UNVERIFIED),
    ],
)
def test_each_gap_in_the_proof_has_its_standing(change: dict[str, object], standing: ProofStatus) -> None:
    found = judge_completion(replace(PROVEN, **change))  # type: ignore[arg-type]
    assert found.standing is standing
    assert found.why


@pytest.mark.parametrize(
    ("seen", "standing"),
    [
        (ArtifactState.MISSING, ProofStatus.MISSING),
        (ArtifactState.EMPTY, ProofStatus.EMPTY),
        (ArtifactState.OLD, ProofStatus.UNVERIFIED),
        (ArtifactState.CHANGED, ProofStatus.UNVERIFIED),
        (ArtifactState.DAMAGED, ProofStatus.FAILED),
        (ArtifactState.UNREADABLE, ProofStatus.UNVERIFIED),
    ],
)
def test_each_result_that_is_not_whole_is_named(seen: ArtifactState, standing: ProofStatus) -> None:
    bad = Artifact("b.json", "/runs/r/b.json", seen, "is wrong")
    found = judge_completion(replace(PROVEN, artifacts=(RESULT, bad)))
    assert (found.standing, found.path) == (standing, "/runs/r/b.json")


@given(
    st.builds(
        JobEvidence,
        exists=st.booleans(),
        problem=st.sampled_from(["", "unreadable"]),
        mistaken=st.sampled_from(["", "another job"]),
        outcome=st.none() | st.sampled_from(Outcome),
        failure=st.sampled_from(["", "bug"]),
        failed=st.sampled_from([(), ("x",)]),
        unknown=st.sampled_from([(), ("y",)]),
        artifacts=st.lists(st.builds(Artifact, st.just("a"), st.just("/a"), st.sampled_from(ArtifactState))).map(tuple),
        following=st.booleans(),
    )
)
def test_done_needs_every_piece(evidence: JobEvidence) -> None:
    complete = (
        evidence.exists
        and evidence.outcome is Outcome.SUCCEEDED
        and not (evidence.problem or evidence.mistaken or evidence.failure or evidence.failed or evidence.unknown)
        and not evidence.following
        and all(artifact.seen is ArtifactState.WHOLE for artifact in evidence.artifacts)
    )
    assert judge_completion(evidence).done is complete
