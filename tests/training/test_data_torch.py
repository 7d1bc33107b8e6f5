"""A torch DataLoader goes on at any batch: the same samples, and the same random numbers everywhere."""

from __future__ import annotations

import functools
import json
import random
from typing import TYPE_CHECKING, Any

import pytest

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")

from torch.utils import data  # noqa: E402 - only where there is torch
from torch.utils.data.distributed import DistributedSampler  # noqa: E402

from holdfast.training.data import indices as data_indices  # noqa: E402
from holdfast.training.data.batches import follow  # noqa: E402
from holdfast.training.data.errors import DataChanged, DataUnusable, DataWarning  # noqa: E402
from holdfast.training.data.sampling import BatchSampler  # noqa: E402
from holdfast.training.randomness import rng  # noqa: E402
from tests.training.loaders import SAMPLES, Augmented, LazySampler, OwnGenerator, Streamed, indices_of, loader, run_loop  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.contract


def generator() -> Any:
    return torch.Generator().manual_seed(7)


def replaced() -> data.DataLoader[Any]:
    """Drawn as it goes, 32 indices at a time, from a generator that the loader uses too."""
    shared = generator()
    sampler = data.RandomSampler(range(SAMPLES), replacement=True, num_samples=77, generator=shared)
    return loader(sampler=sampler, generator=shared)


def distributed(rank: int = 1, **options: Any) -> data.DataLoader[Any]:
    return loader(sampler=DistributedSampler(Augmented(), num_replicas=2, rank=rank, **options))


LOADERS: dict[str, Callable[[], Any]] = {
    "in order": loader,
    "shuffled": lambda: loader(shuffle=True),
    "own generator": lambda: loader(shuffle=True, generator=True),
    "drop last": lambda: loader(shuffle=True, drop_last=True),
    "no batches": lambda: loader(batch_size=None, shuffle=True),
    "replacement": replaced,
    "distributed": distributed,
    "subset": lambda: loader(sampler=data.SubsetRandomSampler(range(19))),
    "subset with generator": lambda: loader(sampler=data.SubsetRandomSampler(range(19), generator=generator())),
    "weighted": lambda: loader(sampler=data.WeightedRandomSampler([1.0] * SAMPLES, SAMPLES)),
    "lazy": lambda: loader(sampler=LazySampler()),
    "lazy batches": lambda: loader(batch_sampler=data.BatchSampler(LazySampler(), 5, drop_last=True)),
    "numpy generator": lambda: loader(sampler=OwnGenerator()),
    "list": lambda: loader(sampler=list(range(SAMPLES - 1, -1, -1))),
    "ours": lambda: loader(batch_sampler=BatchSampler(SAMPLES, 4)),
}
STREAMED: dict[str, Callable[[], Any]] = {
    "iterable dataset": lambda: data.DataLoader(Streamed(), batch_size=4),
    "loaders of a function": lambda: lambda epoch: loader(shuffle=epoch != 1),
}


@pytest.mark.filterwarnings("ignore::holdfast.training.data.errors.DataWarning")
@pytest.mark.requirement("CKPT-02", "B-54")
@pytest.mark.parametrize("name", [*LOADERS, *STREAMED])
def test_interrupted_is_uninterrupted_at_every_position(name: str) -> None:
    make = {**LOADERS, **STREAMED}[name]
    steps = 2 * SAMPLES + 2 if name == "no batches" else 14
    whole = run_loop(make, steps)
    assert [cut for cut in range(steps) if run_loop(make, steps, [cut]) != whole] == []
    assert run_loop(make, steps, range(0, steps, 2)) == whole


