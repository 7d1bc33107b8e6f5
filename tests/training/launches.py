"""Four ranks of a small training as real processes, with torchrun or without, and their end from outside."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.leaks import find_processes
from tests.ports import find_free_port
from tests.waiting import LONG_S, wait_until

PAYLOAD = Path(__file__).parent / "payloads" / "ranks.py"
ROOT = Path(__file__).resolve().parents[2]
START_S = LONG_S
"""At most so long until ranks have imported torch and met, on a box that is busy with other things."""


class Launch:
    """Some ranks in one directory; `options` are the payload's."""

    def __init__(
        self, directory: Path, world: int = 4, *, torchrun: bool = False, restarts: int = 0, **options: Any
    ) -> None:
        directory.mkdir(exist_ok=True)
        self.directory, self.world, self.torchrun = directory, world, torchrun
        for done in directory.glob("done-*.json"):
            done.unlink()
        self.before = {rank: self.steps(rank)[-1:] for rank in range(world)}
        self._told = {rank: len(self._lines(rank)) for rank in range(world)}
        self.log = directory / f"launch-{len(list(directory.glob('launch-*')))}.txt"
        arguments = [str(PAYLOAD), str(directory), json.dumps({"total": 40, **options})]
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
        with self.log.open("wb") as log:
            self.processes = [
                subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env={**environment, **more},
                    start_new_session=True,
                )
                for command, more in self._commands(arguments, restarts)
            ]

    def _commands(self, arguments: list[str], restarts: int) -> list[tuple[list[str], dict[str, str]]]:
        if self.torchrun:
            options = ["--standalone", f"--nproc-per-node={self.world}", f"--max-restarts={restarts}"]
            return [([sys.executable, "-m", "torch.distributed.run", *options, *arguments], {})]
        shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(find_free_port()), "LOCAL_WORLD_SIZE": str(self.world)}
        places = [{"RANK": str(rank), "WORLD_SIZE": str(self.world), **shared} for rank in range(self.world)]
        return [([sys.executable, *arguments], place) for place in places]

    @property
    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def _lines(self, rank: int) -> list[str]:
        try:
            return (self.directory / f"steps-{rank}.txt").read_text().splitlines()
        except FileNotFoundError:
            return []

    def steps(self, rank: int) -> list[int]:
        """The steps that a rank completed, over all launches in this directory."""
        return [int(line) for line in self._lines(rank) if line.isdigit()]

    def here(self, rank: int) -> list[int]:
        """The steps that a rank completed in this launch."""
        return [int(line) for line in self._lines(rank)[self._told[rank] :] if line.isdigit()]

    def wait_for_step(self, step: int, rank: int = 0) -> None:
        def reached() -> bool:
            return (self.here(rank) or [0])[-1] >= step or self.ended

        wait_until(reached, START_S, what=f"rank {rank} completes step {step}")

    @property
    def ended(self) -> bool:
        return all(process.poll() is not None for process in self.processes)

    def wait(self) -> list[int]:
        """The exit codes of what was started: one of torchrun, or one of each rank."""
        return [process.wait(START_S) for process in self.processes]

    def rank_processes(self) -> list[int]:
        """The ranks by their process ids, in order."""
        if not self.torchrun:
            return [process.pid for process in self.processes]
        ranks = {}
        for pid, command in find_processes(str(self.directory.parent)).items():
            if str(PAYLOAD) in command and "torch.distributed.run" not in command:
                words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                rank = next((word[5:] for word in words if word.startswith(b"RANK=")), None)
                if rank is not None:
                    ranks[int(rank)] = pid
        return [ranks[rank] for rank in sorted(ranks)]

    def kill_everything(self) -> None:
        """SIGKILL to all that was started from here: launcher, ranks and the writers of their checkpoints."""
        mark = str(self.directory.parent)
        while found := find_processes(mark):
            for pid in found:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            self.wait()
        self.wait()

    def results(self) -> list[dict[str, Any]]:
        """What each rank ended with: digests of its numbers and of the rows that it was given."""
        assert self.wait() == [0] * len(self.processes), self.text
        return [json.loads((self.directory / f"done-{rank}.json").read_text()) for rank in range(self.world)]
