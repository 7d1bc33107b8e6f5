"""A campaign behind ``make soak``: SIGKILL at a random instant of a save, and the newest committed step is continued.

``HOLDFAST_SOAK_SAVES`` sets how many kills (1000), ``HOLDFAST_SOAK_SEED`` repeats a campaign. The state is 20 MB, each
number of which is the step, so that a mix of two saves shows.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from tests.training.faults import support
from tests.training.faults.driving import Trainer, is_gone
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.process, pytest.mark.soak, pytest.mark.timeout(3600)]

KILLS = int(os.environ.get("HOLDFAST_SOAK_SAVES", "1000"))
SEED = int(os.environ.get("HOLDFAST_SOAK_SEED", str(int.from_bytes(os.urandom(4), "big"))))
NUMBERS = 1_700_000
LANES = 3
"""Trainers at a time: on two cores some kills then come while a save waits for its turn."""


def pause(seconds: float) -> None:
    """A random instant is what this campaign is about; nothing is waited for."""
    time.sleep(seconds)


def descendants(pid: int) -> list[int]:
    """The process and its children: trainer and writer."""
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
        return [pid, *map(int, file.read().split())]


class Lane:
    """One directory, one life after the other; each resume judges the kill before it."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.directory, self.draw = directory, random.Random(seed)
        self.expected = 0
        self.wrong: list[str] = []
        self.figures: Counter[str] = Counter()

    def live(self, number: int) -> None:
        trainer = Trainer(self.directory, numbers=NUMBERS, mode="loop")
        try:
            self.judge(number, trainer.hear("resumed", 60.0))
            trainer.hear("saving", 60.0)
            pause(self.draw.uniform(0.0, 0.35))
            if self.draw.random() < 0.7:
                # On a busy box few instants lie in a save; these do, somewhere between its first file and its last.
                with contextlib.suppress(AssertionError):
                    wait_until(lambda: support.leftovers(self.directory))
                pause(self.draw.uniform(0.0, 0.03))
            self.kill(number, trainer, self.draw.choice(("tree", "tree", "tree", "trainer", "writer")))
        finally:
            trainer.close()

    def judge(self, number: int, answer: dict[str, Any]) -> None:
        if answer["resumed"] != self.expected or answer["whose"] != [self.expected]:
            self.wrong.append(f"life {number}: expected {self.expected}, got {answer}")

    def kill(self, number: int, trainer: Trainer, who: str) -> None:
        family = descendants(trainer.process.pid)
        if who == "writer" and len(family) > 1:
            self.kill_writer(number, trainer, family[1])
            family = descendants(trainer.process.pid)
        if who == "trainer":
            trainer.process.kill()
        else:
            # The writer is in the same session and group, as in a container or a job that is killed as a whole.
            os.killpg(trainer.process.pid, signal.SIGKILL)
        trainer.process.wait()
        for pid in family[1:]:
            wait_until(lambda pid=pid: is_gone(pid), what="the writer is gone")  # type: ignore[misc]
        self.figures[who] += 1
        self.figures["in the middle of a save"] += bool(support.leftovers(self.directory))
        seen = support.steps(self.directory)
        self.expected = max(seen, default=0)
        announced = self.announced(trainer)
        if self.expected < announced:
            self.wrong.append(f"life {number}: step {announced} was said to be durable; there are {seen}")

    def announced(self, trainer: Trainer) -> int:
        """The newest step that the trainer said to be durable, in what is left of its words."""
        import json

        trainer._read()
        lines = [json.loads(line) for line in trainer.words.split(b"\n")[:-1]]
        return max((line["durable"] or 0 for line in lines if "durable" in line), default=0)

    def kill_writer(self, number: int, trainer: Trainer, pid: int) -> None:
        """The trainer goes on: another writer makes a later step durable."""
        os.kill(pid, signal.SIGKILL)
        before = max(support.steps(self.directory), default=0)

        def went_on() -> bool:
            return max(support.steps(self.directory), default=0) > before + 1

        try:
            wait_until(went_on)
        except AssertionError:
            self.wrong.append(f"life {number}: no step after {before} became durable once the writer was killed")


@pytest.mark.requirement("CKPT-04", "CKPT-05", "CKPT-17")
def test_whatever_is_killed_at_a_random_instant_the_newest_committed_step_is_continued(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lanes = [Lane(tmp_path / f"lane-{at}", SEED + at) for at in range(LANES)]
    began = time.monotonic()

    def drive(lane: Lane) -> None:
        for number in range(KILLS // LANES + 1):
            lane.live(number)
        last = Trainer(lane.directory, numbers=NUMBERS)
        try:
            lane.judge(KILLS, last.resumed())
            last.quit()
        finally:
            last.close()

    with ThreadPoolExecutor(LANES) as pool:
        list(pool.map(drive, lanes))
    figures = sum((lane.figures for lane in lanes), Counter())
    kills = figures["tree"] + figures["trainer"] + figures["writer"]
    wrong = [line for lane in lanes for line in lane.wrong]
    steps = sum(lane.expected for lane in lanes)
    with capsys.disabled():
        print(
            f"\n{kills} kills ({dict(figures)}) of {NUMBERS * 12 / 1e6:.0f} MB states, {steps} steps made durable, "
            f"{time.monotonic() - began:.0f} s, seed {SEED}: {kills - len(wrong)} of {kills} right"
        )
    assert not wrong, f"seed {SEED}: {len(wrong)} of {kills}:\n" + "\n".join(wrong)
    assert figures["in the middle of a save"] > kills // 10, "too few kills met a save"
