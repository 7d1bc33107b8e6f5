"""Real signals to real processes: the trainer, its forked children, what it executes."""

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

from tests.budget import draw_seed
from tests.waiting import LIMIT_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.process

PAYLOAD = Path(__file__).parent / "payloads" / "signalled.py"
SOAK_SIGNALS = int(os.environ.get("HOLDFAST_SOAK_SIGNALS", "1000"))


class Scene:
    """The payload, in a process group of its own."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, PAYLOAD, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "END_S": str(LIMIT_S)},
            start_new_session=True,
        )

    def hear(self) -> dict[str, Any]:
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line, f"the program ended: {self.process.wait()}"
        facts: dict[str, Any] = json.loads(line)
        return facts

    def tell(self, line: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(line)
        self.process.stdin.flush()

    def signal_group(self, number: int) -> None:
        assert os.getpgid(self.process.pid) == self.process.pid
        os.killpg(self.process.pid, number)

    def close(self) -> None:
        """End the whole group; it is ours as long as its leader was not reaped."""
        if self.process.returncode is None:
            self.signal_group(signal.SIGKILL)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe
            pipe.close()
        self.process.wait()


@pytest.fixture
def play() -> Iterator[Callable[..., Scene]]:
    scenes: list[Scene] = []

    def start(*arguments: str) -> Scene:
        scenes.append(Scene(*arguments))
        return scenes[-1]

    yield start
    for scene in scenes:
        scene.close()


@pytest.mark.requirement("LIB-01")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP])
def test_LIB_01_the_first_signal_sets_the_flag_and_the_program_goes_on(play: Callable[..., Scene], number: int) -> None:
    scene = play("repeated")
    scene.hear()
    scene.process.send_signal(number)
    assert scene.hear() == {"flag": number}
    scene.tell("still here\n")
    assert scene.hear() == {"line": "still here\n"}
    assert scene.process.wait() == 0


@pytest.mark.requirement("LIB-01")
def test_LIB_01_the_second_term_has_its_default_action(play: Callable[..., Scene]) -> None:
    scene = play("second")
    scene.hear()
    scene.process.send_signal(signal.SIGTERM)
    assert scene.hear() == {"flag": signal.SIGTERM}
    assert scene.hear() == {"asked": True}
    scene.process.send_signal(signal.SIGTERM)
    assert scene.process.wait() == -signal.SIGTERM


@pytest.mark.requirement("LIB-01")
def test_LIB_01_the_second_int_is_a_keyboard_interrupt(play: Callable[..., Scene]) -> None:
    scene = play("second")
    scene.hear()
    scene.process.send_signal(signal.SIGINT)
    assert scene.hear() == {"flag": signal.SIGINT}
    assert scene.hear() == {"asked": True}
    scene.process.send_signal(signal.SIGINT)
    assert scene.hear() == {"interrupted": True}


def test_a_warning_by_usr1_does_not_make_the_term_after_it_the_second(play: Callable[..., Scene]) -> None:
    scene = play("second")
    scene.hear()
    scene.process.send_signal(signal.SIGUSR1)
    assert scene.hear() == {"flag": signal.SIGUSR1}
    scene.process.send_signal(signal.SIGTERM)
    assert scene.hear() == {"asked": True}
    scene.process.send_signal(signal.SIGINT)
    assert scene.hear() == {"interrupted": True}


def test_the_copy_that_a_launcher_forwards_is_the_same_request(play: Callable[..., Scene]) -> None:
    scene = play("repeated")
    scene.hear()
    scene.process.send_signal(signal.SIGTERM)
    assert scene.hear() == {"flag": signal.SIGTERM}
    scene.process.send_signal(signal.SIGTERM)
    scene.tell("still here\n")
    assert scene.hear() == {"line": "still here\n"}
    assert scene.process.wait() == 0


def test_a_handler_of_the_script_is_called_after_the_flag_and_given_back(play: Callable[..., Scene]) -> None:
    assert play("chained").hear() == {"order": [signal.SIGTERM, signal.SIGTERM]}


def test_hup_and_int_stay_ignored_where_they_were(play: Callable[..., Scene]) -> None:
    assert play("nohup").hear() == {"flag": 0, "ignored": True}


@pytest.mark.requirement("LIB-01")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_LIB_01_forked_children_work_on_after_a_signal_to_the_whole_group(
    play: Callable[..., Scene], number: int
) -> None:
    scene = play("forked")
    scene.hear()
    scene.signal_group(number)
    assert scene.hear() == {"answered": True, "exitcode": 0}


@pytest.mark.parametrize("group", [True, False], ids=["told", "not-told"])
def test_after_the_run_a_forked_child_dies_when_its_parent_ends_it(play: Callable[..., Scene], group: bool) -> None:
    scene = play("forked", "stop")
    scene.hear()
    (scene.signal_group if group else scene.process.send_signal)(signal.SIGTERM)
    assert scene.hear() == {"answered": True, "exitcode": -signal.SIGTERM}


def test_a_pool_can_be_left(play: Callable[..., Scene]) -> None:
    scene = play("pool")
    assert scene.process.wait(LIMIT_S) == 0
    assert scene.hear() == {"squares": [0, 1, 2, 3]}


def test_a_child_acts_on_a_term_that_came_before_it_had_handlers(play: Callable[..., Scene]) -> None:
    assert play("newborn").hear() == {"exitcode": -signal.SIGTERM}


@pytest.mark.requirement("LIB-01")
def test_LIB_01_a_child_that_is_just_forked_lives_on_when_its_parent_was_told_too(play: Callable[..., Scene]) -> None:
    """It took the TERM for the second one, in three of fifteen trainings that were stopped while they forked."""
    assert play("newborn", "both").hear() == {"exitcode": 0}


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_pool_can_be_left_each_time(play: Callable[..., Scene]) -> None:
    """Three of a hundred waited for a worker that a TERM reached just before it blocked."""
    for _ in range(200):
        assert play("pool").process.wait(LIMIT_S) == 0


@pytest.mark.parametrize("blocked", ["same", "nested"])
def test_a_child_acts_on_a_term_that_came_just_before_it_blocked(play: Callable[..., Scene], blocked: str) -> None:
    """As between Python's last look for signals and the call: a signal to another thread interrupts no call either."""
    scene = play("blocked", blocked)
    assert scene.hear() == {"exitcode": -signal.SIGTERM}


