"""From a cell's evidence to a standing: only a complete proof is done."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.completion import NO_ARTIFACTS, Artifact, Evidence, Seen, Standing, judge
from holdfast.model.run import Outcome

pytestmark = [pytest.mark.pure, pytest.mark.requirement("QUEUE-05", "QUEUE-15", "QUEUE-16")]

RESULT = Artifact("artifacts/result.json", "/runs/r/artifacts/result.json", Seen.WHOLE)
PROVEN = Evidence(outcome=Outcome.SUCCEEDED, artifacts=(RESULT,))


def test_a_success_with_its_result_is_done() -> None:
    assert judge(PROVEN).done


def test_a_cell_that_declares_nothing_says_so() -> None:
    assert judge(replace(PROVEN, artifacts=())).why == NO_ARTIFACTS


@pytest.mark.parametrize(
    ("change", "standing"),
    [
        ({"exists": False}, Standing.MISSING),
        ({"problem": "exit.json: Permission denied"}, Standing.UNVERIFIED),
        ({"mistaken": "its configuration is aaaa"}, Standing.UNVERIFIED),
        ({"outcome": None}, Standing.OPEN),
        ({"outcome": Outcome.FAILED, "following": True}, Standing.OPEN),
        ({"outcome": Outcome.FAILED}, Standing.FAILED),
        ({"outcome": Outcome.STOPPED}, Standing.FAILED),
        ({"outcome": Outcome.PREEMPTED}, Standing.FAILED),
        ({"failed": ("result.json: is empty",)}, Standing.FAILED),
        ({"unknown": ("data: could not be read",)}, Standing.UNVERIFIED),
        ({"failure": "suspicious_finish"}, Standing.UNVERIFIED),
    ],
)
def test_each_gap_in_the_proof_has_its_standing(change: dict[str, object], standing: Standing) -> None:
    found = judge(replace(PROVEN, **change))  # type: ignore[arg-type]
    assert found.standing is standing
    assert found.why


@pytest.mark.parametrize(
    ("seen", "standing"),
    [
        (Seen.MISSING, Standing.MISSING),
        (Seen.EMPTY, Standing.EMPTY),
        (Seen.OLD, Standing.UNVERIFIED),
        (Seen.CHANGED, Standing.UNVERIFIED),
        (Seen.DAMAGED, Standing.FAILED),
        (Seen.UNREADABLE, Standing.UNVERIFIED),
    ],
)
def test_each_result_that_is_not_whole_is_named(seen: Seen, standing: Standing) -> None:
    bad = Artifact("b.json", "/runs/r/b.json", seen, "is wrong")
    found = judge(replace(PROVEN, artifacts=(RESULT, bad)))
    assert (found.standing, found.path) == (standing, "/runs/r/b.json")


@given(
    st.builds(
        Evidence,
        exists=st.booleans(),
        problem=st.sampled_from(["", "unreadable"]),
        mistaken=st.sampled_from(["", "another cell"]),
        outcome=st.none() | st.sampled_from(Outcome),
        failure=st.sampled_from(["", "bug"]),
        failed=st.sampled_from([(), ("x",)]),
        unknown=st.sampled_from([(), ("y",)]),
        artifacts=st.lists(st.builds(Artifact, st.just("a"), st.just("/a"), st.sampled_from(Seen))).map(tuple),
        following=st.booleans(),
    )
)
def test_done_needs_every_piece(evidence: Evidence) -> None:
    complete = (
        evidence.exists
        and evidence.outcome is Outcome.SUCCEEDED
        and not (evidence.problem or evidence.mistaken or evidence.failure or evidence.failed or evidence.unknown)
        and not evidence.following
        and all(artifact.seen is Seen.WHOLE for artifact in evidence.artifacts)
    )
    assert judge(evidence).done is complete
