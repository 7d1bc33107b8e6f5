"""A whole training, ended from outside in every way: the same command continues it to the same numbers."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast import training
from tests.waiting import LIMIT_S, wait_until

pytestmark = pytest.mark.process

PAYLOAD = Path(__file__).parent / "payloads" / "loop.py"
ROOT = Path(__file__).resolve().parents[2]


class Trainer:
    """One process of the payload, with its output in a file."""

    def __init__(self, directory: Path, *arguments: str, **environment: str) -> None:
        self.log = directory.parent / f"{directory.name}.{len(list(directory.parent.iterdir()))}.log"
        values = {**os.environ, "PYTHONPATH": str(ROOT / "src"), **environment}
        with self.log.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, str(PAYLOAD), str(directory), *arguments],
                stdout=file,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=values,
                start_new_session=True,
            )

    @property
    def text(self) -> str:
        return self.log.read_text(errors="replace")

    @property
    def steps(self) -> list[str]:
        return [line for line in self.text.splitlines() if line.startswith("step ")]

    def wait(self) -> int:
        return self.process.wait(LIMIT_S)

    def wait_for(self, words: str) -> None:
        wait_until(lambda: words in self.text or self.process.poll() is not None, what=words)
        assert words in self.text, self.text

    def wait_for_steps(self, count: int) -> None:
        wait_until(lambda: len(self.steps) >= count or self.process.poll() is not None, what=f"{count} steps")

    def end(self, number: int, *, group: bool = False) -> int:
        (os.killpg if group else os.kill)(self.process.pid, number)
        return self.wait()

    @property
    def digest(self) -> str:
        return next(line.split()[1] for line in self.text.splitlines() if line.startswith("done "))


def run_whole(directory: Path, *arguments: str, **environment: str) -> Trainer:
    trainer = Trainer(directory, *arguments, **environment)
    assert trainer.wait() == 0, trainer.text
    return trainer


@pytest.mark.requirement("CKPT-02", "CKPT-03", "LIB-04")
@pytest.mark.parametrize("variant", [(), ("--plain",), ("--own-loop",)], ids=["numpy", "plain", "own-loop"])
def test_killed_again_and_again_it_ends_with_the_same_numbers_and_the_same_batches(
    tmp_path: Path, variant: tuple[str, ...]
) -> None:
    whole = run_whole(tmp_path / "whole", "40", *variant)
    draw = random.Random(5)
    lines: list[str] = []
    for _ in range(4):
        trainer = Trainer(tmp_path / "cut", "40", "--pause", "0.01", *variant)
        trainer.wait_for_steps(draw.randint(3, 9))
        trainer.end(signal.SIGKILL, group=True)
        lines += trainer.steps
    last = run_whole(tmp_path / "cut", "40", *variant)
    assert last.digest == whole.digest
    # A step that was trained twice had the same batch both times, and none is missing.
    assert set(lines + last.steps) == set(whole.steps)
    assert len(set(whole.steps)) == 40


@pytest.mark.requirement("LIB-01", "LIB-02", "POST-09", "LIB-18", "B-50")
@pytest.mark.parametrize(
    "number",
    [signal.SIGTERM, *(pytest.param(number, marks=pytest.mark.slow) for number in (signal.SIGINT, signal.SIGUSR1))],
)
@pytest.mark.parametrize("variant", [(), ("--own-loop",), ("--swallow",)], ids=["steps", "own-loop", "swallow"])
def test_asked_to_stop_it_saves_leaves_with_143_and_says_why(
    tmp_path: Path, number: signal.Signals, variant: tuple[str, ...]
) -> None:
    attempt = tmp_path / "attempt"
    attempt.mkdir()
    whole = run_whole(tmp_path / "whole", "30", *variant)
    trainer = Trainer(
        tmp_path / "cut", "30", "--pause", "0.02", *variant, HOLDFAST_HEARTBEAT=str(attempt / "heartbeat.json")
    )
    trainer.wait_for("step 6 ")
    assert trainer.end(number) == 143, trainer.text
    record = json.loads((attempt / "stop.json").read_text())
    assert (record["why"], record["detail"], record["saved"]) == ("signal", number.name, True)
    assert record["step"] == record["checkpoint_step"] >= 7
    assert json.loads((attempt / "heartbeat.json").read_text())["phase"] == "stopped"
    assert "told signal" in trainer.text
    assert "done" not in trainer.text.splitlines()
    last = run_whole(tmp_path / "cut", "30", *variant)
    assert last.digest == whole.digest
    assert len(last.steps) == 30 - record["step"]


@pytest.mark.requirement("LIB-12")
def test_an_exception_saves_nothing_and_is_on_record(tmp_path: Path) -> None:
    attempt = tmp_path / "attempt"
    attempt.mkdir()
    trainer = Trainer(tmp_path / "cut", "30", "--crash-at", "7", HOLDFAST_HEARTBEAT=str(attempt / "heartbeat.json"))
    assert trainer.wait() == 1
    record = json.loads((attempt / "stop.json").read_text())
    assert (record["why"], record["checkpoint_step"], record["saved"]) == ("exception", 5, False)
    assert "a bug in the script" in record["traceback"]
    newest = training.latest(tmp_path / "cut")
    assert newest is not None
    assert newest.endswith("step-5")


@pytest.mark.requirement("LIB-03")
def test_before_a_deadline_it_saves_and_leaves_by_itself(tmp_path: Path) -> None:
    attempt = tmp_path / "attempt"
    attempt.mkdir()
    trainer = Trainer(
        tmp_path / "cut",
        "100000",
        "--pause",
        "0.01",
        "--time-limit",
        "3",
        HOLDFAST_HEARTBEAT=str(attempt / "heartbeat.json"),
    )
    assert trainer.wait() == 143, trainer.text
    record = json.loads((attempt / "stop.json").read_text())
    assert (record["why"], record["saved"]) == ("deadline", True)


@pytest.mark.requirement("SPOT-01")
def test_a_grace_that_is_too_short_for_a_save_leaves_the_last_one_out_and_says_so(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path / "cut", "100000", "--pause", "0.01", HOLDFAST_GRACE="0")
    trainer.wait_for("saved step 5 ")
    assert trainer.end(signal.SIGTERM) == 143
    assert "the last save is left out" in trainer.text
    assert training.latest(tmp_path / "cut") is not None


@pytest.mark.slow
@pytest.mark.requirement("LIB-17", "LIB-16")
@pytest.mark.parametrize("reason", ["operator", "memory"])
def test_asked_for_a_checkpoint_it_saves_and_goes_on(tmp_path: Path, reason: str) -> None:
    request = tmp_path / "checkpoint_request.json"
    trainer = Trainer(
        *(tmp_path / "cut", "100000", "--pause", "0.01", "--every", "1000000"), HOLDFAST_CHECKPOINT_REQUEST=str(request)
    )
    trainer.wait_for("step 3 ")
    assert training.latest(tmp_path / "cut") is None
    request.write_text(json.dumps({"schema": 1, "reason": reason}))
    wait_until(lambda: not request.exists(), what="the request is taken")
    newest = wait_until(lambda: training.latest(tmp_path / "cut") or "", what="a checkpoint")
    assert json.loads(Path(newest, "checkpoint.json").read_text())["reason"] == reason
    before = len(trainer.steps)
    wait_until(lambda: len(trainer.steps) > before, what="it goes on")
    assert trainer.end(signal.SIGTERM) == 143


def test_a_second_run_in_the_same_directory_is_refused_and_told_who_holds_it(tmp_path: Path) -> None:
    first = Trainer(tmp_path / "cut", "100000", "--pause", "0.01")
    first.wait_for("step 1 ")
    second = Trainer(tmp_path / "cut", "30")
    assert second.wait() == 1
    assert f"is written by another run (process {first.process.pid} on" in second.text
    assert first.end(signal.SIGTERM) == 143


IMPORT = """
import gc, json, os, random, signal, sys, threading, warnings
def look():
    return {
        "handlers": [str(signal.getsignal(n)) for n in signal.valid_signals()],
        "threads": threading.active_count(),
        "environment": dict(os.environ),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "children": open(f"/proc/self/task/{os.getpid()}/children").read(),
        "random": hash(random.getstate()),
        "cwd": [os.getcwd(), *os.listdir()],
        "hooks": [str(hook) for hook in (sys.excepthook, sys.stdout, threading.excepthook)],
        "collector": [gc.isenabled(), gc.get_threshold(), len(warnings.filters)],
    }
