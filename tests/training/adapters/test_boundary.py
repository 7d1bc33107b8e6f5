"""What adapters do between two steps of somebody else's loop, without a framework; and states with one object twice."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import training
from holdfast.training.adapters.boundary import log_numbers, number, pass_boundary
from holdfast.training.tracking import classify_target

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.files


@pytest.mark.requirement("LIB-19", "POST-09")
def test_LIB_19_a_stop_is_raised_between_two_steps_when_everything_is_saved(tmp_path: Path) -> None:
    state = {"weight": 0}

    def train() -> None:
        with training.run(tmp_path / "c", every=2) as run:
            run.track(state)
            run.begin()
            for step in range(1, 10):
                state["weight"] = step
                if step == 5:
                    run.stop("enough")
                pass_boundary(run, step)

    with pytest.raises(training.Stopped) as stopped:
        train()
    assert (stopped.value.code, stopped.value.step, stopped.value.saved) == (143, 5, True)
    record = json.loads((tmp_path / "c" / "step-5" / "checkpoint.json").read_text())
    assert record["reason"] == "stop (user)"
    assert training.load(tmp_path / "c" / "step-4")["state"] == {"weight": 4}


def test_what_is_no_number_is_not_logged() -> None:
    class Log:
        logged: dict[str, Any] = {}  # noqa: RUF012 - of this one test

        def log(self, **values: float) -> None:
            self.logged.update(values)

    run = Log()
    log_numbers(run, {"train/loss": 0.5, "name": "x", "none": None, "step": 3})  # type: ignore[arg-type]
    assert run.logged == {"train_loss": 0.5, "step": 3.0}
    log_numbers(run, {"name": "x"})  # type: ignore[arg-type]
    assert run.logged == {"train_loss": 0.5, "step": 3.0}


def test_the_first_of_a_kind_has_no_number() -> None:
    assert number("model", ["a", "b"]) == {"model": "a", "model1": "b"}


@pytest.mark.requirement("CKPT-01")
def test_one_object_in_two_places_that_were_two_when_saved_becomes_two() -> None:
    numpy = pytest.importorskip("numpy")
    zeros, group = numpy.zeros(2), {"lr": 0.0}
    state = {"mean": zeros, "square": zeros, "pair": (group, group), "tied": [zeros, zeros]}
    stored = {
        "mean": numpy.array([1.0, 2.0]),
        "square": numpy.array([3.0, 4.0]),
        "pair": ({"lr": 0.1}, {"lr": 0.2}),
        "tied": [numpy.array([1.0, 2.0]), numpy.array([1.0, 2.0])],
    }
    classify_target("state", state, replicated=None).restore(stored)
    assert [state["mean"].tolist(), state["square"].tolist()] == [[1.0, 2.0], [3.0, 4.0]]
    assert state["pair"] == ({"lr": 0.1}, {"lr": 0.2})


@pytest.mark.requirement("CKPT-01")
def test_one_object_in_two_places_that_was_one_when_saved_stays_one() -> None:
    import random

    numpy = pytest.importorskip("numpy")
    weight, draw = numpy.zeros(2), random.Random(1)
    state: dict[str, Any] = {"encoder": weight, "decoder": weight, "draws": [draw, draw]}
    twice = [random.Random(2), random.Random(2)]
    stored = {"encoder": numpy.ones(2), "decoder": numpy.ones(2), "draws": twice}
    classify_target("state", state, replicated=None).restore(stored)
    assert state["encoder"] is state["decoder"] is weight
    assert state["draws"][0] is state["draws"][1] is draw
    assert draw.random() == random.Random(2).random()
