"""What a source of batches is, and the sources that know their own position: sequences, loaders with a state.

The others are in `iterable` and, for a torch DataLoader over a map-style dataset, in `loaders`; `choose` picks one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from holdfast.training.randomness.streams import (
    get_all,
    global_streams,
    plain_all,
    restore_all,
    streams_inside,
    unplain_all,
)

from .errors import DataUnusable
from .sampling import BatchSampler

Batch = Any
Plain = dict[str, Any]
Foreign = Any


class BatchSource(Protocol):
    """A loader as `Batches` goes through it: one epoch at a time."""

    @property
    def kind(self) -> str:
        """What a state of it belongs to."""

    @property
    def ends_unasked(self) -> bool:
        """Whether its state is of no use once its end was met, so that nobody asks for a batch after the last one."""

    def facts(self) -> Plain:
        """What must be the same on resume; None is for unknown."""

    def length(self) -> int | None:
        """Batches in an epoch."""

    def begin(self, epoch: int) -> None:
        """Start an epoch in the ordinary way."""

    def resume(self, epoch: int, position: int, state: Plain) -> bool:
        """Start an epoch after its first `position` batches, drawing no random numbers from the training's streams.

        Returns:
            Whether there may be a batch left; if not, the epoch is over.

        Raises:
            DataChanged: The epoch cannot be gone through as it was.
        """

    def take(self) -> Batch:
        """The next batch. StopIteration at the end of the epoch."""

    def position_after_failure(self, position: int) -> int:
        """The position after a batch could not be fetched."""

    def state(self) -> Plain:
        """What `resume` and `adopt` need."""

    def adopt(self, state: Plain) -> None:
        """A state was loaded: put back what others than the iterator see."""

    def close(self) -> None:
        """End worker processes."""


def has_methods(value: object, *names: str) -> bool:
    """Whether it is an object, no class, that has all of these methods."""
    return not isinstance(value, type) and all(callable(getattr(value, name, None)) for name in names)


def is_sequence(value: object) -> bool:
    """Whether `value[i]` is batch i: a list, tuple, range, array or tensor, or an object with only length and items."""
    if isinstance(value, (str, bytes, Mapping)):
        return False
    if isinstance(value, Sequence):
        return True
    for library, kind in (("numpy", "ndarray"), ("torch", "Tensor")):
        module = sys.modules.get(library)
        if module is not None and isinstance(value, getattr(module, kind)):
            return bool(value.ndim)
    return has_methods(value, "__getitem__", "__len__") and not hasattr(value, "__iter__")


def set_epoch(owners: Iterable[object], epoch: int) -> None:
    """Tell everybody who has set_epoch (DistributedSampler, datasets of Hugging Face) which epoch begins."""
    for owner in owners:
        if has_methods(owner, "set_epoch"):
            owner.set_epoch(epoch)  # type: ignore[attr-defined]  # just asked for


def length_of(value: object) -> int | None:
    """The length as far as it has one: DataLoaders have __len__ and raise TypeError for datasets without."""
    try:
        return len(value)  # type: ignore[arg-type]  # that is the question
    except (TypeError, NotImplementedError, AttributeError):
        return None


class SequenceSource:
    """Batches by their number: to skip costs nothing."""

    kind = "sequence"
    ends_unasked = False

    def __init__(self, batches: Foreign, name: str) -> None:
        self._batches, self._name = batches, name
        self._iterator: Iterator[Batch] = iter(())

    def facts(self) -> Plain:
        """Length, and for a `BatchSampler` what its order comes from."""
        facts: Plain = {"batches": len(self._batches)}
        if isinstance(self._batches, BatchSampler):
            names = ("length", "batch_size", "shuffle", "seed", "drop_last")
            facts.update({name: getattr(self._batches, name) for name in names})
        return facts

    def length(self) -> int | None:
        """As `BatchSource.length`."""
        return len(self._batches)

    def begin(self, epoch: int) -> None:
        """As `BatchSource.begin`."""
        self.resume(epoch, 0, {})

    def resume(self, epoch: int, position: int, state: Plain) -> bool:  # noqa: ARG002 - the position says all
        """As `BatchSource.resume`."""
        set_epoch([self._batches], epoch)
        self._iterator = batches_from(self._batches, position)
        return position < len(self._batches)

    def take(self) -> Batch:
        """As `BatchSource.take`."""
        return next(self._iterator)

    def position_after_failure(self, position: int) -> int:
        """As `BatchSource`: the iterator ended with the error, and is made anew behind the batch."""
        self._iterator = batches_from(self._batches, position + 1)
        return position + 1

    def state(self) -> Plain:
        """As `BatchSource.state`."""
        return {}

    def adopt(self, state: Plain) -> None:
        """As `BatchSource.adopt`."""

    def close(self) -> None:
        """As `BatchSource.close`."""


def batches_from(batches: Foreign, position: int) -> Iterator[Batch]:
    """The batches of a sequence from one number on."""
    if isinstance(batches, BatchSampler):
        return batches.batches_from(position)
    return (batches[number] for number in range(position, len(batches)))


def adopt_generators(streams: Foreign, state: Plain, name: str) -> None:
    """Put back the generators that belong to a loader.

    Raises:
        DataUnusable: The state holds none for them.
    """
    try:
        restore_all(streams, unplain_all(streams, state.get("generators", {})))
    except (ValueError, TypeError, AttributeError) as error:
        raise DataUnusable(f"the state of {name} cannot be used: {error}", "use another checkpoint") from None


class StatefulSource:
    """A loader that keeps its own position: torchdata's StatefulDataLoader and what is like it.

    What its worker processes draw (random augmentation) is as it restores it: torchdata 0.11 does not.
    """

    kind = "stateful"
    ends_unasked = True

    def __init__(self, loader: Foreign, name: str) -> None:
        self._loader, self._name = loader, name
        self._iterator: Iterator[Batch] = iter(())
        parts = [(part, getattr(loader, part, None)) for part in ("sampler", "batch_sampler", "dataset")]
        self._owners = [("loader", loader), *parts]
        self._streams = streams_inside(self._owners)
        self._begun = False

    def facts(self) -> Plain:
        """As `BatchSource.facts`: what it can bear is the loader's own affair."""
        return {"type": type(self._loader).__name__}

    def length(self) -> int | None:
        """As `BatchSource.length`."""
        return length_of(self._loader)

    def begin(self, epoch: int) -> None:
        """As `BatchSource.begin`."""
        set_epoch([owner for _, owner in self._owners], epoch)
        self._begun = True
        self._iterator = iter(self._loader)

    def resume(self, epoch: int, position: int, state: Plain) -> bool:  # noqa: ARG002 - the loader has its own
        """As `BatchSource.resume`."""
        set_epoch([owner for _, owner in self._owners], epoch)
        self._begun = True
        streams = {**global_streams(), **self._streams}
        saved = get_all(streams)
        try:
            if "loader" in state:
                self._loader.load_state_dict(state["loader"])
            self._iterator = iter(self._loader)
        finally:
            restore_all(streams, saved)
        return True

    def take(self) -> Batch:
        """As `BatchSource.take`."""
        return next(self._iterator)

    def position_after_failure(self, position: int) -> int:
        """As `BatchSource.position_after_failure`."""
        return position + 1

    def state(self) -> Plain:
        """As `BatchSource.state`; as plain as the loader's own.

        Before its first epoch it is not asked: torchdata makes an iterator to answer, which draws random numbers.
        """
        state: Plain = {"loader": self._loader.state_dict()} if self._begun else {}
        return {**state, "generators": plain_all(self._streams, get_all(self._streams))}

    def adopt(self, state: Plain) -> None:
        """As `BatchSource.adopt`: the loader's own state is loaded when the iterator is made."""
        adopt_generators(self._streams, state, self._name)

    def close(self) -> None:
        """As `BatchSource.close`."""
        self._iterator = iter(())
