"""A DataLoader with worker processes goes on at any batch, augmentation in the workers included."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("numpy")

from torch.utils import data  # noqa: E402 - only where there is torch

from holdfast.training.data.batches import follow  # noqa: E402
from tests.training.loaders import SAMPLES, Augmented, LazySampler, Streamed, indices_of, loader, run_loop  # noqa: E402
from tests.waiting import LIMIT_S  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = [
    pytest.mark.process,
    # Workers are forked from a process in which torch has threads; torch does so by default.
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]

STEPS = 14  # two epochs of six batches and the beginning of a third
LOADERS: dict[str, Callable[[], Any]] = {
    "shuffled": lambda: loader(shuffle=True, num_workers=2),
    "persistent": lambda: loader(shuffle=True, num_workers=2, persistent_workers=True, prefetch_factor=4),
    "persistent, own generator": lambda: loader(
        shuffle=True, generator=True, num_workers=1, persistent_workers=True, drop_last=True
    ),
    "no batches": lambda: loader(shuffle=True, batch_size=None, num_workers=2),
    "lazy": lambda: loader(sampler=LazySampler(), num_workers=2),
}


@pytest.mark.requirement("CKPT-02", "B-54")
@pytest.mark.parametrize("name", LOADERS)
def test_interrupted_is_uninterrupted_with_workers(name: str) -> None:
    per_epoch = SAMPLES if name == "no batches" else len(LOADERS[name]())
    steps = per_epoch + 3
    whole = run_loop(LOADERS[name], steps)
    cuts = [1, per_epoch] if name in ("no batches", "lazy") else [1, per_epoch - 1, per_epoch, per_epoch + 1]
    assert [cut for cut in cuts if run_loop(LOADERS[name], steps, [cut]) != whole] == []
    assert sorted(indices_of(whole, 0)) == sorted(set(indices_of(whole, 0)))


def test_another_number_of_workers_changes_nothing() -> None:
    def make(workers: int) -> Callable[[], Any]:
        return lambda: loader(shuffle=True, generator=True, num_workers=workers, prefetch_factor=3)

    whole = run_loop(make(2), 9)
    assert run_loop(make(1), 9) == whole
    assert run_loop(make(2), 9, [2, 7], resume=make(1)) == whole


def test_workers_can_come_and_go() -> None:
    """Without workers the augmentation draws in the loop's process; the samples are the same."""

    def make(workers: int) -> Callable[[], Any]:
        return lambda: loader(
            sampler=data.RandomSampler(range(SAMPLES), generator=torch.Generator()), num_workers=workers
        )

    whole = run_loop(make(0), 9)
    mixed = run_loop(make(0), 9, [2], resume=make(1))
    assert [indices_of(mixed, epoch) for epoch in (0, 1)] == [indices_of(whole, epoch) for epoch in (0, 1)]


def test_the_seeding_of_samples_can_be_left_to_torch() -> None:
    def first(*, seed_samples: bool) -> list[Any]:
        torch.manual_seed(4)
        batches = follow(loader(num_workers=1), seed_samples=seed_samples)
        seen = next(batches).tolist()
        batches.close()
        return list(seen)

    torch.manual_seed(4)
    plain = next(iter(loader(num_workers=1))).tolist()
    assert first(seed_samples=False) == plain
    assert first(seed_samples=True) != plain


@pytest.mark.filterwarnings("ignore::holdfast.training.data.errors.DataWarning")
def test_an_iterable_dataset_with_workers_goes_on() -> None:
    def make() -> data.DataLoader[Any]:
        return data.DataLoader(Streamed(), batch_size=4, num_workers=2)

    whole = run_loop(make, 9)
    assert [cut for cut in (3, 8) if run_loop(make, 9, [cut]) != whole] == []


def test_closing_ends_the_workers_though_a_traceback_holds_the_iterator() -> None:
    batches = follow(loader(num_workers=2))
    next(batches)
    held = batches._source._iterator  # type: ignore[attr-defined] # as the frames of a traceback do
    assert held is not None
    before = multiprocessing.active_children()
    batches.close()
    assert len(before) == 2
    assert [child.pid for child in before if child.is_alive()] == []


def test_a_batch_that_raises_in_a_worker_is_passed_once() -> None:
    class Broken(Augmented):
        def __getitem__(self, index: int) -> Any:
            if index == 9:
                raise OSError("unreadable")
            return super().__getitem__(index)

    def make() -> data.DataLoader[Any]:
        return data.DataLoader(Broken(), batch_size=4, num_workers=2)

    batches = follow(make())
    next(batches), next(batches)
    with pytest.raises(OSError, match="unreadable"):
        next(batches)
    state = batches.state_dict()
    assert state["position"] == 3
    following = next(batches)[:, 0].tolist()
    batches.close()
    again = follow(make())
    again.load_state_dict(state)
    assert next(again)[:, 0].tolist() == following == [12.0, 13.0, 14.0, 15.0]
    again.close()


SPAWNED = """
import random, sys, torch
from torch.utils.data import DataLoader
from holdfast.training.data.batches import follow

class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 12
    def __getitem__(self, index):
        return torch.tensor([float(index), random.random()])

if __name__ == "__main__":
    seen = []
    for method, cut in (("fork", None), ("spawn", 2)):
        torch.manual_seed(1)
        def make():
            return follow(DataLoader(Samples(), 4, shuffle=True, num_workers=1, multiprocessing_context=method))
        batches, rows = make(), []
        for step in range(3):
            if step == cut:
                state = batches.state_dict()
                batches.close()
                batches = make()
                batches.load_state_dict(state)
            rows.append(next(batches).tolist())
        batches.close()
        seen.append(rows)
    assert seen[0] == seen[1], seen
"""


@pytest.mark.slow
def test_spawned_workers_are_seeded_too(tmp_path: Path) -> None:
    script = tmp_path / "spawned.py"
    script.write_text(SPAWNED)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_nothing_is_loaded_by_the_library_itself() -> None:
    program = (
        "import sys; from holdfast.training.randomness import rng;"
        "from holdfast.training.data.batches import follow; from holdfast.training.data.sampling import BatchSampler;"
        "batches = follow(BatchSampler(9, 2)); next(batches); rng.seed_everything(1); state = rng.capture_states();"
        "assert rng.restore_states(state) == []; again = follow(BatchSampler(9, 2));"
        "again.load_state_dict(batches.state_dict()); next(again);"
        "assert not {'torch', 'numpy'} & set(sys.modules), sys.modules.keys()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert (done.returncode, done.stderr) == (0, "")
