"""The platform that is this box. The contract is in `platforms.base`; the work is the agent's.

Imports of the agent are made by the method that needs them: submitting a run loads nothing that only looking needs.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.model import wire
from holdfast.model.errors import NoSuchRun
from holdfast.model.run import Wish
from holdfast.platforms.base import Observed, Submitted, Unsupported

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from holdfast.model.finding import Finding
    from holdfast.model.job import JobSpec
    from holdfast.platforms.base import Call

FIRST_ATTEMPT = 1


class LocalPlatform:
    """Runs on this box, under one directory of runs."""

    name = "local"

    def __init__(self, root: str) -> None:
        """Work with the runs under `root`; it is made when the first run is submitted."""
        self._root = root

    def probe(self) -> tuple[Finding, ...]:
        """Containment rungs and cards as this box has them."""
        from holdfast.host.containment import probe_rungs
        from holdfast.host.gpus import read_inventory
        from holdfast.model.finding import Finding, Level

        found = [
            Finding("containment", Level.PASS if rung.works else Level.WARN, rung.rung.value, rung.refusal or "works")
            for rung in probe_rungs()
        ]
        inventory = read_inventory()
        words = f"{len(inventory.cards)} cards ({inventory.source.value}); {inventory.reason or 'all answered'}"
        found.append(Finding("cards", Level.PASS if inventory.complete else Level.UNKNOWN, "cards", words))
        return tuple(found)

    def plan(self, spec: JobSpec, call: Call) -> tuple[Finding, ...]:
        """The preflight that a run would make."""
        from holdfast.agent.preflight import run_checks
        from holdfast.host.rulesfile import read_rules

        return run_checks(spec, read_rules(call.environ), environ=call.environ)

    def submit(self, spec: JobSpec, call: Call) -> Submitted:
        """Create the run directory and start its supervisor."""
        from holdfast.agent.create import create_run
        from holdfast.agent.launch import start_supervisor

        run_dir, run_id = create_run(spec, self._root, argv=call.argv, cwd=call.cwd, environ=call.environ)
        start_supervisor(run_dir, FIRST_ATTEMPT, environ=call.environ, reason="start")
        return Submitted(run_id, run_dir)

    def poll(self, run_ids: Sequence[str]) -> dict[str, Observed]:
        """One look at each run's files and processes."""
        from holdfast.agent.observe import observe

        views = (observe(f"{self._root}/{run_id}") for run_id in run_ids if os.path.isdir(f"{self._root}/{run_id}"))
        return {view.run_id: Observed(view.run_id, view.condition, view.over, view.exit_code) for view in views}

    def logs(self, run_id: str, offset: int) -> bytes:
        """The last attempt's output from `offset` on; empty while there is none."""
        path = f"{wire.attempt_dir(self._run_dir(run_id), self._last_attempt(run_id))}/{wire.OUTPUT}"
        try:
            with open(path, "rb") as file:
                file.seek(offset)
                return file.read()
        except FileNotFoundError:
            return b""

    def cancel(self, run_id: str, *, by: str, force: bool = False) -> None:
        """Write the wish; a run without a supervisor gets one, which finds it."""
        from holdfast.agent.acting import ask_stop
        from holdfast.agent.observe import observe

        view = observe(self._run_dir(run_id))
        if not view.over:
            ask_stop(view, Wish.STOP_NOW if force else Wish.STOP, by=by)

    def fetch(self, run_id: str, names: Iterable[str]) -> dict[str, str]:
        """Nothing has to be moved: the paths themselves."""
        run_dir = self._run_dir(run_id)
        paths = {name: os.path.join(run_dir, name) for name in names}
        return {name: path for name, path in paths.items() if os.path.exists(path)}

    def teardown(self, run_id: str) -> None:
        """Refused: this box is nobody's rental."""
        words = f"{run_id}: there is nothing to tear down on this box"
        raise Unsupported(words, hint="holdfast rm removes an ended run")

    def _run_dir(self, run_id: str) -> str:
        path = f"{self._root}/{run_id}"
        if not os.path.isdir(path):
            raise NoSuchRun(f"no run {run_id} under {self._root}", hint="see `holdfast ls`")
        return path

    def _last_attempt(self, run_id: str) -> int:
        from holdfast.agent.observe import list_attempts

        return max(list_attempts(self._run_dir(run_id)), default=FIRST_ATTEMPT)
