"""What is tracked is restored in place, under the right keys, and what does not fit is named."""

from __future__ import annotations

import random
from array import array
from typing import Any

import pytest

from holdfast.training import tracking
from holdfast.training.errors import CannotResume, TrainingError
from tests.each import each

pytestmark = pytest.mark.files
torch: Any = pytest.importorskip("torch")
np: Any = pytest.importorskip("numpy")


class Inner(torch.nn.Module):  # type: ignore[misc,unused-ignore]
    """Its own submodule is called `module`: a prefix that belongs to the model."""

    def __init__(self) -> None:
        super().__init__()
        self.module = torch.nn.Linear(2, 2)
        self._orig_mod = torch.nn.Linear(2, 2)


class Model(torch.nn.Module):  # type: ignore[misc,unused-ignore]
    def __init__(self) -> None:
        super().__init__()
        self.encoder = Inner()
        self.head = torch.nn.Linear(2, 1)


class OptimizedModule(torch.nn.Module):  # type: ignore[misc,unused-ignore]
    """What torch.compile makes, without compiling."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self._orig_mod = inner


@pytest.mark.requirement("CKPT-12", "B-57")
@each(
    ("key", "bare"),
    [
        ("module.x", "x"),
        ("_orig_mod.x", "x"),
        ("_orig_mod.module.x", "x"),
        ("module._orig_mod.module.x", "x"),
        ("encoder.module.weight", "encoder.module.weight"),
        ("encoder._orig_mod.weight", "encoder._orig_mod.weight"),
        ("module.encoder.module.weight", "encoder.module.weight"),
        ("modules.x", "modules.x"),
        ("my_module.x", "my_module.x"),
        ("module", "module"),
        ("x", "x"),
    ],
)
def test_prefixes_of_wrappers_go_only_at_the_beginning_of_a_key(key: str, bare: str) -> None:
    assert tracking.strip_wrappers(key) == bare


WRAPPERS: dict[str, Any] = {
    "bare": lambda model: model,
    "parallel": torch.nn.DataParallel,
    "compiled": OptimizedModule,
    "compiled parallel": lambda model: OptimizedModule(torch.nn.DataParallel(model)),
    "parallel compiled": lambda model: torch.nn.DataParallel(OptimizedModule(model)),
}


@pytest.mark.requirement("CKPT-12", "B-57")
@each("there", WRAPPERS)
@each("here", WRAPPERS)
def test_any_wrapping_loads_into_any_other(there: str, here: str) -> None:
    saved, wanted = WRAPPERS[there](Model()), WRAPPERS[here](Model())
    state = tracking.classify_target("model", saved, None).capture()
    tracking.classify_target("model", wanted, None).restore(state)
    # Also what a script saved by itself, with the wrappers' prefixes in it.
    fresh = WRAPPERS[here](Model())
    tracking.classify_target("model", fresh, None).restore(dict(saved.state_dict()))
    for restored in (wanted, fresh):
        for a, b in zip(saved.parameters(), restored.parameters(), strict=True):
            assert torch.equal(a, b)


@pytest.mark.requirement("CKPT-12")
def test_loading_stays_strict_and_names_what_changed() -> None:
    state = dict(Model().state_dict())
    state["head.weight"] = torch.zeros(3, 2)
    state["extra"] = torch.zeros(1)
    del state["head.bias"]
    with pytest.raises(CannotResume) as caught:
        tracking.classify_target("model", Model(), None).restore(state)
    for words in ("head.weight was [3, 2], is [1, 2]", "not in the checkpoint: head.bias", "not in the model: extra"):
        assert words in str(caught.value)


def test_two_keys_that_would_become_one_are_not_renamed() -> None:
    stored = {"module.x": 1, "x": 2}
    assert tracking.match_keys(stored, {"x": 0, "y": 0}) is stored


def test_containers_are_updated_in_place_with_everything_in_them() -> None:
    weights, numbers, tensor, generator = array("d", [0, 0]), np.zeros(3), torch.zeros(2), random.Random(0)
    target = {"w": weights, "n": [numbers, {"t": tensor}], "g": generator, "step": 1, "old": 2}
    names = (target, target["n"], weights, numbers, tensor, generator)
    captured = random.Random(5)
    state = {
        "w": array("d", [1, 2]),
        "n": [np.arange(3.0), {"t": torch.ones(2)}],
        "g": random.Random(5),
        "step": 7,
        "new": "x",
    }
    tracking.classify_target("state", target, None).restore(state)
    assert names[0] is target
    assert names[1] is target["n"]
    assert weights == array("d", [1, 2])
    assert numbers.tolist() == [0, 1, 2]
    assert tensor.tolist() == [1, 1]
    assert generator.random() == captured.random()
    assert (target["step"], target["new"], "old" in target) == (7, "x", False)


def test_optimizer_scheduler_and_scaler_are_taken_as_they_are() -> None:
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters())
    for owner in (model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1), torch.amp.GradScaler("cpu")):
        assert tracking.classify_target("x", owner, None).kind == "stateful"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: (1, 2), "tuple"),
        (lambda: print, "cannot be restored in place"),
        (object, "object"),
        (type("S", (), {"state_dict": lambda self: {}}), "no load_state_dict"),
    ],
)
def test_what_cannot_be_restored_in_place_is_refused_when_it_is_tracked(make: Any, words: str) -> None:
    with pytest.raises(TrainingError, match=words):
        tracking.classify_target("thing", make(), None)


@pytest.mark.parametrize(
    ("target", "state"),
    [
        ({"x": array("d", [1])}, {"x": array("d", [1, 2])}),
        ({"x": torch.zeros(2)}, {"x": torch.zeros(3)}),
        ({"x": {"y": 1}}, {"x": 3}),
        ({"x": [1]}, {"x": {"y": 1}}),
        ({"x": np.zeros(2)}, {"x": "text"}),
        ({"x": random.Random(1)}, {"x": 3}),
        ({"x": (1, 2)}, {"x": (1, 2, 3)}),
    ],
)
def test_a_state_of_another_shape_is_refused_by_its_place(target: Any, state: Any) -> None:
    with pytest.raises(CannotResume, match=r"^state"):
        tracking.classify_target("state", target, None).restore(state)
