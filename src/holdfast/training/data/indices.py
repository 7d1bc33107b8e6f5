"""The indices of an epoch of a torch DataLoader: drawn, drawn again on resume, and on their way to the workers."""

from __future__ import annotations

import hashlib
import random
import sys
import zlib
from array import array
from collections import deque
from typing import TYPE_CHECKING, Any

from holdfast.training.randomness.streams import IsolatedRandomness, derive_seed, get_all, plain_all, restore_all

from .errors import DataChanged

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .loaders import LoaderSource

    Index = Any
    Plain = dict[str, Any]
    State = Any

ORDER_REMEDY = (
    "something that decides on the order is not restored: give the sampler its own generator, set_epoch(), or a seed; "
    "with run.batches(loader, strict=False) the interrupted epoch begins anew"
)


class Indices:
    """The indices of one epoch, as the loader's iterator asks for them.

    The first one is drawn as the sampler always does. Later ones of samplers that we do not know are drawn
    `IsolatedRandomness`: many draw as they go (a few classes for each batch, say), and what the training draws in
    between must not matter.
    """

    def __init__(self, owner: LoaderSource, epoch: int) -> None:
        self._owner = owner
        self._label = f"{owner.name}/{epoch}"
        self._draws: Iterator[Index] | None = None
        self._apart: IsolatedRandomness | None = None
        self._seed = b""
        self._buffer: deque[Index] = deque()
        self._sums: deque[int] = deque()  # the checksum after each index that was drawn and not given
        self._sum = 0  # after the one drawn last
        self._sent = 0
        self.given_sum = 0  # after the one given last
        self.order: Plain | None = None  # the random states that the order was made from
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
            restore_all(self._owner.streams(), self.before)
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
                self._draws = self._start()
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
            self._apart = IsolatedRandomness.derived(self._label)
        self.drawn += 1
        self._sum = zlib.crc32(_bytes_of(index), self._sum)
        self._sums.append(self._sum)
        self._buffer.append(index)

    def _start(self) -> Iterator[Index]:
        streams = self._owner.order_streams()
        self.order = plain_all(streams, get_all(streams))
        self._seed = derive_seed(self._label, [self.order, self._owner.rank()]).to_bytes(8, "little")
        return iter(self._owner.sampler)

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


def _bytes_of(index: Index) -> bytes:
    """What the checksum is over: whole numbers in a list are the common case, and repr() is ten times slower."""
    if type(index) is list:
        try:
            return array("q", index).tobytes()
        except (TypeError, OverflowError):
            pass
    return repr(index).encode()


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
        return seed_for_index, (self._index, self._seed, self._number)


def seed_for_index(index: Index, seed: bytes, number: int) -> Index:
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
