"""Live runs for tests of verbs: started with the real command, and ended whatever the test did."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.agent.view.observe import observe_run
from holdfast.agent.view.run_view import RunView
from holdfast.host.process.pidfd import send_signal
from holdfast.host.process.processes import is_alive
from holdfast.model.run import Ended, Finalizing, Running, Stopping
from tests.cli.conftest import ENTRY
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cli.conftest import Command

SLEEPER = ("sh", "-c", "echo ready; while :; do sleep 0.1; done")
"""A job that says that it is up and then runs until it is told to end."""
STUBBORN = ("sh", "-c", "trap '' TERM INT HUP; echo ready; while :; do sleep 0.1; done")
"""The same, deaf to TERM."""


@dataclass(frozen=True, slots=True)
class LiveRun:
    """A run that was started with ``run -d``."""

    run_id: str
    run_dir: str

    def look(self) -> RunView:
        """The run as it is now."""
        return observe_run(self.run_dir)

    def output(self) -> str:
        """What the newest attempt has printed so far."""
        try:
            with open(f"{self.look().attempt_dir}/output.log", encoding="utf-8") as file:
                return file.read()
        except FileNotFoundError:
            return ""

    def wait_output(self, text: str) -> None:
        """Wait until the newest attempt has printed `text`."""
        wait_until(lambda: text in self.output(), what=f"{text!r} in the output")

    def wait_condition(self, *conditions: str) -> RunView:
        """Wait until the run is in one of these conditions."""
        found = wait_until(lambda: self._if_in(conditions), what=f"condition {' or '.join(conditions)}")
        assert found is not None
        return found

    def _if_in(self, conditions: tuple[str, ...]) -> RunView | None:
        view = self.look()
        return view if view.condition in conditions else None

    def is_recorded(self) -> bool:
        """Whether its state says that the job runs, or more."""
        state = self.look().state
        return state is not None and isinstance(state.state, (Running, Stopping, Finalizing, Ended))

    def kill_supervisor(self) -> None:
        """SIGKILL the supervisor and wait until it is gone."""
        state = self.look().state
        assert state is not None
        supervisor = state.supervisor
        assert supervisor is not None
        assert send_signal(supervisor, signal.SIGKILL)
        wait_until(lambda: not is_alive(supervisor), what="the supervisor's end")


@contextmanager
def live_run(holdfast: Command, *args: str, job: tuple[str, ...] = SLEEPER) -> Iterator[LiveRun]:
    """Start a job detached; at the end it is stopped by force, and its supervisor has left."""
    started = holdfast("run", "-d", "--prove", "0", "--json", *args, "--", *job)
    assert started.code == 0, started
    value = started.json()
    run = LiveRun(value["run_id"], value["run_dir"])
    try:
        run.wait_output("ready")
        # The job may be faster than the record of it.
        wait_until(run.is_recorded, what="the run is on record as running, or over")
        yield run
    finally:
        if os.path.exists(run.run_dir):
            holdfast("stop", "--now", "--wait", "15s", run.run_id)
            state = run.look().state
            supervisor = state.supervisor if state is not None else None
            if supervisor is not None:
                wait_until(lambda: not is_alive(supervisor), what="the supervisor's end")


@contextmanager
def started(*args: str) -> Iterator[subprocess.Popen[str]]:
    """``holdfast ARGS`` while it runs, in a session of its own; ended by KILL if it is still there at the end."""
    pipe = subprocess.PIPE
    process = subprocess.Popen([*ENTRY, *args], stdout=pipe, stderr=pipe, text=True, start_new_session=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()
