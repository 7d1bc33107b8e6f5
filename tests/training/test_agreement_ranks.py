"""Ranks as real processes: one of them is signalled, and all stop at the same step."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.training.ranks import files as agreement_files
from tests.budget import draw_seed
from tests.ports import find_free_port
from tests.waiting import LIMIT_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

PAYLOAD = Path(__file__).parent / "payloads" / "rank.py"
SOAK_ROUNDS = int(os.environ.get("HOLDFAST_SOAK_ROUNDS", "300"))


class Launch:
    """Some ranks, each a process that plays one round per line of JSON; rounds are drawn from `draw`."""

    def __init__(self, directory: Path, world: int, **environ: str) -> None:
        self.directory, self.world = directory, world
        self.rounds = 0
        self.seed = draw_seed()
        self.draw = random.Random(self.seed)
        self.ranks = [
            subprocess.Popen(
                [sys.executable, "-u", PAYLOAD],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(world), **environ},
            )
            for rank in range(world)
        ]

    def begin(self, *, odd: dict[int, dict[str, Any]] | None = None, **options: Any) -> None:
        """Start a round on all ranks; `odd` has more options for some of them."""
        self.rounds += 1
        for rank, process in enumerate(self.ranks):
            plan = {
                "rank": rank,
                "world": self.world,
                "directory": str(self.directory),
                "key": f"round{self.rounds}",
                "limit_s": LIMIT_S,
                **options,
                **(odd or {}).get(rank, {}),
            }
            assert process.stdin
            process.stdin.write(json.dumps(plan) + "\n")
            process.stdin.flush()

    def hear(self, rank: int, name: str) -> dict[str, Any]:
        """The next line of a rank that has the fact `name`; a process that ended is an error."""
        stdout = self.ranks[rank].stdout
        assert stdout
        for line in stdout:
            facts: dict[str, Any] = json.loads(line)
            if name in facts:
                return facts
        raise AssertionError(f"rank {rank} ended without {name!r}: {self.ranks[rank].wait()}; seed {self.seed}")

    def hear_all(self, name: str) -> list[dict[str, Any]]:
        return [self.hear(rank, name) for rank in range(self.world)]

    def stop(self) -> None:
        for process in self.ranks:
            assert process.stdin
            process.stdin.close()
        for process in self.ranks:
            try:
                process.wait(LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            assert process.stdout
            process.stdout.close()


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[..., Launch]]:
    launches: list[Launch] = []

    def start(world: int = 4, **environ: str) -> Launch:
        launches.append(Launch(tmp_path, world, **environ))
        return launches[-1]

    yield start
    for one in launches:
        one.stop()


@pytest.fixture
def gloo(launch: Callable[..., Launch], tmp_path: Path) -> Callable[[int], Launch]:
    """Ranks that are in a gloo group, found through torch's own TCP store."""
    pytest.importorskip("torch")

    def start(world: int) -> Launch:
        one = launch(world, GLOO="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(find_free_port()), OMP_NUM_THREADS="1")
        one.hear_all("ready")
        return one

    return start


def pause(seconds: float) -> None:
    """A random instant is what these rounds are about; nothing is waited for."""
    time.sleep(seconds)


def play(one: Launch, **options: Any) -> list[dict[str, Any]]:
    """One round that ends by a TERM to one random rank at a random instant."""
    draw = one.draw
    one.begin(seed=draw.randrange(2**32), **options)
    one.hear_all("running")
    pause(draw.random() * 0.03)
    one.ranks[draw.randrange(one.world)].send_signal(signal.SIGTERM)
    return one.hear_all("done")


def judge(results: list[dict[str, Any]]) -> None:
    """All ranks made the same decisions, each exactly at its step, and stopped together."""
    assert sum(result["flag"] != 0 for result in results) == 1, results
    for result in results:
        assert result["late"] == [], results
        assert result["acted"] == results[0]["acted"], results
        assert result["done"] == results[0]["done"], results
        assert result["token"] == results[0]["token"], results
        assert result["ends"] == [result["done"]] * len(results), results
    sequences = [sequence for sequence, _, _ in results[0]["acted"]]
    assert sequences == list(range(1, len(sequences) + 1))


@pytest.mark.requirement("LIB-05", "B-51")
@pytest.mark.parametrize(
    "step_s", [pytest.param(0.0, id="no-pause"), pytest.param(0.003, id="uneven", marks=pytest.mark.slow)]
)
def test_LIB_05_one_signalled_rank_stops_all_four_at_the_same_step(
    launch: Callable[..., Launch], step_s: float
) -> None:
    four = launch()
    for _ in range(10):
        judge(play(four, step_s=step_s))


@pytest.mark.requirement("LIB-05")
def test_LIB_05_saves_and_the_stop_come_in_one_order_on_all_ranks(launch: Callable[..., Launch]) -> None:
    four, decisions = launch(), 0
    for step_s, chance in ((0.002, 0.2), (0.0, 0.5)) * 4:
        results = play(four, step_s=step_s, save_chance=chance)
        judge(results)
        decisions += len(results[0]["acted"])
    assert decisions > 8, "no save was decided in eight rounds"


@pytest.mark.slow
@pytest.mark.requirement("LIB-05", "B-51", "MN-06")
def test_LIB_05_ranks_in_a_collective_at_every_step_stop_together_through_a_board_or_a_store(
    gloo: Callable[[int], Launch],
) -> None:
    four = gloo(4)
    for store in (False, True, False, True):
        judge(play(four, collective=True, store=store, step_s=0.002, save_chance=0.05))
    judge(play(four, store=True, step_s=0.004))


@pytest.mark.requirement("LIB-05")
def test_LIB_05_a_decider_that_is_killed_in_the_middle_holds_up_nobody(launch: Callable[..., Launch]) -> None:
    four = launch()
    living = [0, 2, 3]
    four.begin(step_s=0.002, odd={1: {"die_deciding": True}}, extra={"living": living})
    four.hear_all("running")
    four.ranks[1].send_signal(signal.SIGTERM)
    wait_until(lambda: has_ended(four.ranks[1]), what="rank 1 dies while it decides")
    four.ranks[3].send_signal(signal.SIGTERM)
    results = [four.hear(rank, "done") for rank in living]
    assert {result["done"] for result in results} == {results[0]["done"]}
    assert [result["acted"] for result in results] == [[[1, results[0]["done"], 2]]] * 3
    assert four.ranks[1].wait() == -signal.SIGKILL


def read_token(path: Path) -> str:
    board = agreement_files.attach_board(str(path))
    assert board is not None
    token = board.token
    board.close()
    return token


def has_ended(process: subprocess.Popen[str]) -> bool:
    """Whether a child has ended; it stays a zombie, as it does under a launcher that is busy."""
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


@pytest.mark.requirement("LIB-05")
def test_LIB_05_the_board_of_a_killed_launch_is_not_joined_by_the_next_one(
    launch: Callable[..., Launch], tmp_path: Path
) -> None:
    first = launch(2)
    first.begin(step_s=0.001, key="same")
    first.hear_all("running")
    for process in first.ranks:
        process.kill()
    for process in first.ranks:
        process.wait()
    left = [path.name for path in tmp_path.glob(".ranks-same-*")]
    assert left == [".ranks-same-1"]
    old = read_token(tmp_path / left[0])
    second = launch(2)
    second.begin(step_s=0.001, key="same")
    second.hear_all("running")
    assert read_token(tmp_path / left[0]) != old
    second.ranks[1].send_signal(signal.SIGTERM)
    judge(second.hear_all("done"))
    second.stop()
    assert list(tmp_path.glob(".ranks-*")) == []


@pytest.mark.requirement("LIB-05")
def test_LIB_05_a_rank_that_finished_holds_up_nobody(launch: Callable[..., Launch]) -> None:
    two = launch(2)
    two.begin(step_s=0.001, extra={"living": []}, odd={0: {"total": 6}})
    two.hear_all("running")
    assert two.hear(0, "done")["acted"] == []
    two.ranks[1].send_signal(signal.SIGTERM)
    stopped = two.hear(1, "done")
    assert [action for _, _, action in stopped["acted"]] == [2]


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.requirement("LIB-05", "B-51")
def test_LIB_05_soak_many_rounds_with_and_without_collectives(
    launch: Callable[..., Launch], gloo: Callable[[int], Launch]
) -> None:
    four, together = launch(), gloo(4)
    draw = four.draw
    for _ in range(SOAK_ROUNDS):
        judge(play(four, step_s=draw.choice((0.0, 0.001, 0.005)), save_chance=draw.choice((0.0, 0.1, 0.5))))
        store = draw.random() < 0.3
        judge(play(together, collective=True, store=store, step_s=draw.choice((0.0, 0.002)), save_chance=0.1))
