"""Iterables and functions as sources of batches: to skip is to read again, with the random numbers of then."""

from __future__ import annotations

import itertools
import time
import warnings
from collections.abc import Iterator
from typing import Any

from holdfast.training.randomness.streams import (
    IsolatedRandomness,
    derived_seeds,
    get_all,
    plain_all,
    restore_all,
    streams_inside,
    unplain_all,
)

from .errors import DataChanged, DataEnded, DataUnusable, DataWarning
from .sources import adopt_generators, batches_from, is_sequence, length_of, set_epoch

Batch = Any
Foreign = Any
Plain = dict[str, Any]

_REMEDY = "restore the data as it was, or take run.batches(loader, strict=False) to begin this epoch anew"


class IterableSource:
    """An iterable, or a function from the epoch to one, that can only be gone through from its start.

    It draws from random streams apart from the training's (see `IsolatedRandomness`): what it draws then depends on
    nothing that the training draws in between, and going through it again draws the same. What workers that live on
    from epoch to epoch draw (persistent_workers) is not reached by that.
    """

    kind = "iterable"
    ends_unasked = False

    def __init__(self, iterable: Foreign, name: str) -> None:
        self._iterable, self._name = iterable, name
        self._iterator: Iterator[Batch] = iter(())
        self._ahead: list[Batch] = []
        self._apart = IsolatedRandomness({})
        self._start: Plain = {}
        self._used = False
        # A DataLoader is here because its dataset is an iterable one: that may have an epoch and generators too.
        self._owners = [("loader", iterable), ("dataset", getattr(iterable, "dataset", None))]
        self._streams = streams_inside(self._owners)

    def facts(self) -> Plain:
        """As `BatchSource.facts`."""
        batch_size = getattr(self._iterable, "batch_size", None)
        return {
            "type": type(self._iterable).__name__,
            "batches": self.length(),
            "batch_size": batch_size if isinstance(batch_size, int) else None,
            "generators": sorted(self._streams),
        }

    def length(self) -> int | None:
        """As `BatchSource.length`; an estimate where it is one for torch."""
        return length_of(self._iterable)

    def begin(self, epoch: int) -> None:
        """As `BatchSource.begin`."""
        set_epoch([owner for _, owner in self._owners], epoch)
        self._start = {
            "seeds": derived_seeds(f"{self._name}/{epoch}"),
            "generators": plain_all(self._streams, get_all(self._streams)),
        }
        self._open(epoch, 0)

    def _open(self, epoch: int, position: int) -> int:
        """Go through the first `position` batches; answers how many there were."""
        self._apart, self._ahead = IsolatedRandomness(self._start["seeds"]), []
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
                f"{self._name} is a {type(self._iterable).__name__}, which is gone through once, and it was",
                "give a function from the epoch to such an iterator, a list, or a DataLoader",
            )
        self._used = True

    def resume(self, epoch: int, position: int, state: Plain) -> bool:
        """As `BatchSource.resume`; warns when batches had to be read to be skipped."""
        set_epoch([owner for _, owner in self._owners], epoch)
        self._start = {"seeds": state["seeds"], "generators": state["started"]}
        saved = get_all(self._streams)
        restore_all(self._streams, unplain_all(self._streams, self._start["generators"]))
        began = time.monotonic()
        try:
            passed = self._open(epoch, position)
        finally:
            restore_all(self._streams, saved)
        with self._apart:
            self._ahead = list(itertools.islice(self._iterator, 1))
        if passed < position:
            raise DataChanged(f"{self._name} ended after {passed} batches; {position} were given before", _REMEDY)
        seconds = time.monotonic() - began
        if position and not is_sequence(self._iterable):
            warnings.warn(
                f"{self._name}: {position} batches of epoch {epoch} were read again in {seconds:.1f} s to go on after "
                "them; a loader with state_dict() (torchdata's StatefulDataLoader) or a map-style dataset needs none",
                DataWarning,
                stacklevel=5,
            )
        return bool(self._ahead)

    def take(self) -> Batch:
        """As `BatchSource.take`."""
        if self._ahead:
            return self._ahead.pop()
        with self._apart:
            return next(self._iterator)

    def position_after_failure(self, position: int) -> int:
        """As `BatchSource`: what an iterator does after an error is its own affair; the batch counts."""
        return position + 1

    def state(self) -> Plain:
        """As `BatchSource.state`."""
        return {
            "seeds": self._start.get("seeds", {}),
            "started": self._start.get("generators", {}),
            "generators": plain_all(self._streams, get_all(self._streams)),
        }

    def adopt(self, state: Plain) -> None:
        """As `BatchSource.adopt`."""
        if state and not (isinstance(state.get("seeds"), dict) and isinstance(state.get("started"), dict)):
            raise DataUnusable(f"the state of {self._name} has no seeds", "use another checkpoint")
        adopt_generators(self._streams, state, self._name)

    def close(self) -> None:
        """As `BatchSource.close`."""
        self._iterator, self._ahead = iter(()), []
