"""Batches of sequences, iterables and functions go on where the loop stopped, and say so when they cannot."""

from __future__ import annotations

import copy
import json
import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.training.data.batches import Batches, follow
from holdfast.training.data.errors import DataChanged, DataEnded, DataUnusable, DataWarning
from holdfast.training.data.sampling import BatchSampler
from tests.each import each

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.files

LENGTH = 6


class Stream:
    """An iterable that draws as it goes, from the global stream and from one of its own."""

    def __init__(self) -> None:
        self.rng = random.Random(3)

    def __iter__(self) -> Iterator[tuple[int, float, float]]:
        order = self.rng.sample(range(LENGTH), LENGTH)
        for number in order:
            yield number, random.random(), self.rng.random()


class Items:
    """Length and items only, with randomness in the items."""

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, number: int) -> tuple[int, float]:
        return number, random.random()


class Stateful:
    """What a StatefulDataLoader promises: its own state, and random draws whenever an iterator is made."""

    def __init__(self) -> None:
        self.position = 0

    def __len__(self) -> int:
        return LENGTH

    def __iter__(self) -> Iterator[int]:
        random.random()
        return self._rest()

    def _rest(self) -> Iterator[int]:
        while self.position < LENGTH:
            self.position += 1
            yield self.position
        self.position = 0

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]


def shuffled(epoch: int) -> Iterator[tuple[int, int]]:
    order = list(range(LENGTH))
    random.shuffle(order)
    return ((epoch, number) for number in order)


LOADERS: dict[str, Callable[[], Any]] = {
    "list": lambda: [f"batch {number}" for number in range(LENGTH)],
    "range": lambda: range(LENGTH),
    "items": Items,
    "sampler": lambda: BatchSampler(17, 3),
    "stream": Stream,
    "function": lambda: shuffled,
    "function to lists": lambda: lambda epoch: list(shuffled(epoch)),
    "stateful": Stateful,
}


def go_through(make: Callable[[], Any], steps: int, cut: int | None = None) -> list[Any]:
    """What a loop sees: epoch, position, batch, and a random number of the loop itself."""
    random.seed(1)
    batches, seen = follow(make()), []
    for step in range(steps):
        if step == cut:
            state = json.loads(json.dumps(batches.state_dict()))
            stream = random.getstate()
            batches.close()
            random.seed(77)  # what a fresh process has drawn by now
            batches = follow(make())
            batches.load_state_dict(state)
            random.setstate(stream)
        batch = next(batches)
        seen.append((batches.epoch, batches.position, batch, random.random()))
    batches.close()
    return seen


@pytest.mark.filterwarnings("ignore::holdfast.training.data.errors.DataWarning")
@pytest.mark.requirement("CKPT-02", "B-54")
@each("name", LOADERS)
def test_interrupted_is_uninterrupted_at_every_position(name: str) -> None:
    steps = 3 * LENGTH
    whole = go_through(LOADERS[name], steps)
    assert {cut: go_through(LOADERS[name], steps, cut) == whole for cut in range(steps)} == dict.fromkeys(
        range(steps), True
    )


@each("name", LOADERS)
def test_epochs_are_complete_and_counted(name: str) -> None:
    seen = go_through(LOADERS[name], 3 * LENGTH)
    assert [(epoch, position) for epoch, position, *_ in seen] == [
        (epoch, position + 1) for epoch in range(3) for position in range(LENGTH)
    ]


def test_what_an_iterable_draws_does_not_depend_on_the_loop() -> None:
    random.seed(1)
    alone = [batch for batch, _ in zip(follow(Stream()), range(9), strict=False)]
    random.seed(1)
    busy = []
    for batch, _ in zip(follow(Stream()), range(9), strict=False):
        busy.append(batch)
        random.random()
    assert busy[:LENGTH] == alone[:LENGTH]
    assert busy[0] != busy[LENGTH]


def test_reading_again_says_what_it_cost() -> None:
    batches = follow(Stream(), name="corpus")
    for _ in range(4):
        next(batches)
    again = follow(Stream(), name="corpus")
    again.load_state_dict(batches.state_dict())
    with pytest.warns(DataWarning, match=r"corpus: 4 batches of epoch 0 were read again in \d"):
        next(again)


