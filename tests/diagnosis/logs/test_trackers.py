"""A tracker that gave up, in the output of a run that ended well."""

from __future__ import annotations

import pytest

from holdfast.diagnosis.logs.trackers import find_given_up
from tests.each import each

pytestmark = pytest.mark.pure


@pytest.mark.requirement("OBS-12")
@each(
    "line",
    [
        "Disabled WandB due to initialization error: No API key configured",
        "2026-11-22 10:00:00 - WARNING - Disabled WandB due to initialization error: No API key configured",
        "wandb: ERROR api_key not configured (no-tty). call wandb.login(key=[your_api_key])",
        "wandb: W&B disabled due to login timeout.",
        "wandb: Network error (ConnectionError), entering retry loop.",
    ],
)
def test_OBS_12_the_line_of_a_tracker_that_gave_up_is_found(line: str) -> None:
    assert find_given_up(f"step 1\n{line}\nstep 2\n").endswith(line.rpartition(" - ")[2])


@each(
    "line",
    [
        "wandb: Tracking run with wandb version 0.17.0",
        "wandb: W&B syncing is set to `offline` in this directory.",
        "No API key configured for the weather service",
        "WANDB_MODE=disabled",
        "loss 0.3",
    ],
)
def test_a_tracker_that_works_or_was_switched_off_is_not(line: str) -> None:
    assert find_given_up(f"{line}\n") == ""
