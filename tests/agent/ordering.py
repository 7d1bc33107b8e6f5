"""Orders for tests: made, submitted to this machine as a box, and ended again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.agent.detached import ENTRY
from holdfast.agent.view.observe import observe_run
from holdfast.core.job.job_hash import hash_job
from holdfast.model import wire
from holdfast.model.job import JobSpec
from holdfast.model.order import Order
from tests.agent.killing import is_busy
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

RUN_ID = "20261122-104501-job-3fa2"


def make_order(*command: str, **fields: Any) -> Order:
    """An order without code; `fields` are those of `Order`, and `job` those of its job."""
    job = JobSpec("job", command, ".", **fields.pop("job", {}))
    return Order(fields.pop("run_id", RUN_ID), job, hash_job(job), "0123456789abcdef", **fields)


class OrderBox:
    """Submits orders to this machine as a box, and ends what is left of them."""

    def __init__(self, root: Path, environ: Mapping[str, str]) -> None:
        self.root, self.environ = str(root), dict(environ)

    def submit(self, order: Order | bytes, *words: str, environ: Mapping[str, str] | None = None) -> Any:
        """The entry's answer, with `code`, its exit code."""
        data = order if isinstance(order, bytes) else wire.to_bytes(order)
        done = subprocess.run(
            [sys.executable, "-I", "-S", ENTRY, "submit", "--root", self.root, *words],
            input=data,
            env={**self.environ, **(environ or {})},
            capture_output=True,
            check=False,
        )
        answer = json.loads(done.stdout) if done.stdout else {}
        return {**answer, "code": done.returncode, "stderr": done.stderr.decode()}

    def clear(self) -> None:
        """Wait until nothing of any run is left."""
        for run_id in self.list_runs() if os.path.isdir(self.root) else ():
            wait_until(partial(self._is_still, run_id), what=f"{run_id} is still")

    def _is_still(self, run_id: str) -> bool:
        return not is_busy(self.run_dir(run_id))

    def list_runs(self) -> list[str]:
        """The ids of all runs."""
        return [name for name in sorted(os.listdir(self.root)) if not name.startswith(".")]

    def run_dir(self, run_id: str = RUN_ID) -> str:
        return f"{self.root}/{run_id}"

    def ended(self, run_id: str = RUN_ID) -> int | None:
        """The exit code once the run is over and its supervisor has left."""
        wait_until(lambda: observe_run(self.run_dir(run_id)).over, what=f"{run_id} is over")
        wait_until(lambda: not is_busy(self.run_dir(run_id)), what=f"{run_id} is still")
        return observe_run(self.run_dir(run_id)).exit_code


def count_job(tmp_path: Path) -> tuple[tuple[str, ...], Path]:
    """A job that leaves a line each time it runs, and the file."""
    file = tmp_path / "ran"
    return ("sh", "-c", f"echo x >> {file}; exit 3"), file
