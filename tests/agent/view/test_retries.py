"""Why no attempt followed by itself, for who asked for some."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from holdfast.agent.view.observe import observe_run
from holdfast.agent.view.retries import read_objection
from holdfast.model import wire
from holdfast.model.run import Outcome
from holdfast.model.verdict import Confidence, FailureClass, RetryPolicy, Verdict
from tests.each import each
from tests.rundirs import ended, make_run

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.files, pytest.mark.requirement("FAIL-02")]

LONE = "communication is not repeated without a person"


@each(
    ("asked", "outcome", "told"),
    [
        (2, Outcome.FAILED, LONE),
        (2, Outcome.TIMED_OUT, LONE),
        (1, Outcome.FAILED, None),
        (0, Outcome.FAILED, None),
        (2, Outcome.STOPPED, None),
        (2, Outcome.SUCCEEDED, None),
    ],
)
def test_a_class_that_is_never_repeated_is_told_to_who_asked_for_several_attempts(
    tmp_path: Path, asked: int, outcome: Outcome, told: str | None
) -> None:
    run_dir = make_run(tmp_path / f"{asked}{outcome.value}", state=ended(outcome, 0 if told is None else 1))
    path = f"{run_dir}/{wire.RUN}"
    with open(path, encoding="utf-8") as file:
        facts = json.load(file)
    facts["job"]["retries"] = {"max": asked}
    with open(path, "w", encoding="utf-8") as file:
        json.dump(facts, file)
    verdict = Verdict(FailureClass.COMMUNICATION, Confidence.LIKELY, "look", retry=RetryPolicy.NEVER)
    assert read_objection(observe_run(run_dir), verdict) == told