def test_sequences_are_skipped_without_reading() -> None:
    read = []

    class Counting(Items):
        def __getitem__(self, number: int) -> tuple[int, float]:
            read.append(number)
            return super().__getitem__(number)

    batches = follow(Counting())
    for _ in range(4):
        next(batches)
    state = batches.state_dict()
    read.clear()
    again = follow(Counting())
    again.load_state_dict(state)
    next(again)
    assert read == [4]


def test_the_rest_of_an_epoch_ends_with_it() -> None:
    batches = follow(list(range(LENGTH)))
    assert [next(batches), next(batches)] == [0, 1]
    assert list(batches.rest_of_epoch()) == [2, 3, 4, 5]
    assert (batches.epoch, batches.position) == (0, LENGTH)
    assert list(batches.rest_of_epoch()) == [0, 1, 2, 3, 4, 5]
    assert (batches.epoch, batches.position) == (1, LENGTH)


@pytest.mark.filterwarnings("ignore::holdfast.training.data.errors.DataWarning")
@each("name", LOADERS)
@each("cut", [0, 1, LENGTH - 1, LENGTH, LENGTH + 1, 3 * LENGTH])
def test_a_count_of_epochs_is_kept_over_a_resume(name: str, cut: int) -> None:
    batches = follow(LOADERS[name]())
    for _ in range(cut):
        next(batches)
    state = json.loads(json.dumps(batches.state_dict()))
    again = follow(LOADERS[name]())
    again.load_state_dict(state)
    numbers = Counter(epoch for epoch in again.epochs(3) for _ in again.rest_of_epoch())
    expected = Counter(step // LENGTH for step in range(cut, 3 * LENGTH))
    assert numbers == expected


def test_epochs_that_take_nothing_are_refused() -> None:
    batches = follow([1, 2])
    with pytest.raises(DataEnded, match="no batch of epoch 0 was taken"):
        list(batches.epochs(2))


def test_an_epoch_that_is_left_early_comes_again_with_its_rest() -> None:
    batches = follow([1, 2, 3])
    seen = []
    for epoch in batches.epochs(2):
        for batch in batches.rest_of_epoch():
            seen.append((epoch, batch))
            if batch == 2:
                break
    assert seen == [(0, 1), (0, 2), (0, 3), (1, 1), (1, 2), (1, 3)]


def test_a_state_that_was_loaded_is_given_again_before_the_first_batch() -> None:
    batches = follow(Stream())
    next(batches)
    state = batches.state_dict()
    again = follow(Stream())
    again.load_state_dict(state)
    assert again.state_dict() == state


def test_going_back_in_one_process_is_exact() -> None:
    batches = follow(BatchSampler(20, 3))
    for _ in range(4):
        next(batches)
    state = batches.state_dict()
    expected = [next(batches) for _ in range(10)]
    batches.load_state_dict(state)
    assert [next(batches) for _ in range(10)] == expected


def test_after_close_it_goes_on() -> None:
    batches = follow(BatchSampler(20, 3))
    expected = [next(follow(BatchSampler(20, 3)))]
    whole = follow(BatchSampler(20, 3))
    expected = [next(whole) for _ in range(10)]
    seen = [next(batches) for _ in range(4)]
    batches.close()
    assert seen + [next(batches) for _ in range(6)] == expected


def test_a_batch_that_raises_is_passed_once() -> None:
    class Broken(Items):
        def __getitem__(self, number: int) -> tuple[int, float]:
            if number == 2:
                raise OSError("unreadable")
            return super().__getitem__(number)

    batches = follow(Broken())
    assert [next(batches)[0], next(batches)[0]] == [0, 1]
    with pytest.raises(OSError, match="unreadable"):
        next(batches)
    again = follow(Broken())
    again.load_state_dict(batches.state_dict())
    assert next(batches)[0] == 3
    assert next(again)[0] == 3


def test_an_iterator_cannot_begin_a_second_epoch() -> None:
    batches = follow(iter([1, 2, 3]), name="lines")
    assert [next(batches) for _ in range(3)] == [1, 2, 3]
    with pytest.raises(DataEnded, match=r"lines is a list_iterator.*once.*function"):
        next(batches)


def test_an_epoch_without_batches_is_an_error_and_no_endless_loop() -> None:
    with pytest.raises(DataEnded, match="no batch in epoch 0"):
        next(follow([]))


@pytest.mark.parametrize("wrong", [5, None, "text", b"bytes", {"a": 1}, object()])
def test_what_has_no_batches_is_refused(wrong: object) -> None:
    with pytest.raises(DataUnusable, match=f"is a {type(wrong).__name__}"):
        follow(wrong)


def test_batches_are_followed_already() -> None:
    batches = follow([1])
    assert follow(batches) is batches
    assert isinstance(batches, Batches)


@pytest.mark.parametrize(
    ("then", "now", "named"),
    [
        ([1, 2, 3], [1, 2, 3, 4], "batches was 3, is 4"),
        (BatchSampler(20, 2), BatchSampler(20, 4), "batch_size was 2, is 4"),
        (BatchSampler(20, 2), BatchSampler(24, 2), "length was 20, is 24"),
        (BatchSampler(20, 3), BatchSampler(20, 3, drop_last=True), "drop_last was False, is True"),
        (BatchSampler(20, 2, seed=1), BatchSampler(20, 2, seed=2), "seed was 1, is 2"),
        ([1, 2, 3], Stream(), "it was sequence, it is iterable"),
    ],
)
def test_a_changed_loader_is_named(then: Any, now: Any, named: str) -> None:
    batches = follow(then)
    next(batches)
    with pytest.raises(DataChanged, match=f"data is not what it was.*{named}.*strict=False"):
        follow(now).load_state_dict(batches.state_dict())


def test_not_strict_begins_the_epoch_anew() -> None:
    batches = follow([1, 2, 3])
    for _ in range(5):
        next(batches)
    again = follow([1, 2, 3, 4], strict=False)
    with pytest.warns(DataWarning, match="batches was 3, is 4"):
        again.load_state_dict(batches.state_dict())
    assert [next(again), again.epoch, again.position] == [1, 1, 1]


def test_an_iterable_that_became_shorter_is_noticed() -> None:
    long, short = follow(lambda _: iter(range(5))), follow(lambda _: iter(range(2)))
    for _ in range(4):
        next(long)
    short.load_state_dict(long.state_dict())
    with pytest.raises(DataChanged, match="ended after 2 batches; 4 were given before"):
        next(short)


BAD = [
    ("format", 2, "format 2"),
    ("format", "1", "format"),
    ("epoch", -1, "before its start"),
    ("position", 1.5, "position=1.5"),
    ("begun", 1, "begun"),
    ("facts", None, "facts"),
    ("source", [], "source"),
]


@pytest.mark.parametrize(("key", "value", "named"), BAD)
def test_a_damaged_state_is_refused(key: str, value: Any, named: str) -> None:
    batches = follow(Stream())
    next(batches)
    state = copy.deepcopy(batches.state_dict())
    state[key] = value
    with pytest.raises(DataUnusable, match=named):
        follow(Stream()).load_state_dict(state)
    with pytest.raises(DataUnusable, match="is a list"):
        follow(Stream()).load_state_dict([])  # type: ignore[arg-type]  # the mistake under test


@pytest.mark.parametrize("source", [{"seeds": 1}, {"seeds": {}, "started": {}, "generators": {"loader.rng": 5}}])
def test_a_damaged_state_of_an_iterable_is_refused(source: dict[str, Any]) -> None:
    batches = follow(Stream())
    next(batches)
    with pytest.raises(DataUnusable, match="state of data"):
        follow(Stream()).load_state_dict({**batches.state_dict(), "source": source})


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
def test_the_batch_sampler_gives_every_index_once(shuffle: bool, drop_last: bool) -> None:
    sampler = BatchSampler(23, 4, shuffle=shuffle, seed=2, drop_last=drop_last)
    epochs = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        batches = list(sampler)
        assert len(batches) == len(sampler) == (5 if drop_last else 6)
        assert {len(batch) for batch in batches[:5]} == {4}
        epochs.append([index for batch in batches for index in batch])
    for order in epochs:
        assert set(order) <= set(range(23))
        assert len(order) == len(set(order)) == (20 if drop_last else 23)
    assert (epochs[0] != epochs[1]) is shuffle


def test_the_order_of_the_batch_sampler_is_for_good() -> None:
    # An order that changed with a version would repeat and leave out samples of runs that were interrupted before it.
    assert list(BatchSampler(8, 3, seed=5)) == GOLDEN


GOLDEN = [[0, 3, 1], [7, 6, 2], [4, 5]]


@pytest.mark.parametrize(("length", "size", "drop_last"), [(0, 1, False), (3, 4, True), (3, 0, False)])
def test_a_sampler_without_batches_is_refused(length: int, size: int, drop_last: bool) -> None:
    with pytest.raises(ValueError, match="there is no batch"):
        BatchSampler(length, size, drop_last=drop_last)
