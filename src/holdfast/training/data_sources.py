"""What `follow` can go through: sequences, iterables, functions, loaders with a state of their own.

A torch DataLoader over a map-style dataset is in `data_torch`.
"""

from __future__ import annotations

import itertools
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from .data import Batches, BatchSampler, DataChanged, DataEnded, DataUnusable, DataWarning
from .rng_streams import (
    Apart,
    derived_seeds,
    get_all,
    global_streams,
    plain_all,
    put_all,
    streams_inside,
    unplain_all,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    Batch = Any
    Plain = dict[str, Any]
    Foreign = Any


class Source(Protocol):
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

    def used_up(self, position: int) -> int:
        """The position after a batch could not be fetched."""

    def state(self) -> Plain:
        """What `resume` and `adopt` need."""

    def adopt(self, state: Plain) -> None:
        """A state was loaded: put back what others than the iterator see."""

    def close(self) -> None:
        """End worker processes."""


def source_of(loader: object, name: str, *, seed_samples: bool = True) -> Source:
    """The way to go through `loader`.

    Raises:
        DataUnusable: There is none.
    """
    if _has(loader, "state_dict", "load_state_dict", "__iter__"):
        return StatefulSource(loader, name)
    data = sys.modules.get("torch.utils.data")
    if data is not None and isinstance(loader, data.DataLoader):
        from .data_torch import LoaderSource, is_map_style

        if is_map_style(loader, data):
            return LoaderSource(loader, name, seed_samples=seed_samples)
    if is_sequence(loader) or isinstance(loader, BatchSampler):
        return SequenceSource(loader, name)
    if isinstance(loader, (str, bytes, Mapping)) or not (hasattr(loader, "__iter__") or callable(loader)):
        raise DataUnusable(
            f"{name} is a {type(loader).__name__}, which has no batches",
            "give a DataLoader, a list or array of batches, an iterable, or a function from the epoch to one",
        )
    return IterableSource(loader, name)


def _has(value: object, *names: str) -> bool:
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
    return _has(value, "__getitem__", "__len__") and not hasattr(value, "__iter__")


def set_epoch(owners: Iterable[object], epoch: int) -> None:
    """Tell everybody who has set_epoch (DistributedSampler, datasets of Hugging Face) which epoch begins."""
    for owner in owners:
        if _has(owner, "set_epoch"):
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
        """As `Source.length`."""
        return len(self._batches)

    def begin(self, epoch: int) -> None:
        """As `Source.begin`."""
        self.resume(epoch, 0, {})

    def resume(self, epoch: int, position: int, state: Plain) -> bool:  # noqa: ARG002 - the position says all
        """As `Source.resume`."""
        set_epoch([self._batches], epoch)
        self._iterator = batches_from(self._batches, position)
        return position < len(self._batches)

    def take(self) -> Batch:
        """As `Source.take`."""
        return next(self._iterator)

    def used_up(self, position: int) -> int:
        """As `Source.used_up`: the iterator ended with the error, and is made anew behind the batch."""
        self._iterator = batches_from(self._batches, position + 1)
        return position + 1

    def state(self) -> Plain:
        """As `Source.state`."""
        return {}

    def adopt(self, state: Plain) -> None:
        """As `Source.adopt`."""

    def close(self) -> None:
        """As `Source.close`."""


def batches_from(batches: Foreign, position: int) -> Iterator[Batch]:
    """The batches of a sequence from one number on."""
    if isinstance(batches, BatchSampler):
        return batches.batches_from(position)
    return (batches[number] for number in range(position, len(batches)))


class IterableSource:
    """An iterable, or a function from the epoch to one, that can only be gone through from its start.

    It draws from random streams apart from the training's (see `Apart`): what it draws then depends on nothing that
    the training draws in between, and going through it again draws the same.
    """

    kind = "iterable"
    ends_unasked = False

    def __init__(self, iterable: Foreign, name: str) -> None:
        self._iterable, self._name = iterable, name
        self._iterator: Iterator[Batch] = iter(())
        self._ahead: list[Batch] = []
        self._apart = Apart({})
        self._start: Plain = {}
        self._used = False
        # A DataLoader is here because its dataset is an iterable one: that may have an epoch and generators too.
        self._owners = [("loader", iterable), ("dataset", getattr(iterable, "dataset", None))]
        self._streams = streams_inside(self._owners)

    def facts(self) -> Plain:
        """As `Source.facts`."""
        batch_size = getattr(self._iterable, "batch_size", None)
        return {
            "type": type(self._iterable).__name__,
            "batches": self.length(),
            "batch_size": batch_size if isinstance(batch_size, int) else None,
            "generators": sorted(self._streams),
        }

    def length(self) -> int | None:
        """As `Source.length`; an estimate where it is one for torch."""
        return length_of(self._iterable)

    def begin(self, epoch: int) -> None:
        """As `Source.begin`."""
        set_epoch([owner for _, owner in self._owners], epoch)
        self._start = {
            "seeds": derived_seeds(f"{self._name}/{epoch}"),
            "generators": plain_all(self._streams, get_all(self._streams)),
        }
        self._open(epoch, 0)

    def _open(self, epoch: int, position: int) -> int:
        """Go through the first `position` batches; answers how many there were."""
        self._apart, self._ahead = Apart(self._start["seeds"]), []
        with self._apart:
            batches = self._iterable if hasattr(self._iterable, "__iter__") else self._iterable(epoch)
            if is_sequence(batches):
                self._iterator = batches_from(batches, position)
                return position
            self._iterator = iter(batches)
            if self._iterator is batches and self._iterable is batches:
                self._refuse_twice()
            return sum(1 for _ in itertools.islice(self._iterator, position))

    def _refuse_twice(self) -> None:
        if self._used:
            raise DataEnded(
                f"{self._name} is a {type(self._iterable).__name__}, which can be gone through only once, and it is used",
                "give a function from the epoch to such an iterator, a list, or a DataLoader",
            )
        self._used = True

    def resume(self, epoch: int, position: int, state: Plain) -> bool:
        """As `Source.resume`; warns when batches had to be read to be skipped."""
        set_epoch([owner for _, owner in self._owners], epoch)
        self._start = {"seeds": state["seeds"], "generators": state["started"]}
        saved = get_all(self._streams)
        put_all(self._streams, unplain_all(self._streams, self._start["generators"]))
        began = time.monotonic()
        try:
            passed = self._open(epoch, position)
            with self._apart:
                self._ahead = list(itertools.islice(self._iterator, 1))
        finally:
            put_all(self._streams, saved)
        if passed < position:
            raise DataChanged(f"{self._name} ended after {passed} batches, and {position} were given before", _REMEDY)
        seconds = time.monotonic() - began
        if position and not is_sequence(self._iterable):
            warnings.warn(
                f"{self._name}: {position} batches of epoch {epoch} were read again in {seconds:.1f} s to go on after "
                "them; a loader with state_dict() (torchdata's StatefulDataLoader) or a map-style dataset skips at once",
                DataWarning,
                stacklevel=5,
            )
        return bool(self._ahead)

    def take(self) -> Batch:
        """As `Source.take`."""
        if self._ahead:
            return self._ahead.pop()
        with self._apart:
            return next(self._iterator)

    def used_up(self, position: int) -> int:
        """As `Source.used_up`: what an iterator does after an error is its own affair; the batch counts."""
        return position + 1

    def state(self) -> Plain:
        """As `Source.state`."""
        return {
            "seeds": self._start.get("seeds", {}),
            "started": self._start.get("generators", {}),
            "generators": plain_all(self._streams, get_all(self._streams)),
        }

    def adopt(self, state: Plain) -> None:
        """As `Source.adopt`."""
        adopt_generators(self._streams, state, self._name)

    def close(self) -> None:
        """As `Source.close`."""
        self._iterator, self._ahead = iter(()), []


_REMEDY = "restore the data as it was, or pass strict=False to follow() to begin this epoch anew"


def adopt_generators(streams: Foreign, state: Plain, name: str) -> None:
    """Put back the generators that belong to a loader.

    Raises:
        DataUnusable: The state holds none for them.
    """
    try:
        put_all(streams, unplain_all(streams, state.get("generators", {})))
    except (ValueError, TypeError, AttributeError) as error:
        raise DataUnusable(f"the state of {name} cannot be used: {error}", "use another checkpoint") from None


class StatefulSource:
    """A loader that keeps its own position: torchdata's StatefulDataLoader and what is like it."""

    kind = "stateful"
    ends_unasked = True

    def __init__(self, loader: Foreign, name: str) -> None:
        self._loader, self._name = loader, name
        self._iterator: Iterator[Batch] = iter(())
        self._owners = [loader, *(getattr(loader, name, None) for name in ("sampler", "batch_sampler", "dataset"))]

    def facts(self) -> Plain:
        """As `Source.facts`: what it can bear is the loader's own affair."""
        return {"type": type(self._loader).__name__}

    def length(self) -> int | None:
        """As `Source.length`."""
        return length_of(self._loader)

    def begin(self, epoch: int) -> None:
        """As `Source.begin`."""
        set_epoch(self._owners, epoch)
        self._iterator = iter(self._loader)

    def resume(self, epoch: int, position: int, state: Plain) -> bool:  # noqa: ARG002 - the loader has its own position
        """As `Source.resume`."""
        set_epoch(self._owners, epoch)
        streams = global_streams()
        saved = get_all(streams)
        try:
            self._loader.load_state_dict(state["loader"])
            self._iterator = iter(self._loader)
        finally:
            put_all(streams, saved)
        return True

    def take(self) -> Batch:
        """As `Source.take`."""
        return next(self._iterator)

    def used_up(self, position: int) -> int:
        """As `Source.used_up`."""
        return position + 1

    def state(self) -> Plain:
        """As `Source.state`; as plain as the loader's own."""
        return {"loader": self._loader.state_dict()}

    def adopt(self, state: Plain) -> None:
        """As `Source.adopt`: all of it is loaded when the iterator is made."""

    def close(self) -> None:
        """As `Source.close`."""
        self._iterator = iter(())


__all__ = ["Batches", "Source", "source_of"]
