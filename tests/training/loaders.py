"""Loaders of torch for the tests of following, and a loop that is cut and resumed like a process."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils import data

from holdfast.training.data.batches import follow
from holdfast.training.randomness import rng

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

np = pytest.importorskip("numpy")

SAMPLES = 23


class Augmented(data.Dataset[Any]):
    """Each sample has its index and a random number of each library."""

    def __init__(self, length: int = SAMPLES) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([float(index), random.random(), np.random.rand(), float(torch.rand(()))])


class LazySampler(data.Sampler[int]):
    """Draws each index when it is asked for, from the global streams, as samplers of few-shot classes do."""

    def __len__(self) -> int:
        return SAMPLES

    def __iter__(self) -> Iterator[int]:
        left = list(range(SAMPLES))
        while left:
            pick = int(torch.randint(len(left), ())) + random.randrange(len(left)) + int(np.random.randint(len(left)))
            yield left.pop(pick % len(left))


class OwnGenerator(data.Sampler[int]):
    """Shuffles with a numpy generator that lives as long as the sampler."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(3)

    def __len__(self) -> int:
        return SAMPLES

    def __iter__(self) -> Iterator[int]:
        return iter(self.rng.permutation(SAMPLES).tolist())


class Streamed(data.IterableDataset[Any]):
    """An iterable dataset whose samples are random."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        worker = data.get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        for index in range(first, SAMPLES, step):
            yield torch.tensor([float(index), random.random(), np.random.rand(), float(torch.rand(()))])


def loader(**options: Any) -> data.DataLoader[Any]:
    """A DataLoader over `Augmented` in batches of 4; a generator is made anew for each."""
    if options.get("generator") is True:
        options["generator"] = torch.Generator().manual_seed(7)
    if not {"batch_size", "batch_sampler"} & options.keys():
        options["batch_size"] = 4
    return data.DataLoader(Augmented(), **options)


def run_loop(
    make: Callable[[], Any], steps: int, cuts: Collection[int] = (), *, resume: Callable[[], Any] | None = None
) -> list[Any]:
    """What a loop sees in `steps` batches, and one random number of each stream that it draws after each.

    Before the steps in `cuts`, everything is thrown away and made again by `resume` (or `make`), as in a fresh process,
    from the state as a checkpoint holds it.
    """
    rng.seed_everything(1)
    batches, seen = follow(make()), []
    for step in range(steps):
        if step in cuts:
            state = json.loads(json.dumps([batches.state_dict(), rng.capture_states()]))
            batches.close()
            rng.seed_everything(99)
            batches = follow((resume or make)())
            batches.load_state_dict(state[0])
            assert rng.restore_states(state[1]) == []
        batch = next(batches)
        drawn = (random.random(), float(np.random.rand()), float(torch.rand(())))
        seen.append((batches.epoch, batches.position, batch.tolist(), drawn))
    batches.close()
    return seen


def indices_of(seen: list[Any], epoch: int) -> list[int]:
    """The samples that an epoch of `run_loop` gave, in their order."""
    batches = [batch for number, _, batch, _ in seen if number == epoch]
    rows = [row for batch in batches for row in (batch if isinstance(batch[0], list) else [batch])]
    return [int(row[0]) for row in rows]
