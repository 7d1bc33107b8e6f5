"""A torch DataLoader over a map-style dataset, continued in the middle of an epoch without reading a sample twice.

The order of an epoch is a stream of indices that the sampler makes in this process. We remember the random states that
it was made from and how far it was drawn; on resume the same stream is drawn again to the same point, the indices that
were already given are left out, and the iterator gets the rest. A checksum over all indices proves that the order is
the same. The loader's own random draws (the workers' base seed, the sampler's seed) happen on the states of then, and
what others draw from is put back: without that, everything after a resume is off by one draw (Megatron-Bridge#5257).

Facts about torch, from torch/utils/data/dataloader.py of 2.13: an iterator reads `loader._index_sampler` (that
is `batch_sampler`, or `sampler` without automatic batching) when it is made; it draws a base seed from
`loader.generator` or the global state then; with persistent workers only the first epoch does that.
"""

from __future__ import annotations

import copy
import os
import sys
import warnings
from typing import Any

from holdfast.training.randomness.streams import (
    RandomStream,
    get_all,
    global_streams,
    plain_all,
    restore_all,
    streams_inside,
    unplain_all,
)
from holdfast.training.stopping.signals import ShieldedInit

from .errors import DataUnusable, DataWarning
from .indices import IndexSource, Indices
from .sampling import BatchSampler
from .sources import adopt_generators, length_of, set_epoch

Batch = Any
Foreign = Any
Plain = dict[str, Any]

SAMPLER_DEPTH = 4  # a sampler in a batch sampler in a wrapper for ranks: more is not seen in the field


def is_map_style(loader: Foreign, data: Foreign) -> bool:
    """Whether the indices of `loader` are made in this process and its iterator is torch's own."""
    return (
        type(loader).__iter__ is data.DataLoader.__iter__
        and not isinstance(loader.dataset, (data.IterableDataset, getattr(data, "MapDataPipe", data.IterableDataset)))
        and hasattr(loader, "_index_sampler")
    )


def sampler_chain(loader: Foreign) -> list[Foreign]:
    """The object that gives the loader's indices, and those that it wraps."""
    chain = [loader._index_sampler]  # noqa: SLF001 - see the facts above
    while len(chain) < SAMPLER_DEPTH:
        inner = [getattr(chain[-1], name, None) for name in ("sampler", "batch_sampler")]
        inner = [each for each in inner if each is not None]
        if not inner:
            break
        chain.append(inner[0])
    return chain


def _draws_at_once(sampler: Foreign, data: Foreign) -> bool:
    """Whether all that a sampler draws from global streams is drawn with its first index."""
    names = ("SequentialSampler", "RandomSampler", "SubsetRandomSampler", "WeightedRandomSampler", "BatchSampler")
    known = [getattr(data, name) for name in names] + [data.distributed.DistributedSampler, BatchSampler]
    return type(sampler) in known or isinstance(sampler, (list, tuple, range))


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

    def streams(self) -> dict[str, RandomStream]:
        """All that making an iterator could draw from."""
        return {**global_streams(), **self._own}

    def order_streams(self) -> dict[str, RandomStream]:
        """All that the order could come from: of samplers that we know, never Python's and numpy's global streams."""
        streams = self.streams()
        if self.draws_at_once:
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
        """As `BatchSource.length`."""
        return length_of(self.sampler)

    def begin(self, epoch: int) -> None:
        """As `BatchSource.begin`: with the draws of a plain loop, in their order."""
        set_epoch([self._loader, *self._chain, self._loader.dataset], epoch)
        self._indices = Indices(self, epoch)
        # In an uninterrupted run these workers would be alive, and their base seed drawn long ago.
        again = self._base_is_old and self._loader.persistent_workers and self._copy is None
        self._make(again=again)

    def resume(self, epoch: int, position: int, state: Plain) -> bool:
        """As `BatchSource.resume`."""
        if state.get("order") is None:
            self.begin(epoch)
            return True
        set_epoch([self._loader, *self._chain, self._loader.dataset], epoch)
        self._indices = Indices(self, epoch)
        streams = self.streams()
        saved = get_all(streams)
        try:
            restore_all(streams, unplain_all(streams, state["order"]))
            self._indices.replay(position, state)
        finally:
            restore_all(streams, saved)
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
            restore_all(streams, unplain_all(streams, self._base or {}))
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
        if twin.num_workers:
            # A TERM to the whole group must not take the workers before the trainer has done its last steps.
            twin.__dict__["worker_init_fn"] = ShieldedInit(twin.worker_init_fn)
        if "in_order" in twin.__dict__:
            twin.__dict__["in_order"] = True
        if twin.persistent_workers and twin.num_workers:
            self._copy = twin
        return twin

    def take(self) -> Batch:
        """As `BatchSource.take`."""
        try:
            batch = next(self._iterator)
        except StopIteration:
            self._iterator = None
            raise
        assert self._indices is not None
        self._indices.given()
        return batch

    def position_after_failure(self, position: int) -> int:
        """As `BatchSource`: torch counts a batch whose fetch raised, but not a worker that died."""
        assert self._indices is not None
        counted = getattr(self._iterator, "_rcvd_idx", None)
        first = self._indices.sent - getattr(self._iterator, "_send_idx", 0)
        after = first + counted if isinstance(counted, int) else self._indices.sent
        for _ in range(after - position):
            self._indices.given()
        return after

    def state(self) -> Plain:
        """As `BatchSource.state`."""
        state: Plain = {"base": self._base, "generators": plain_all(self._own, get_all(self._own))}
        indices = self._indices
        if indices is not None and indices.order is not None:
            state["order"] = indices.order
            state["drawn"], state["exhausted"], state["sum"] = indices.drawn, indices.exhausted, indices.given_sum
        return state

    def adopt(self, state: Plain) -> None:
        """As `BatchSource.adopt`."""
        kinds = {"drawn": int, "exhausted": bool, "sum": int, "order": dict} if state.get("order") is not None else {}
        for key, kind in kinds.items():
            if type(state.get(key)) is not kind:
                raise DataUnusable(
                    f"the state of {self.name} has {key}={state.get(key)!r:.40}", "use another checkpoint"
                )
        try:
            unplain_all(self.streams(), {**(state.get("order") or {}), **(state.get("base") or {})})
        except (ValueError, TypeError) as error:
            raise DataUnusable(f"the state of {self.name} cannot be used: {error}", "use another checkpoint") from None
        adopt_generators(self._own, state, self.name)
        self._base = state.get("base")
        self._base_is_old = self._base is not None

    def close(self) -> None:
        """As `BatchSource.close`.

        torch ends an iterator's workers when the last reference to it goes; the traceback of a batch that raised is
        one, and may be kept for long. So they are asked to end (`_shutdown_workers` is what torch's ``__del__`` calls).
        """
        self._base_is_old = self._base is not None
        iterator = self._iterator if self._copy is None else self._copy.__dict__.get("_iterator")
        self._iterator = self._copy = self._indices = None
        end_workers = getattr(iterator, "_shutdown_workers", None)
        if callable(end_workers):
            end_workers()
        self._place.indices = iter(())
