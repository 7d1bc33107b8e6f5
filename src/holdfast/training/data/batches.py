"""Batches of a loader, epoch after epoch, that go on in the middle of an epoch: none twice, none left out (B-54).

`follow(loader)` takes a torch ``DataLoader``, a loader with a state of its own (torchdata's ``StatefulDataLoader``), a
list or an array of batches, any iterable, or a function from the epoch's number to one. What counts as done is what was
given to the loop, not what workers fetched ahead. Making an iterator on resume leaves the training's random numbers as
they are.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from .choose import source_of
from .errors import DataChanged, DataEnded, DataUnusable, DataWarning
from .sources import BatchSource

Batch = Any
Plain = dict[str, Any]

FORMAT = 1
END = object()  # what `_take` answers when an epoch is over: None may be a batch

RESTART_REMEDY = (
    "restore what it was, or take run.batches(loader, strict=False): the epoch that was interrupted then begins anew, "
    "so that nothing is left out, and some samples come twice"
)


def follow(loader: object, *, name: str = "data", seed_samples: bool = True, strict: bool = True) -> Batches:
    """Follow a loader so that the run continues with the batch after the last one given.

    Args:
        loader: A torch DataLoader; anything with state_dict() and load_state_dict() and an iterator; a sequence of
            batches (list, array, tensor); a `BatchSampler`; an iterable; or a callable ``fn(epoch) -> iterable``.
        name: For messages.
        seed_samples: With the worker processes of a DataLoader over a map-style dataset: before each batch, the
            worker's random numbers (python, numpy, torch) are seeded from the epoch and the batch's number. Random
            augmentation then does not depend on what a worker did before, nor on how many there are, and a resumed
            epoch is the interrupted one bit for bit. A generator that the dataset keeps to itself is not reached.
        strict: Whether a loader that changed since the checkpoint is an error; else a warning, and the interrupted
            epoch begins anew.

    Raises:
        DataUnusable: There is no way to go through `loader`.
    """
    if isinstance(loader, Batches):
        return loader
    return Batches(source_of(loader, name, seed_samples=seed_samples), name, strict=strict)


class Batches:
    """An endless iterator over the batches of a loader; made by `follow`."""

    def __init__(self, source: BatchSource, name: str, *, strict: bool = True) -> None:
        self._source = source
        self._name = name
        self._strict = strict
        self._epoch = 0
        self._position = 0
        self._open = False  # an iterator of this epoch is there
        self._finished = False  # this epoch was gone through to its end
        self._pending: Plain | None = None  # a loaded state: an iterator is made from it when the next batch is wanted

    @property
    def epoch(self) -> int:
        """The epoch of the batch given last, from 0."""
        return self._epoch

    @property
    def position(self) -> int:
        """How many batches of this epoch were given."""
        return self._position

    @property
    def length(self) -> int | None:
        """Batches in an epoch as far as the loader knows it."""
        return self._source.length()

    @property
    def untouched(self) -> bool:
        """Whether no batch was given out since it was made or restored."""
        return not self._open and (self._pending is not None or self._position == 0)

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        batch = self._take()
        while batch is END:
            batch = self._take()
        return batch

    def rest_of_epoch(self) -> Iterator[Batch]:
        """The batches that are left of this epoch; all of the next one when this one is complete."""
        batch = self._take()
        if batch is END:
            batch = self._take()  # the end of an epoch whose batches were all given before
        while batch is not END:
            yield batch
            if self._source.ends_unasked and self._is_complete():
                return
            batch = self._take()

    def begin_or_continue(self) -> Iterator[Batch]:
        """The batches of a new epoch, or of the one that a checkpoint left: for a script that loops over the loader."""
        if self._pending is None and self._open:
            self._source.close()
            self._open, self._finished = False, True
        yield from self.rest_of_epoch()

    def epochs(self, count: int) -> Iterator[int]:
        """The numbers of the epochs that are still to be gone through, up to `count` - 1, also after a resume.

        For ``for epoch in batches.epochs(10): for batch in batches.rest_of_epoch(): ...``; an epoch whose loop was
        left early comes again, with what is left of it.

        Raises:
            DataEnded: The body took no batch, so that it would be called for ever.
        """
        while True:
            self._settle()
            coming = self._epoch + 1 if self._is_complete() else self._epoch
            if coming >= count:
                return
            before = (self._epoch, self._position)
            yield coming
            if (self._epoch, self._position) == before:
                raise DataEnded(f"{self._name}: no batch of epoch {coming} was taken", "use rest_of_epoch() or next()")

    def close(self) -> None:
        """End worker processes, and be ready to go on later from the same position."""
        if self._open:
            self._pending = self.state_dict()
        self._open = False
        self._source.close()

    def state_dict(self) -> Plain:
        """The position as numbers, strings, lists and dicts, and what else makes the rest of the epoch the same."""
        if self._pending is not None:
            return dict(self._pending)
        return {
            "format": FORMAT,
            "kind": self._source.kind,
            "epoch": self._epoch,
            "position": self._position,
            "begun": self._open,
            "finished": self._finished,
            "facts": self._source.facts(),
            "source": self._source.state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state; the iterator is made when the next batch is wanted.

        Raises:
            DataChanged: The loader is another one; the message names what changed.
            DataUnusable: It is not a state of ours.
        """
        loaded = _checked(state, self._name)
        changes = self._changes(loaded)
        if changes:
            what = f"{self._name} is not what it was at the checkpoint: {'; '.join(changes)}"
            if self._strict:
                raise DataChanged(what, RESTART_REMEDY)
            self._begin_anew(what)
            loaded = {**loaded, "begun": False, "finished": False, "position": 0, "source": {}}
        self._source.close()
        self._open, self._finished = False, loaded["finished"]
        self._epoch, self._position = loaded["epoch"], loaded["position"]
        self._pending = loaded
        self._source.adopt(loaded["source"])

    def _changes(self, state: Plain) -> list[str]:
        if state["kind"] != self._source.kind:
            return [f"it was {state['kind']}, it is {self._source.kind}"]
        was, now = state["facts"], self._source.facts()
        return [
            f"{key} was {was.get(key)!r}, is {now.get(key)!r}"
            for key in {**was, **now}
            if was.get(key) is not None and was.get(key) != now.get(key)
        ]

    def _begin_anew(self, what: str) -> None:
        warnings.warn(f"{what}; the interrupted epoch begins anew", DataWarning, stacklevel=3)

    def _is_complete(self) -> bool:
        length = self.length
        return self._finished or (length is not None and self._position >= length > 0)

    def _take(self) -> Batch:
        """The next batch; END at the end of an epoch. The call after that begins the next epoch."""
        self._settle()
        if not self._open:
            self._begin()
        try:
            batch = self._source.take()
        except StopIteration:
            self._open, self._finished = False, True
            if self._position == 0:
                message = f"{self._name} gave no batch in epoch {self._epoch}"
                raise DataEnded(message, "is it empty, or drop_last with too few samples?") from None
            return END
        except Exception:
            # A batch that could not be fetched was used up all the same: a script that catches this goes on after it.
            self._position = self._source.position_after_failure(self._position)
            raise
        self._position += 1
        return batch

    def _begin(self) -> None:
        epoch = self._epoch + 1 if self._finished else self._epoch
        self._source.begin(epoch)
        self._epoch, self._position = epoch, 0
        self._open, self._finished = True, False

    def _settle(self) -> None:
        """Make the iterator that a loaded state asks for."""
        if self._pending is None:
            return
        state = self._pending
        if state["begun"] and not state["finished"]:
            try:
                self._open = self._source.resume(self._epoch, self._position, state["source"])
                self._finished = not self._open
            except DataChanged as changed:
                if self._strict:
                    raise
                self._begin_anew(changed.message)
                self._position = 0
        self._pending = None


def _checked(state: object, name: str) -> Plain:
    """A state of ours, or an error that says what is wrong with it."""
    remedy = "the checkpoint is damaged or not of this loader: use another one, or remove the data's state"
    if not isinstance(state, dict):
        raise DataUnusable(f"the state of {name} is a {type(state).__name__}", remedy)
    version = state.get("format")
    if isinstance(version, int) and version > FORMAT:
        raise DataUnusable(
            f"the state of {name} has format {version}, this version of holdfast knows {FORMAT}", "update"
        )
    kinds = {"format": int, "kind": str, "epoch": int, "position": int, "begun": bool, "finished": bool}
    for key, kind in {**kinds, "facts": dict, "source": dict}.items():
        if type(state.get(key)) is not kind:
            raise DataUnusable(f"the state of {name} has {key}={state.get(key)!r:.40}, not {kind.__name__}", remedy)
    if state["epoch"] < 0 or state["position"] < 0:
        raise DataUnusable(f"the state of {name} is at {state['epoch']}, {state['position']}, before its start", remedy)
    return dict(state)
