"""Several ranks, ended from outside in every way: they leave together, and continue to the same numbers bit for bit."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.budget import draw_seed
from tests.training.launches import Launch

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("torch")
pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

KILLS = int(os.environ.get("HOLDFAST_SOAK_KILLS", "50"))
WHOLE: dict[tuple[int, str], list[dict[str, Any]]] = {}
"""What an uninterrupted run of so many ranks in that mode ends with; made once."""


def whole(tmp_path: Path, world: int = 4, mode: str = "ddp") -> list[dict[str, Any]]:
    if (world, mode) not in WHOLE:
        WHOLE[world, mode] = Launch(tmp_path / "whole", world, mode=mode).results()
    return WHOLE[world, mode]


def pause(seconds: float) -> None:
    """A random instant in the middle of a step is what is wanted; nothing is waited for."""
    time.sleep(seconds)


def left_together(launch: Launch) -> int:
    """The step after which all ranks left."""
    last = {launch.steps(rank)[-1] for rank in range(launch.world)}
    assert len(last) == 1, {rank: launch.steps(rank)[-3:] for rank in range(launch.world)}
    return last.pop()


@pytest.mark.slow
@pytest.mark.requirement("CKPT-13", "CKPT-02", "CKPT-03")
@pytest.mark.parametrize("mode", ["ddp", pytest.param("alone", marks=pytest.mark.soak)])
def test_ranks_killed_in_the_middle_of_epochs_end_with_the_same_numbers(tmp_path: Path, mode: str) -> None:
    seed = draw_seed()
    draw = random.Random(seed)
    for _ in range(2):
        launch = Launch(tmp_path / "cut", mode=mode)
        launch.wait_for_step((launch.before[0] or [0])[-1] + draw.randrange(6, 12), draw.randrange(4))
        pause(draw.random() * 0.05)
        launch.kill_everything()
    last = Launch(tmp_path / "cut", mode=mode)
    assert last.results() == whole(tmp_path, mode=mode), f"seed {seed}"


@pytest.mark.slow
@pytest.mark.requirement("LIB-05", "B-51", "POST-09")
@pytest.mark.parametrize("mode", [pytest.param("ddp", marks=pytest.mark.soak), "alone"])
def test_a_term_to_one_rank_makes_all_leave_at_the_same_step_with_143(tmp_path: Path, mode: str) -> None:
    launch = Launch(tmp_path / "cut", mode=mode)
    launch.wait_for_step(9, rank=2)
    launch.processes[2].send_signal(signal.SIGTERM)
    assert launch.wait() == [143] * 4, launch.text
    step = left_together(launch)
    record = json.loads((tmp_path / "cut" / "checkpoints" / f"step-{step}" / "checkpoint.json").read_text())
    assert (record["step"], record["world"], record["reason"]) == (step, 4, "stop (signal)")
    again = Launch(tmp_path / "cut", mode=mode)
    assert again.results() == whole(tmp_path, mode=mode)
    assert f"resuming after step {step}" in again.text


@pytest.mark.slow
@pytest.mark.requirement("LIB-05", "POST-09")
@pytest.mark.parametrize(
    "whom", ["one rank", *(pytest.param(whom, marks=pytest.mark.soak) for whom in ("torchrun", "everybody"))]
)
def test_under_torchrun_all_ranks_leave_at_the_same_step_and_continue_by_the_same_command(
    tmp_path: Path, whom: str
) -> None:
    launch = Launch(tmp_path / "cut", torchrun=True)
    launch.wait_for_step(9, rank=2)
    ranks = launch.rank_processes()
    assert len(ranks) == 4
    if whom != "one rank":
        launch.processes[0].send_signal(signal.SIGTERM)
    for pid in {"one rank": ranks[2:3], "torchrun": [], "everybody": ranks}[whom]:
        os.kill(pid, signal.SIGTERM)
    # torchrun has one code for everything that is not 0; what its ranks said stands in its output, and in stop.json.
    assert launch.wait() == [1], launch.text
    step = left_together(launch)
    assert f"stopped at step {step} (signal: SIGTERM)" in launch.text
    assert f"step-{step}" in [path.name for path in (tmp_path / "cut" / "checkpoints").iterdir()]
    if whom == "one rank":
        assert re.search(r"exitcode\s*: 143", launch.text), launch.text
    again = Launch(tmp_path / "cut", torchrun=True)
    assert again.results() == whole(tmp_path)


@pytest.mark.soak
@pytest.mark.requirement("LIB-05", "MN-05")
def test_torchrun_with_restarts_goes_on_by_itself_after_a_term_to_one_rank(tmp_path: Path) -> None:
    # Without a process group: gloo of torch 2.13 does not come up again in a restarted launch, with or without us.
    launch = Launch(tmp_path / "cut", torchrun=True, restarts=1, mode="alone")
    launch.wait_for_step(9, rank=1)
    os.kill(launch.rank_processes()[1], signal.SIGTERM)
    assert launch.results() == whole(tmp_path, mode="alone"), launch.text
    assert "resuming after step" in launch.text


@pytest.mark.slow
@pytest.mark.requirement("CKPT-13")
def test_CKPT_13_a_checkpoint_without_the_file_of_one_rank_is_not_used_at_all(tmp_path: Path) -> None:
    cut = tmp_path / "cut"
    first = Launch(cut, total=20)
    assert first.wait() == [0] * 4, first.text
    older, newest = (cut / "checkpoints").glob("step-*"), cut / "checkpoints" / "step-20"
    before = max(int(path.name[5:]) for path in older if path != newest)
    assert sorted(path.name for path in newest.glob("rank-*")) == ["rank-1", "rank-2", "rank-3"]
    shutil.rmtree(newest / "rank-2")
    second = Launch(cut)
    assert second.results() == whole(tmp_path)
    assert f"resuming after step {before} " in second.text
    assert "rank-2" in second.text
    assert (cut / "checkpoints" / "step-20.bad-1").is_dir()


@pytest.mark.requirement("CKPT-13")
def test_CKPT_13_another_number_of_ranks_is_refused_by_the_names_of_what_each_had_for_itself(tmp_path: Path) -> None:
    first = Launch(tmp_path / "cut", 2, total=8)
    assert first.wait() == [0, 0], first.text
    second = Launch(tmp_path / "cut", 3)
    assert second.wait() == [1, 1, 1]
    assert "made by 2 ranks, this run has 3, and data, mine was saved by each rank for itself" in second.text
    assert [path.name for path in (tmp_path / "cut" / "checkpoints").glob("*.bad-*")] == []


@pytest.mark.soak
@pytest.mark.requirement("CKPT-13")
def test_CKPT_13_another_number_of_ranks_continues_what_is_the_same_on_all_of_them(tmp_path: Path) -> None:
    first = Launch(tmp_path / "cut", 2, total=8, no_data=True, replicated=True)
    assert first.wait() == [0, 0], first.text
    second = Launch(tmp_path / "cut", 3, total=12, no_data=True, replicated=True)
    assert second.wait() == [0, 0, 0], second.text
    assert "resuming after step 8" in second.text
    assert second.here(2) == [9, 10, 11, 12]


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("world", [1, 4])
@pytest.mark.requirement("CKPT-13", "CKPT-02", "CKPT-03")
def test_soak_fifty_kills_in_the_middle_of_epochs(tmp_path: Path, world: int) -> None:
    seed = draw_seed()
    draw = random.Random(seed)
    expected = whole(tmp_path, world)
    kills = resumed = runs = 0
    while kills < KILLS:
        runs += 1
        cut = tmp_path / f"cut-{runs}"
        while kills < KILLS:
            launch = Launch(cut, world)
            launch.wait_for_step((launch.before[0] or [0])[-1] + draw.randrange(1, 10), draw.randrange(world))
            if launch.ended:
                break
            pause(draw.random() * 0.1)
            launch.kill_everything()
            kills += 1
            resumed += "resuming after step" in launch.text
        last = Launch(cut, world)
        assert last.results() == expected, f"seed {seed}, run {runs}: {cut}"
        shutil.rmtree(cut)
    print(f"{world} ranks: {kills} kills in {runs} runs, {resumed} resumed in between; seed {seed}", file=sys.stderr)
