"""Random states are read and put back bit for bit, as plain JSON, and nothing is loaded for it."""

from __future__ import annotations

import json
import os
import random
import sys
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.training.errors import TrainingError
from holdfast.training.randomness import rng
from holdfast.training.randomness import streams as rng_streams
from tests.each import each

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")

pytestmark = pytest.mark.files


@pytest.fixture(autouse=True)
def others_keep_theirs() -> Iterator[None]:
    """Other tests find the random states and torch's flags as they were."""
    before = rng.capture_states()
    flags = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark
    cudnn = torch.backends.cudnn.deterministic
    yield
    rng.restore_states({name: state for name, state in before.items() if name in ("python", "numpy", "torch")})
    torch.use_deterministic_algorithms(flags[0])
    torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = flags[1], cudnn


def draw() -> list[Any]:
    """From each stream, also numbers that leave something over for the next one (Gaussian pairs)."""
    return [
        random.random(),
        random.gauss(0, 1),
        float(np.random.rand()),
        float(np.random.randn()),
        int(np.random.randint(1000)),
        torch.rand(3).tolist(),
        torch.randn(3).tolist(),
        torch.randperm(9).tolist(),
    ]


def through_json(state: dict[str, Any]) -> Any:
    return json.loads(json.dumps(state, allow_nan=False))


@pytest.mark.requirement("LIB-09")
def test_the_same_seed_gives_the_same_numbers() -> None:
    rng.seed_everything(3)
    first = [draw() for _ in range(3)]
    rng.seed_everything(3)
    assert [draw() for _ in range(3)] == first
    rng.seed_everything(4)
    assert [draw() for _ in range(3)] != first


@pytest.mark.requirement("LIB-09")
def test_the_record_names_seeds_flags_and_versions() -> None:
    record = through_json(rng.seed_everything(7))
    assert (record["seed"], record["effective"], record["deterministic"]) == (7, 7, False)
    assert record["seeded"][:3] == ["python", "numpy", "torch"]
    assert record["flags"]["torch.deterministic_algorithms"] is False
    assert record["versions"]["torch"] == torch.__version__
    assert record["versions"]["numpy"] == np.__version__


@pytest.mark.requirement("LIB-09")
def test_deterministic_sets_the_flags_of_torch() -> None:
    record = rng.seed_everything(7, deterministic=True)
    assert torch.are_deterministic_algorithms_enabled()
    assert torch.backends.cudnn.deterministic
    assert not torch.backends.cudnn.benchmark
    assert record["flags"]["torch.deterministic_algorithms"] is True
    assert "PYTHONHASHSEED" in record["advice"][0]


@pytest.mark.requirement("OBS-06")
def test_OBS_06_the_flags_of_torch_are_told_in_one_short_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "x" * 300)
    said = rng.describe_flags(rng.seed_everything(7, deterministic=True))
    short = said[:200]  # what a heartbeat takes of a text
    for words in ("torch.deterministic_algorithms=True", "cudnn.benchmark=False", "cudnn.deterministic=True"):
        assert words in short
    assert "num_threads" not in said


def test_without_deterministic_the_flags_stay_as_they_are() -> None:
    torch.use_deterministic_algorithms(mode=True)
    rng.seed_everything(7)
    assert torch.are_deterministic_algorithms_enabled()


def test_cublas_gets_its_workspace_only_where_there_is_a_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    rng.seed_everything(7, deterministic=True)
    assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ
    Devices(monkeypatch, 1)
    assert "cuda" in rng.seed_everything(7, deterministic=True)["seeded"]
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"


def test_ranks_share_a_seed_unless_they_are_asked_not_to() -> None:
    assert rng.seed_everything(5, rank=3)["effective"] == 5
    shared = draw()
    assert rng.seed_everything(5, rank=3, per_rank=True)["effective"] == 8
    assert draw() != shared


@pytest.mark.parametrize(
    ("seed", "rank", "message"),
    [(-1, 0, "out of range"), (2**32, 0, "out of range"), (2**32 - 1, 1, "rank 1"), (1, -1, "negative")],
)
def test_a_seed_that_some_library_refuses_is_refused(seed: int, rank: int, message: str) -> None:
    with pytest.raises(TrainingError, match=message):
        rng.seed_everything(seed, rank=rank, per_rank=True)


@pytest.mark.parametrize("seed", ["7", 7.0, True, None])
def test_a_seed_is_a_whole_number(seed: Any) -> None:
    with pytest.raises(TrainingError, match="the seed"):
        rng.seed_everything(seed)


@pytest.mark.requirement("CKPT-01", "CKPT-11", "B-54", "B-74")
def test_every_stream_continues_bit_for_bit_through_json() -> None:
    rng.seed_everything(11)
    draw()
    state = through_json(rng.capture_states())
    expected = [draw() for _ in range(400)]  # past one refill of a Mersenne twister of 624 numbers
    rng.seed_everything(99)
    draw()
    assert rng.restore_states(state) == []
    assert [draw() for _ in range(400)] == expected


