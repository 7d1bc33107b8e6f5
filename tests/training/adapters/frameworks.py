"""Trainings in real frameworks as processes: run whole, or ended at given steps and started again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.waiting import LIMIT_S

PAYLOADS = Path(__file__).parent / "payloads"
ROOT = Path(__file__).resolve().parents[3]


class Training:
    """One process of a payload; its standard output is read line by line."""

    def __init__(self, payload: str, directory: Path, options: dict[str, Any]) -> None:
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        self.errors = directory.parent / f"{directory.name}-errors.txt"
        with self.errors.open("ab") as errors:
            self.process = subprocess.Popen(
                [sys.executable, str(PAYLOADS / f"{payload}.py"), str(directory), json.dumps(options)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environment,
            )
        self.lines: list[str] = []

    def run(self, end_at: int | None = None, how: int = signal.SIGTERM) -> int:
        """Read to the end and answer the exit code; a signal is sent when a step was complete."""
        assert self.process.stdout
        with self.process.stdout as lines:
            for line in lines:
                self.lines.append(line.rstrip())
                if self.lines[-1] == f"step {end_at}":
                    self.process.send_signal(how)
        return self.process.wait(LIMIT_S)

    @property
    def steps(self) -> list[int]:
        return [int(line.split()[1]) for line in self.lines if line.startswith("step ")]

    @property
    def done(self) -> dict[str, Any]:
        found = [line[5:] for line in self.lines if line.startswith("done ")]
        assert found, self.errors.read_text(errors="replace")[-5000:]
        return dict(json.loads(found[0]))


def check_exact(payload: str, tmp_path: Path, options: dict[str, Any], stops: list[tuple[int, int]]) -> Training:
    """A run that is ended at `stops` (step, signal) ends with the numbers of one that is not; answers its last part.

    Each TERM is answered with 143 and one checkpoint of the step at which the training left.
    """
    whole = Training(payload, tmp_path / "whole", options)
    assert whole.run() == 0, whole.errors.read_text(errors="replace")[-5000:]
    after_term: int | None = None
    for step, how in stops:
        cut = Training(payload, tmp_path / "cut", {**options, "halt": step})
        code = cut.run(step, how)
        words = cut.errors.read_text(errors="replace")[-5000:]
        assert code == (143 if how == signal.SIGTERM else -how), words
        if how == signal.SIGTERM:
            assert cut.steps[-1] == step
            record = tmp_path / "cut" / f"step-{step}" / "checkpoint.json"
            assert json.loads(record.read_text())["reason"] == "stop (signal)"
            assert not [line for line in cut.lines if line.startswith(("done", "after fit"))], cut.lines
        if after_term is not None:
            # Nothing is repeated after an orderly stop.
            assert cut.steps[0] == after_term + 1, cut.steps
        after_term = cut.steps[-1] if how == signal.SIGTERM else None
    last = Training(payload, tmp_path / "cut", options)
    assert last.run() == 0, last.errors.read_text(errors="replace")[-5000:]
    assert last.done == whole.done
    assert last.steps[-1] == whole.steps[-1]
    assert "is not tracked" not in last.errors.read_text(errors="replace")
    return last
