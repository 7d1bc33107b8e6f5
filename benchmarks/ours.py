"""holdfast as a queue among the peers, and where its records say what was measured."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from typing import TYPE_CHECKING, Any

from benchmarks.measuring import CannotMeasure, must, wait_until
from benchmarks.peers import Place, Queue

if TYPE_CHECKING:
    from collections.abc import Sequence

HOLDFAST = os.path.join(os.path.dirname(sys.executable), "holdfast")
SHARED_MEMORY = "/dev/shm"  # noqa: S108 - mkdtemp makes a private directory in it


class Holdfast(Queue):
    """holdfast; the cards are those of the fake NVML library, or simulated ones when `simulated` says how many."""

    name = "holdfast"
    idle_window = "0s"

    def __init__(self, place: Place, *, simulated: int = 0, options: Sequence[str] = ()) -> None:
        super().__init__(place)
        self.options = tuple(options)
        self.runs = f"{place.directory}/runs"
        base = SHARED_MEMORY if os.path.isdir(SHARED_MEMORY) else place.directory
        self.leases = tempfile.mkdtemp(prefix="holdfast-bench-", dir=base)
        self.environ |= {"HOLDFAST_RUNS": self.runs, "HOLDFAST_LEASE_DIR": f"{self.leases}/area"}
        if simulated:
            self.environ["HOLDFAST_SIMULATED_GPUS"] = str(simulated)
        self.run_ids: list[str] = []

    def arguments(self, argv: Sequence[str], *, cards: int) -> list[str]:
        """The command line that starts a job detached and returns when its command runs, or stands in line."""
        words = [HOLDFAST, "run", "-d", "--prove", "0", *self.options]
        if cards:
            words += ["--gpus", str(cards), "--wait", "10m", "--idle-window", self.idle_window]
        return [*words, "--", *argv]

    def submit(self, argv: Sequence[str], *, cards: int) -> None:
        """Start a job."""
        said = self.run(*self.arguments(argv, cards=cards))
        self.run_ids.append(said.split()[0])

    def stop_job(self) -> None:
        """Stop the last run, and wait until nothing of it is left."""
        must([HOLDFAST, "stop", self.run_ids[-1]], self.environ, self.place.directory)

    def finish(self) -> None:
        """Wait until every run has ended and its supervisor is gone."""
        try:
            wait_until(lambda: all(self.has_ended(run_id) for run_id in self.run_ids), 30, "every run to end")
        finally:
            shutil.rmtree(self.leases, ignore_errors=True)

    def attempt(self, run_id: str) -> str:
        """The directory of the first attempt."""
        return f"{self.runs}/{run_id}/attempts/1"

    def has_ended(self, run_id: str) -> bool:
        """Whether there is an exit record."""
        return os.path.exists(f"{self.attempt(run_id)}/exit.json")

    def read_state(self, run_id: str) -> dict[str, Any]:
        """The committed state. Raises: CannotMeasure."""
        try:
            with open(f"{self.attempt(run_id)}/state.json", encoding="utf-8") as file:
                state: dict[str, Any] = json.load(file)
        except (OSError, ValueError) as error:
            raise CannotMeasure(f"state of {run_id}: {error}") from error
        return state


class HoldfastQueue(Holdfast):
    """holdfast, the jobs handed to its queue."""

    name = "holdfast submit"

    def __init__(self, place: Place, *, simulated: int = 0, options: Sequence[str] = ()) -> None:
        super().__init__(place, simulated=simulated, options=options)
        self.environ["HOLDFAST_QUEUE"] = f"{place.directory}/queue"
        self.handed = 0

    def submit(self, argv: Sequence[str], *, cards: int) -> None:
        """Hand in a job."""
        self.handed += 1
        words = ["submit", "--name", f"job-{self.handed}", *self.options]
        if cards:
            words += ["--gpus", str(cards), "--idle-window", self.idle_window]
        self.run(HOLDFAST, *words, "--", *argv)

    def finish(self) -> None:
        """Wait until every job is proven done."""
        try:
            self.run(HOLDFAST, "wait", "--all", "--timeout", "60s")
        finally:
            shutil.rmtree(self.leases, ignore_errors=True)