@pytest.mark.parametrize("name", ["shuffled", "own generator", "lazy", "numpy generator", "ours", "no batches"])
def test_every_sample_comes_once_in_each_epoch(name: str) -> None:
    steps = 2 * SAMPLES if name == "no batches" else 12
    seen = run_loop(LOADERS[name], steps, [steps // 4, steps // 2 + 1])
    first, second = indices_of(seen, 0), indices_of(seen, 1)
    assert sorted(first) == sorted(second) == list(range(SAMPLES))
    assert first != second


@pytest.mark.parametrize("drop_last", [False, True])
def test_ranks_share_out_each_epoch(drop_last: bool) -> None:
    makers = [functools.partial(distributed, rank, drop_last=drop_last) for rank in (0, 1)]
    seen = [run_loop(make, 6, [2, 3]) for make in makers]
    for epoch in (0, 1):
        shares = [indices_of(of_rank, epoch) for of_rank in seen]
        assert [len(share) for share in shares] == ([11, 11] if drop_last else [12, 12])
        assert len({*shares[0], *shares[1]}) == (22 if drop_last else SAMPLES)
    assert indices_of(seen[0], 0) != indices_of(seen[0], 1)


@pytest.mark.parametrize("name", [name for name in LOADERS if name not in ("lazy", "lazy batches", "distributed")])
def test_following_draws_what_a_plain_loop_draws(name: str) -> None:
    """Of samplers that draw as they go, only the epoch's first index is drawn as in a plain loop."""
    rng.seed_everything(1)
    plain, seen = LOADERS[name](), []
    for epoch in range(2):
        for owner in (plain.sampler, plain.batch_sampler):
            if hasattr(owner, "set_epoch"):
                owner.set_epoch(epoch)
        for batch in plain:
            drawn = (random.random(), float(np.random.rand()), float(torch.rand(())))
            seen.append((batch.tolist(), drawn))
    assert [(batch, drawn) for _, _, batch, drawn in run_loop(LOADERS[name], len(seen))] == seen


def test_the_loader_itself_stays_as_it_is() -> None:
    mine = loader(shuffle=True)
    before = dict(mine.__dict__)
    batches = follow(mine)
    next(batches)
    assert mine.__dict__ == before
    assert len(list(mine)) == 6
    assert len(list(batches.rest_of_epoch())) == 5


@pytest.mark.slow
@pytest.mark.parametrize("name", ["shuffled", "own generator", "lazy"])
def test_validation_in_the_middle_of_an_epoch_is_kept_apart(name: str) -> None:
    """A second loader that draws from the same streams and the same generator."""

    def run(cuts: tuple[int, ...]) -> list[Any]:
        rng.seed_everything(1)
        seen: list[Any] = []
        mine = LOADERS[name]()
        batches = follow(mine)
        for step in range(14):
            if step in cuts:
                state = json.loads(json.dumps([batches.state_dict(), rng.capture_states()]))
                mine = LOADERS[name]()
                batches = follow(mine)
                batches.load_state_dict(state[0])
                rng.restore_states(state[1])
            seen.append(next(batches).tolist())
            if step % 3 == 0:
                seen.append(next(iter(loader(generator=mine.generator))).tolist())
        return seen

    whole = run(())
    assert [cut for cut in range(14) if run((cut,)) != whole] == []


def test_no_sample_is_read_to_be_skipped() -> None:
    class Counting(Augmented):
        read = 0

        def __getitem__(self, index: int) -> Any:
            Counting.read += 1
            return super().__getitem__(index)

    def make() -> data.DataLoader[Any]:
        return data.DataLoader(Counting(), batch_size=4, shuffle=True)

    batches = follow(make())
    for _ in range(4):
        next(batches)
    again = follow(make())
    again.load_state_dict(batches.state_dict())
    Counting.read = 0
    next(again)
    assert Counting.read == 4


class Moody(data.Sampler[int]):
    """Its order comes from something that no checkpoint holds."""

    made = 0

    def __len__(self) -> int:
        return SAMPLES

    def __iter__(self) -> Iterator[int]:
        Moody.made += 1
        return iter([(number * (1 + 4 * (Moody.made % 2))) % SAMPLES for number in range(SAMPLES)])


def test_an_order_that_cannot_be_made_again_is_noticed() -> None:
    batches = follow(loader(sampler=Moody()), name="train")
    for _ in range(3):
        next(batches)
    again = follow(loader(sampler=Moody()), name="train")
    again.load_state_dict(batches.state_dict())
    with pytest.raises(DataChanged, match=r"order of train in epoch 0 is not the one.*generator.*strict=False"):
        next(again)


def test_an_order_that_cannot_be_made_again_begins_anew_on_request() -> None:
    batches = follow(loader(sampler=Moody()))
    for _ in range(3):
        next(batches)
    again = follow(loader(sampler=Moody()), strict=False)
    again.load_state_dict(batches.state_dict())
    with pytest.warns(DataWarning, match="begins anew"):
        next(again)
    assert (again.epoch, again.position) == (0, 1)


CHANGES = [
    (loader, lambda: loader(batch_size=8), "batch_size was 4, is 8"),
    (loader, lambda: data.DataLoader(Augmented(31), batch_size=4), f"dataset length was {SAMPLES}, is 31"),
    (loader, lambda: loader(drop_last=True), "drop_last was False, is True"),
    (loader, lambda: loader(shuffle=True), "SequentialSampler.*RandomSampler"),
    (lambda: loader(shuffle=True), lambda: loader(shuffle=True, generator=True), "generators"),
    (
        distributed,
        lambda: loader(sampler=DistributedSampler(Augmented(), num_replicas=4, rank=1)),
        "num_replicas was 2, is 4",
    ),
    (loader, lambda: data.DataLoader(Streamed(), batch_size=4), "it was torch loader, it is iterable"),
]


@pytest.mark.parametrize(("then", "now", "named"), CHANGES)
def test_a_changed_loader_is_named(then: Callable[[], Any], now: Callable[[], Any], named: str) -> None:
    batches = follow(then())
    next(batches)
    with pytest.raises(DataChanged, match=named):
        follow(now()).load_state_dict(batches.state_dict())


@pytest.mark.parametrize(
    "change",
    [
        {"order": 5},
        {"order": {"torch": "AAAA"}},
        {"drawn": "x"},
        {"sum": None},
        {"exhausted": 1},
        {"generators": {"loader.generator": "AAAA"}},
    ],
)
def test_a_damaged_state_is_refused(change: dict[str, Any]) -> None:
    batches = follow(loader(shuffle=True, generator=True))
    next(batches)
    state = batches.state_dict()
    with pytest.raises(DataUnusable, match="state of data"):
        follow(loader(shuffle=True, generator=True)).load_state_dict({**state, "source": {**state["source"], **change}})


def test_a_batch_that_raises_is_passed_once() -> None:
    class Broken(Augmented):
        def __getitem__(self, index: int) -> Any:
            if index == 9:
                raise OSError("unreadable")
            return super().__getitem__(index)

    batches = follow(data.DataLoader(Broken(), batch_size=4))
    next(batches), next(batches)
    with pytest.raises(OSError, match="unreadable"):
        next(batches)
    again = follow(data.DataLoader(Broken(), batch_size=4))
    again.load_state_dict(batches.state_dict())
    assert next(batches)[:, 0].tolist() == next(again)[:, 0].tolist() == [12.0, 13.0, 14.0, 15.0]


def test_batches_out_of_order_are_put_in_order_with_a_warning() -> None:
    with pytest.warns(DataWarning, match="in_order=False is not followed"):
        follow(loader(num_workers=1, in_order=False))


def test_an_index_on_its_way_arrives_as_it_was_with_seeded_streams() -> None:
    fetch = data_indices.Fetch([3, 4], b"12345678", 5)
    function, arguments = fetch.__reduce__()
    drawn = []
    before = rng.capture_states()
    for number in (5, 5, 6):
        assert function(arguments[0], arguments[1], number) == [3, 4]
        drawn.append((random.random(), np.random.rand(), float(torch.rand(()))))
    rng.restore_states(before)
    assert drawn[0] == drawn[1] != drawn[2]
    assert len(set(drawn[0])) == 3
