"""The order of a data set for loops without torch: a list of indices for each batch, another order in each epoch.

Invariant: the order depends on the arguments and the epoch's number alone, so any batch of any epoch can be dealt again
without the ones before it, on any later Python.
"""

from __future__ import annotations

import random
from collections.abc import Iterator


class BatchSampler:
    """Lists of indices, for loops without torch: every index once in an epoch, in an order that each epoch has its own.

    ``for rows in follow(BatchSampler(len(x), 32)): step(x[rows])``. A torch DataLoader takes it as ``batch_sampler``.
    """

    def __init__(
        self, length: int, batch_size: int, *, shuffle: bool = True, seed: int = 0, drop_last: bool = False
    ) -> None:
        """Deal `length` indices in batches of `batch_size`; with `drop_last`, no smaller batch at the end.

        Raises:
            ValueError: There would be no batch.
        """
        if batch_size < 1 or length < (batch_size if drop_last else 1):
            raise ValueError(f"{length} indices in batches of {batch_size}: there is no batch")
        self.length, self.batch_size, self.shuffle = length, batch_size, shuffle
        self.seed, self.drop_last, self.epoch = seed, drop_last, 0

    def set_epoch(self, epoch: int) -> None:
        """The next iterator is that of this epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.length // self.batch_size if self.drop_last else -(-self.length // self.batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        return self.batches_from(0)

    def batches_from(self, position: int) -> Iterator[list[int]]:
        """The batches of this epoch after the first `position`."""
        order = self._order()
        for batch in range(position, len(self)):
            yield list(order[batch * self.batch_size : (batch + 1) * self.batch_size])

    def _order(self) -> list[int] | range:
        if not self.shuffle:
            return range(self.length)
        # Later Pythons keep what random.random gives for a seed; they may change shuffle.
        # Source: "Notes on Reproducibility" in the documentation of the module random.
        draw = random.Random(f"{self.seed}-{self.epoch}").random  # noqa: S311 - no secret
        order = list(range(self.length))
        for last in reversed(range(1, self.length)):
            other = int(draw() * (last + 1))
            order[last], order[other] = order[other], order[last]
        return order
