"""What a job may leave in its heartbeat, and what is made of it."""

from __future__ import annotations

import math

import pytest

from holdfast.model import wire
from holdfast.model.units import format_duration

pytestmark = pytest.mark.pure


def test_a_heartbeat_keeps_what_can_be_reckoned_with_and_repeated() -> None:
    sane = {"step": 3, "loss": math.inf, "phase": "train", "note": None, "done": True, "negative": -1.5}
    absurd = {"step2": 10**400, "text": "x" * 1001, "list": [1], "object": {}, "low": -(1 << 63)}
    assert wire.clean_heartbeat({**sane, **absurd}) == sane


def test_a_loss_that_is_no_number_survives() -> None:
    assert math.isnan(wire.clean_heartbeat({"loss": math.nan})["loss"])


@pytest.mark.parametrize("seconds", [math.inf, -math.inf, math.nan])
def test_a_time_that_is_no_number_is_shown_as_unknown(seconds: float) -> None:
    assert format_duration(seconds) == "?"