def test_a_child_that_blocks_a_term_and_waits_for_it_has_it(play: Callable[..., Scene]) -> None:
    """Our thread in it takes no signals, and the kernel's table of its descriptors stays small."""
    assert play("awaited").hear() == {"exitcode": signal.SIGTERM, "table": 1024}


def test_programs_that_are_executed_die_of_a_term(play: Callable[..., Scene]) -> None:
    assert play("executed").hear() == {"direct": -signal.SIGTERM, "grandchild": signal.SIGTERM}


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.requirement("LIB-01")
def test_LIB_01_shielded_loader_workers_deliver_after_a_term_to_the_whole_group(play: Callable[..., Scene]) -> None:
    pytest.importorskip("torch")
    scene = play("loader", "shielded")
    scene.hear()
    scene.signal_group(signal.SIGTERM)
    facts = scene.hear()
    assert facts["problem"] == ""
    assert facts["seen"] == 500, "more than was fetched ahead"
    assert scene.process.wait() == 0


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_without_the_shield_a_term_to_the_group_ends_the_loader(play: Callable[..., Scene]) -> None:
    pytest.importorskip("torch")
    scene = play("loader", "bare")
    scene.hear()
    scene.signal_group(signal.SIGTERM)
    assert scene.hear()["problem"] != ""


def bombard(scene: Scene, directory: Path, times: int) -> None:
    """TERM at random instants while files are committed; each that is looked at is whole."""
    seed = draw_seed()
    draw = random.Random(seed)
    path = directory / "step.json"
    scene.hear()
    wait_until(path.exists, what="the first file is committed")
    for _ in range(times):
        # A random instant is what this is about; nothing is waited for.
        time.sleep(draw.random() * 0.004)
        scene.process.send_signal(signal.SIGTERM)
        if path.exists():
            record = json.loads(path.read_bytes())
            assert record["step"] == record["end"], f"seed {seed}"
    scene.tell(".")
    facts = scene.hear()
    assert facts["noted"] > 0
    assert json.loads(path.read_bytes())["step"] == facts["commits"] - 1, f"seed {seed}"
    assert scene.process.wait() == 0
    assert [entry.name for entry in directory.iterdir() if entry.suffix == ".tmp"] == []


@pytest.mark.requirement("LIB-01", "B-17")
def test_LIB_01_terms_at_random_instants_during_commits_corrupt_nothing(
    play: Callable[..., Scene], tmp_path: Path
) -> None:
    bombard(play("commits", str(tmp_path)), tmp_path, 50)


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.requirement("LIB-01", "B-17")
def test_LIB_01_soak_a_thousand_terms_during_commits(play: Callable[..., Scene], tmp_path: Path) -> None:
    bombard(play("commits", str(tmp_path)), tmp_path, SOAK_SIGNALS)