before = look()
import holdfast.training
for name in holdfast.training.__all__:
    getattr(holdfast.training, name)
after = look()
print(json.dumps({name: [before[name], after[name]] for name in before if before[name] != after[name]}))
"""


@pytest.mark.requirement("LIB-11")
def test_LIB_11_importing_it_changes_nothing_of_the_process(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-S", "-c", IMPORT],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONDONTWRITEBYTECODE": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == {}


@pytest.mark.requirement("LIB-11")
def test_it_works_without_any_third_party_package(tmp_path: Path) -> None:
    code = "import sys, runpy; sys.argv[:1] = []; runpy.run_path(sys.argv[0], run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code, str(PAYLOAD), str(tmp_path / "cut"), "12", "--plain"],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "cut" / "step-12" / "checkpoint.json").exists()


UNGUARDED = """
import multiprocessing, os, sys
from holdfast import training

with training.run(sys.argv[1], every=None) as run:
    for step in run.steps(2):
        print("step", step, os.getpid(), flush=True)
worker = multiprocessing.get_context("spawn").Process(target=print, args=("never",))
worker.start()
worker.join()
sys.exit(0 if worker.exitcode == 1 else 3)
"""


@pytest.mark.gotcha("U44")
def test_a_spawned_worker_that_imports_the_script_again_trains_nothing_and_says_what_to_do(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(UNGUARDED)
    command = [sys.executable, str(script), str(tmp_path / "checkpoints")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
    assert [line.split()[1] for line in done.stdout.splitlines()] == ["0", "1"], "the worker trained, too"
    assert 'put what trains under: if __name__ == "__main__":' in done.stderr