def test_capture_draws_nothing() -> None:
    rng.seed_everything(11)
    expected = [draw(), draw()]
    rng.seed_everything(11)
    rng.capture_states()
    first = draw()
    rng.capture_states()
    assert [first, draw()] == expected


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_a_library_that_is_not_loaded_is_named_and_not_loaded(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    state = rng.capture_states()
    expected = random.random()
    with monkeypatch.context() as patch:
        patch.delitem(sys.modules, library)
        warnings = rng.restore_states(state)
        loaded = library in sys.modules
        captured = rng.capture_states()
    assert [library in warning for warning in warnings] == [True]
    assert not loaded
    assert library not in captured
    assert random.random() == expected


@each(
    "change",
    [
        {"python": {"version": 3, "numbers": [1, 2], "gauss": None}},
        {"python": [1]},
        {"numpy": {"bit_generator": "MT19937", "state": {"key": [1], "pos": 0}, "has_gauss": 0, "gauss": 0.0}},
        {"numpy": {"bit_generator": "PCG64"}},
        {"torch": "AAAA"},
        {"torch": "no base 64"},
        {"torch": 7},
        {"cuda": {"0": "AAAA"}},
    ],
)
def test_what_is_no_state_is_refused_and_changes_nothing(change: dict[str, Any]) -> None:
    rng.seed_everything(1)
    state = {**rng.capture_states(), **change}
    expected = draw()
    rng.seed_everything(1)
    with pytest.raises(rng.RandomStateUnusable, match=next(iter(change))):
        rng.restore_states(state)
    assert draw() == expected


def test_something_else_than_a_state_is_refused() -> None:
    with pytest.raises(rng.RandomStateUnusable, match="list"):
        rng.restore_states([])  # type: ignore[arg-type]  # the mistake under test


def test_a_stream_of_a_later_version_is_named() -> None:
    assert rng.restore_states({"quantum": 1}) == [
        "random numbers of 'quantum' are in the checkpoint, and this version of holdfast does not know them"
    ]


class Devices:
    """Cards whose generators are torch's of the CPU, behind torch.cuda's functions."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, count: int, *, in_use: bool = True) -> None:
        self.generators = [torch.Generator().manual_seed(100 + device) for device in range(count)]
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: in_use and count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: self.generators[device].get_state())
        monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device: self.generators[device].set_state(state))
        monkeypatch.setattr(torch.cuda, "manual_seed_all", lambda seed: None)

    def draw(self) -> list[float]:
        return [float(torch.rand((), generator=generator)) for generator in self.generators]


@pytest.mark.requirement("CKPT-01")
def test_every_visible_device_that_is_in_use_comes_along(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = Devices(monkeypatch, 3)
    devices.draw()
    state = through_json(rng.capture_states())
    expected = [devices.draw(), devices.draw()]
    assert rng.restore_states(state) == []
    assert [devices.draw(), devices.draw()] == expected


def test_devices_that_are_not_in_use_are_not_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    Devices(monkeypatch, 2, in_use=False)
    assert "cuda" not in rng.capture_states()


@pytest.mark.parametrize(("then", "now"), [(2, 1), (1, 2), (2, 0)])
def test_another_number_of_devices_is_a_warning(then: int, now: int, monkeypatch: pytest.MonkeyPatch) -> None:
    before = Devices(monkeypatch, then)
    state = through_json(rng.capture_states())
    expected = before.draw()
    after = Devices(monkeypatch, now)
    after.draw()
    (warning,) = rng.restore_states(state)
    assert f"of {then} cuda devices" in warning
    assert f"{now} are visible" in warning
    assert after.draw()[: min(then, now)] == expected[:now]


def test_a_state_that_a_device_refuses_is_an_error_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    Devices(monkeypatch, 1)
    with pytest.raises(rng.RandomStateUnusable, match="cuda:0"):
        rng.restore_states({"cuda": ["AAAA"]})


GENERATORS: dict[str, Callable[[], Any]] = {
    "random.Random": lambda: random.Random(5),
    "RandomState": lambda: np.random.RandomState(5),
    "PCG64": lambda: np.random.default_rng(5),
    "Philox": lambda: np.random.Generator(np.random.Philox(5)),
    "SFC64": lambda: np.random.Generator(np.random.SFC64(5)),
    "MT19937": lambda: np.random.Generator(np.random.MT19937(5)),
    "torch": lambda: torch.Generator().manual_seed(5),
}


def draw_from(generator: Any) -> list[float]:
    if isinstance(generator, torch.Generator):
        return [float(torch.rand((), generator=generator)) for _ in range(50)]
    normal = getattr(generator, "normal", None) or generator.gauss
    return [float(normal(0, 1)) for _ in range(50)]


@pytest.mark.parametrize("name", GENERATORS)
def test_a_generator_of_ones_own_goes_through_json(name: str) -> None:
    generator, other = GENERATORS[name](), GENERATORS[name]()
    draw_from(generator)
    stream, onto = rng_streams.stream_of(generator), rng_streams.stream_of(other)
    assert stream is not None
    assert onto is not None
    onto.restore(onto.from_plain(json.loads(json.dumps(stream.to_plain(stream.get())))))
    expected = draw_from(generator)
    assert draw_from(other) == expected
    onto.seed(2**63 - 1)
    assert draw_from(other) != expected


def test_a_state_of_another_bit_generator_is_refused() -> None:
    pcg = rng_streams.stream_of(np.random.default_rng(1))
    philox = rng_streams.stream_of(np.random.Generator(np.random.Philox(1)))
    assert pcg is not None
    assert philox is not None
    with pytest.raises(ValueError, match="Philox"):
        pcg.from_plain(philox.to_plain(philox.get()))


def test_what_has_no_state_is_no_stream() -> None:
    assert rng_streams.stream_of(random.SystemRandom()) is None
    assert rng_streams.stream_of("seed") is None


def test_a_block_apart_leaves_the_streams_of_others_alone() -> None:
    rng.seed_everything(1)
    expected = [draw(), draw()]
    rng.seed_everything(1)
    apart = rng_streams.IsolatedRandomness.derived("a")
    with apart:
        first = draw()
    outside = draw()
    with apart:
        second = draw()
    assert [outside, draw()] == expected
    rng.seed_everything(1)
    again = rng_streams.IsolatedRandomness.derived("a")
    with again:
        assert [draw(), draw()] == [first, second]
    rng.seed_everything(1)
    with rng_streams.IsolatedRandomness.derived("b"):
        assert draw() != first
