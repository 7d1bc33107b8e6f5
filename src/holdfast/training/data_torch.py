"""A torch DataLoader over a map-style dataset, continued in the middle of an epoch without reading a sample twice.

The order of an epoch is a stream of indices that the sampler makes in this process. We remember the random states that
it was made from and how far it was drawn; on resume the same stream is drawn again to the same point, the indices that
were already given are left out, and the iterator gets the rest. A checksum over all indices proves that the order is
the same. The loader's own random draws (the workers' base seed, the sampler's seed) happen on a copy of the states of
then; what others draw from is put back (pytorch/pytorch#36228 is why a loader draws at all; Megatron-Bridge#5257 is
what happens when that is not undone: everything after the resume is off by one draw).

Facts about torch, from torch/utils/data/dataloader.py of 2.0 to 2.13: an iterator reads `loader._index_sampler` (that
is `batch_sampler`, or `sampler` without automatic batching) when it is made; it draws a base seed from
`loader.generator` or the global state then; with persistent workers only the first epoch does that.
"""

from __future__ import annotations

import copy
import hashlib
import os
import random
import sys
import warnings
import zlib
from collections import deque
from typing import TYPE_CHECKING, Any

from .data import BatchSampler, DataChanged, DataWarning
from .data_sources import adopt_generators, length_of, set_epoch
from .rng_streams import (
    Apart,
    Stream,
    derive_seed,
    get_all,
    global_streams,
    plain_all,
    put_all,
    streams_inside,
    unplain_all,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    Batch = Any
    Foreign = Any
    Index = Any
    Plain = dict[str, Any]
    State = Any

SAMPLER_DEPTH = 4  # a sampler in a batch sampler in a wrapper for ranks: more is not seen in the field
ORDER_REMEDY = (
    "something that decides on the order is not restored: give the sampler its own generator, set_epoch(), or a seed; "
    "with strict=False in follow() the interrupted epoch begins anew"
)


def is_map_style(loader: Foreign, data: Foreign) -> bool:
    """Whether the indices of `loader` are made in this process and its iterator is torch's own."""
    return (
        type(loader).__iter__ is data.DataLoader.__iter__
        and not isinstance(loader.dataset, (data.IterableDataset, data.MapDataPipe))
        and hasattr(loader, "_index_sampler")
    )


def sampler_chain(loader: Foreign) -> list[Foreign]:
    """The object that gives the loader's indices, and those that it wraps."""
    chain = [loader._index_sampler]  # noqa: SLF001 - see the facts above
    while len(chain) < SAMPLER_DEPTH:
        inner = getattr(chain[-1], "sampler", None) or getattr(chain[-1], "batch_sampler", None)
        if inner is None:
            break
        chain.append(inner)
    return chain


def _draws_at_once(sampler: Foreign, data: Foreign) -> bool:
    """Whether all that a sampler draws from global streams is drawn with its first index."""
    names = ("SequentialSampler", "RandomSampler", "SubsetRandomSampler", "WeightedRandomSampler", "BatchSampler")
    known = [getattr(data, name) for name in names] + [data.distributed.DistributedSampler, BatchSampler]
    return type(sampler) in known or isinstance(sampler, (list, tuple, range))


class Indices:
    """The indices of one epoch, as the loader's iterator asks for them.

    The first one is drawn as the sampler always does. Later ones of samplers that we do not know are drawn `Apart`:
    many draw as they go (a few classes for each batch, say), and what the training draws in between must not matter.
    """

    def __init__(self, owner: LoaderSource, epoch: int) -> None:
        self._owner = owner
        self._label = f"{owner.name}/{epoch}"
        self._draws: Iterator[Index] | None = None
        self._apart: Apart | None = None
        self._seed = b""
        self._buffer: deque[Index] = deque()
        self._sums: deque[int] = deque()  # the checksum after each index that was drawn and not given
        self._sum = 0  # after the one drawn last
        self._sent = 0
        self.given_sum = 0  # after the one given last
        self.order: dict[str, State] | None = None  # what the order was made from
        self.drawn = 0
        self.exhausted = False
        self.before: dict[str, State] | None = None  # put back when the first index is asked for

    def __iter__(self) -> Indices:
        return self

    def __next__(self) -> Index:
        self.undo()
        if not self._buffer:
            self._draw()
        index = self._buffer.popleft()
        number, self._sent = self._sent, self._sent + 1
        return Fetch(index, self._seed, number) if self._owner.seeds_workers else index

    def undo(self) -> None:
        """Put back what was set for the workers' base seed."""
        if self.before is not None:
            put_all(self._owner.streams(), self.before)
            self.before = None

    def given(self) -> None:
        """A batch was given to the loop."""
        if self._sums:
            self.given_sum = self._sums.popleft()

    @property
    def sent(self) -> int:
        """The number of the index that is asked for next."""
        return self._sent

    def _draw(self) -> None:
        """Draw one index into the buffer. StopIteration at the end."""
        if self.exhausted:
            raise StopIteration
        try:
            if self._draws is None:
                self._start()
                assert self._draws is not None
                index = next(self._draws)
            elif self._apart is None:
                index = next(self._draws)
            else:
                with self._apart:
                    index = next(self._draws)
        except StopIteration:
            self.exhausted = True
            raise
        if self.drawn == 0 and not self._owner.draws_at_once:
            self._apart = Apart.derived(self._label)
        self.drawn += 1
        self._sum = zlib.crc32(repr(index).encode(), self._sum)
        self._sums.append(self._sum)
        self._buffer.append(index)

    def _start(self) -> None:
        self.order = get_all(self._owner.order_streams())
        seed = derive_seed(self._label, [plain_all(self._owner.order_streams(), self.order), self._owner.rank()])
        self._seed = seed.to_bytes(8, "little")
        self._draws = iter(self._owner.sampler)

    def replay(self, position: int, state: Plain) -> None:
        """Draw again what was drawn before, and leave the first `position` indices out.

        Raises:
            DataChanged: The order is another one.
        """
        try:
            while self.drawn < max(position, state["drawn"]):
                self._draw()
                if self.drawn <= position:
                    self._buffer.clear()
                    self.given()
            if state["exhausted"]:
                self._draw()
        except StopIteration:
            pass
        self._sent = position
        if self.drawn < position or self.given_sum != state["sum"]:
            name, epoch = self._owner.name, self._label.rpartition("/")[2]
            raise DataChanged(f"the order of {name} in epoch {epoch} is not the one of before the resume", ORDER_REMEDY)

    def is_over(self) -> bool:
        """Whether no index is left; draws the next one, as the next batch would."""
        if not self._buffer:
            try:
                self._draw()
            except StopIteration:
                return True
        return False


class IndexSource:
    """Stands in the place of the loader's sampler; an iterator with persistent workers keeps it for all epochs."""

    def __init__(self, length: int | None) -> None:
        self._length = length
        self.indices: Iterator[Index] = iter(())

    def __iter__(self) -> Iterator[Index]:
        # torch asks twice when it makes an iterator with workers, and draws nothing from the first answer.
        return self.indices

    def __len__(self) -> int:
        if self._length is None:
            raise TypeError("the sampler has no length")
        return self._length


class LoaderSource:
    """A DataLoader whose samples have indices."""

    kind = "torch loader"
    ends_unasked = False

    def __init__(self, loader: Foreign, name: str, *, seed_samples: bool) -> None:
        self.name = name
        self._loader = loader
        self.sampler = loader._index_sampler  # noqa: SLF001 - see the facts above
        self._chain = sampler_chain(loader)
        self.draws_at_once = all(_draws_at_once(sampler, sys.modules["torch.utils.data"]) for sampler in self._chain)
        self.seeds_workers = seed_samples and loader.num_workers > 0
        owners = [("loader", loader), *((f"sampler{depth}", each) for depth, each in enumerate(self._chain))]
        self._own = streams_inside(owners)
        self._place = IndexSource(length_of(self.sampler))
        self._indices: Indices | None = None
        self._copy: Foreign = None  # of the loader, with our index source in it
        self._iterator: Foreign = None
        # What the workers' base seed was drawn from; kept over a resume for persistent workers, which draw it once.
        self._base: Plain | None = None
        self._base_is_old = False
        if not getattr(loader, "in_order", True):
            warnings.warn(
                f"{name}: in_order=False is not followed: which batches were given would not be known",
                DataWarning,
                stacklevel=4,
            )

    def streams(self) -> dict[str, Stream]:
        """All that making an iterator could draw from."""
        return {**global_streams(), **self._own}

    def order_streams(self) -> dict[str, Stream]:
        """All that the order could come from: of samplers that we know, never Python's and numpy's global streams."""
        streams = self.streams()
        if self.draws_at_once and not isinstance(self.sampler, (list, tuple)):
            streams.pop("python")
            streams.pop("numpy", None)
        return streams

    def rank(self) -> int:
        """Which of several processes this is, so that their workers do not draw the same numbers."""
        for sampler in self._chain:
            rank = getattr(sampler, "rank", None)
            if isinstance(rank, int):
                return rank
        distributed = sys.modules.get("torch.distributed")
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            return int(distributed.get_rank())
        text = os.environ.get("RANK", "")
        return int(text) if text.isdecimal() else 0

    def facts(self) -> Plain:
        """What the position counts in. Workers, prefetching and pinning may change."""
        replicas = [getattr(sampler, "num_replicas", None) for sampler in self._chain]
        sizes = [getattr(each, "batch_size", None) for each in (self._loader, *self._chain)]
        return {
            "dataset length": length_of(self._loader.dataset),
            "batches": self.length(),
            "batch_size": next((size for size in sizes if isinstance(size, int)), None),
            "drop_last": bool(self._loader.drop_last or getattr(self.sampler, "drop_last", False)),
            "num_replicas": next((count for count in replicas if isinstance(count, int)), None),
            "samplers": [type(sampler).__name__ for sampler in self._chain],
            "generators": sorted(self._own),
        }

    def length(self) -> int | None:
        """As `Source.length`."""
        return length_of(self.sampler)

    def begin(self, epoch: int) -> None:
        """As `Source.begin`: with the draws of a plain loop, in their order."""
        set_epoch([self._loader, *self._chain, self._loader.dataset], epoch)
        self._indices = Indices(self, epoch)
        # In an uninterrupted run these workers would be alive, and their base seed drawn long ago.
        again = self._base_is_old and self._loader.persistent_workers and self._copy is None
        self._make(again=again)

    def resume(self, epoch: int, position: int, state: Plain) -> bool:
        """As `Source.resume`."""
        if state.get("order") is None:
            self.begin(epoch)
            return True
        set_epoch([self._loader, *self._chain, self._loader.dataset], epoch)
        self._indices = Indices(self, epoch)
        streams = self.streams()
        saved = get_all(streams)
        try:
            put_all(streams, unplain_all(streams, state["order"]))
            self._indices.replay(position, state)
        finally:
            put_all(streams, saved)
        if self._indices.is_over():
            return False
        self._make(again=True)
        return True

    def _make(self, *, again: bool) -> None:
        """Make torch's iterator; `again`: it was made before in the training's life, so no draw of it may stay."""
        indices = self._indices
        assert indices is not None
        self._place.indices = indices
        self._iterator = None
        streams = self.streams()
        saved = get_all(streams)
        source = "loader.generator" if "loader.generator" in self._own else "torch"
        if again:
            put_all(streams, unplain_all(streams, self._base or {}))
            indices.before = saved
        elif self._copy is None and self._loader.num_workers:
            self._base = plain_all(streams, {source: saved[source]})
            self._base_is_old = False
        try:
            self._iterator = iter(self._loader_with_our_indices())
        finally:
            indices.undo()

    def _loader_with_our_indices(self) -> Foreign:
        """A copy of the loader that takes its indices from us; the loader itself stays as it is for others.

        A DataLoader forbids to set these attributes on a finished one, so they are put where they lie.
        """
        if self._copy is not None:
            return self._copy
        twin = copy.copy(self._loader)
        twin.__dict__["batch_sampler" if twin.batch_sampler is not None else "sampler"] = self._place
        twin.__dict__["_iterator"] = None
        if "in_order" in twin.__dict__:
            twin.__dict__["in_order"] = True
        if twin.persistent_workers and twin.num_workers:
            self._copy = twin
        return twin

    def take(self) -> Batch:
        """As `Source.take`."""
        try:
            batch = next(self._iterator)
        except StopIteration:
            self._iterator = None
            raise
        assert self._indices is not None
        self._indices.given()
        return batch

    def used_up(self, position: int) -> int:
        """As `Source.used_up`: torch counts a batch whose fetch raised, but not a worker that died."""
        assert self._indices is not None
        counted = getattr(self._iterator, "_rcvd_idx", None)
        first = self._indices.sent - getattr(self._iterator, "_send_idx", 0)
        after = first + counted if isinstance(counted, int) else self._indices.sent
        for _ in range(after - position):
            self._indices.given()
        return after

    def state(self) -> Plain:
        """As `Source.state`."""
        state: Plain = {"base": self._base, "generators": plain_all(self._own, get_all(self._own))}
        indices = self._indices
        if indices is not None and indices.order is not None:
            state["order"] = plain_all(self.streams(), indices.order)
            state["drawn"], state["exhausted"], state["sum"] = indices.drawn, indices.exhausted, indices.given_sum
        return state

    def adopt(self, state: Mapping[str, Any]) -> None:
        """As `Source.adopt`."""
        adopt_generators(self._own, dict(state), self.name)
        self._base = state.get("base")
        self._base_is_old = self._base is not None

    def close(self) -> None:
        """As `Source.close`: an iterator ends its workers when the last reference to it goes."""
        self._base_is_old = self._base is not None
        self._iterator = self._copy = self._indices = None
        self._place.indices = iter(())


class Fetch:
    """An index on its way to a worker process, which seeds the worker's random numbers as it arrives.

    It arrives by pickle, just before its batch is fetched, in the thread that fetches; the dataset sees the index
    itself. Seeding there reaches the dataset and the collate function alike, and the workers' dataset stays the user's
    own object, which worker_init_fn may look at.
    """

    __slots__ = ("_index", "_number", "_seed")

    def __init__(self, index: Index, seed: bytes, number: int) -> None:
        self._index, self._seed, self._number = index, seed, number

    def __reduce__(self) -> tuple[Any, ...]:
        return arrive, (self._index, self._seed, self._number)


def arrive(index: Index, seed: bytes, number: int) -> Index:
    """Seed this process for one batch, and answer its index.

    Not by `torch.manual_seed`, which looks at every kind of device and takes 90 microseconds (measured, 2.13); the CPU
    generator alone takes one, and workers have no device.
    """
    digest = hashlib.blake2b(number.to_bytes(8, "little"), key=seed, digest_size=32).digest()
    words = [int.from_bytes(digest[at : at + 8], "little") for at in range(0, 32, 8)]
    random.seed(words[0])
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        numpy.random.seed([words[1] & 0xFFFFFFFF, words[1] >> 32, words[2] & 0xFFFFFFFF, words[2] >> 32])
    if torch is not None:
        torch.default_generator.manual_seed(words[3] >> 1)
    return index
