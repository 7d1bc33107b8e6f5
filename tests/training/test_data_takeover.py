"""A tracked DataLoader in a script's own loop: it counts, it resumes, and it is what it was otherwise."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import training

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.contract, pytest.mark.requirement("CKPT-02", "B-54")]


class Counting(torch.utils.data.IterableDataset):  # type: ignore[misc,name-defined,unused-ignore]
    def __iter__(self) -> Iterator[int]:
        return iter(range(10))


def endless(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def make(kind: str) -> Any:
    if kind == "iterable":
        return torch.utils.data.DataLoader(Counting(), batch_size=3)
    return torch.utils.data.DataLoader(range(10), batch_size=3, shuffle=True)


def train(directory: Path, steps: int, kind: str) -> list[list[int]]:
    """The batches that were seen; with `steps` more of them when there is a checkpoint."""
    loader = make(kind)
    seen = []
    with training.run(directory, seed=5) as run, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # an iterable is read forward, and says so
        run.track(data=loader)
        batches = endless(loader)
        for _ in run.steps(steps):
            seen.append(next(batches).tolist())
            assert torch.rand(1).item() >= 0  # the training draws numbers, too
    return seen


@pytest.mark.parametrize("kind", ["shuffled", "iterable"])
@pytest.mark.parametrize("cut", [1, 6, *(pytest.param(cut, marks=pytest.mark.slow) for cut in (4, 8))])
def test_a_loop_over_the_loader_itself_continues_in_the_middle(tmp_path: Path, kind: str, cut: int) -> None:
    whole = train(tmp_path / "whole", 11, kind)
    assert len({tuple(batch) for batch in whole[:4]}) == 4
    assert sorted(at for batch in whole[:4] for at in batch) == list(range(10))
    assert train(tmp_path / "cut", cut, kind) + train(tmp_path / "cut", 11, kind) == whole


def test_a_look_before_the_loop_takes_nothing_away(tmp_path: Path) -> None:
    loader = torch.utils.data.DataLoader(range(4), batch_size=2)
    with training.run(tmp_path) as run:
        run.track(data=loader)
        assert next(iter(loader)).tolist() == [0, 1]
        batches = endless(loader)
        assert [next(batches).tolist() for _ in run.steps(3)] == [[0, 1], [2, 3], [0, 1]]


def test_an_epoch_that_is_left_early_is_not_gone_on_with(tmp_path: Path) -> None:
    loader = torch.utils.data.DataLoader(range(4), batch_size=1)
    seen = []
    with training.run(tmp_path) as run:
        run.track(data=loader)
        for _ in run.steps(3):
            for count, batch in enumerate(loader):
                seen.append(batch.item())
                if count == 1:
                    break
    assert seen == [0, 1, 0, 1, 0, 1]


def test_the_loader_is_still_a_loader_of_its_class(tmp_path: Path) -> None:
    loader = make("shuffled")
    with training.run(tmp_path) as run:
        run.track(data=loader)
        assert isinstance(loader, torch.utils.data.DataLoader)
        assert type(loader).__name__ == "DataLoader"
        assert len(loader) == 4
