"""Driving real runs in tests: create, supervise, look, kill, adopt; and clearing away what a failed test leaves.

A run here is what `holdfast run -d` makes, without the command line: `create_run`, then `start_supervisor`.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import signal
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from holdfast.agent import launch
from holdfast.agent.control.create import create_run
from holdfast.agent.requests import write_request
from holdfast.host.clock import utc_now
from holdfast.host.files import fallback, files
from holdfast.host.process import pidfd, processes
from holdfast.model import wire
from holdfast.model.job import JobSpec, Retries, Timeouts
from holdfast.model.run import Ended, Finalizing, RequestKind, Running, RunRequest, RunState, Starting, Stopping
from tests.waiting import LIMIT_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.model.identity import ProcessId
    from holdfast.model.run import State

NAME = f"t{os.environ.get('PYTEST_XDIST_WORKER', '')}"
"""Of all runs here: two of one second whose four digits are the same have one id, and end each other's processes."""
JOB = os.path.join(os.path.dirname(os.path.abspath(__file__)), "jobs", "job.py")


def read_text(path: str) -> str:
    """A small file."""
    with open(path, encoding="utf-8") as file:
        return file.read()


def job(*words: object) -> tuple[str, ...]:
    """The command of one of the small jobs."""
    return (sys.executable, "-I", "-S", JOB, *(str(word) for word in words))


@dataclass(slots=True)
class Driven:
    """One attempt of one run, seen through its files and the process table."""

    run_dir: str
    run_id: str
    environ: dict[str, str]
    attempt: int = 1
    seen: set[ProcessId] = field(default_factory=set)

    @property
    def directory(self) -> str:
        return wire.attempt_dir(self.run_dir, self.attempt)

    def path(self, name: str) -> str:
        return f"{self.directory}/{name}"

    def read(self, name: str) -> dict[str, Any]:
        return wire.parse_object(fallback.read(self.run_id, self.attempt, self.path(name)), name)

    def state(self) -> RunState:
        data = wait_until(self._read_state, what=f"there is a {wire.STATE} in one place or the other")
        found = wire.from_bytes(RunState, data, wire.STATE)
        if found.supervisor is not None:
            self.seen.add(found.supervisor)
        for process in _recorded(found.state):
            self.seen.add(process)
        return found

    def _read_state(self) -> bytes:
        try:
            return fallback.read(self.run_id, self.attempt, self.path(wire.STATE))
        except FileNotFoundError:
            return b""

    def kind(self) -> str:
        return type(self.state().state).__name__.lower()

    def supervisor(self) -> ProcessId:
        found = wait_until(lambda: self.state().supervisor, what="a supervisor took the run up")
        assert found is not None
        return found

    def start(self, reason: str = "start") -> None:
        launch.start_supervisor(self.run_dir, self.attempt, environ=self.environ, reason=reason)

    def adopt(self) -> None:
        """Have a new supervisor take the run up, and wait until it has."""
        before = self.state().supervisor
        self.start("adopt")
        wait_until(lambda: self.state().supervisor != before, what="a new supervisor took the run up")

    def wait_kind(self, *kinds: str, timeout_s: float = LIMIT_S) -> State:
        def look() -> State | None:
            found = self.state().state
            return found if type(found).__name__.lower() in kinds else None

        found = wait_until(look, timeout_s, what=f"{self.run_id} is {' or '.join(kinds)}; log: {self.log()[-600:]}")
        assert found is not None
        return found

    def running(self, timeout_s: float = LIMIT_S) -> Running:
        found = self.wait_kind("running", "ended", timeout_s=timeout_s)
        assert isinstance(found, Running), found
        return found

    def ready(self, timeout_s: float = LIMIT_S) -> Running:
        """Running, and the job has said that it is in place."""
        found = self.running(timeout_s)
        wait_until(lambda: b"ready\n" in self.output(), timeout_s, what=f"the job is ready; it said {self.output()!r}")
        return found

    def ended(self, timeout_s: float = LIMIT_S) -> Ended:
        """Over: the end is committed, the exit record is there, and the supervisor has left."""
        found = self.wait_kind("ended", timeout_s=timeout_s)
        assert isinstance(found, Ended)
        wait_until(lambda: not self.supervised(), timeout_s, what="the supervisor has left")
        return found

    def supervised(self) -> bool:
        process = self.state().supervisor
        return process is not None and processes.is_alive(process)

    def ask(self, request: RequestKind = RequestKind.STOP, by: str = "a test", reason: str = "") -> None:
        write_request(self.run_dir, RunRequest(request, by, utc_now(), reason, self.state().generation))

    def signal_supervisor(self, number: int) -> None:
        assert pidfd.send_signal(self.supervisor(), number)

    def kill_supervisor(self) -> None:
        """KILL it and see it gone; whichever it is."""
        victim = self.supervisor()
        pidfd.send_signal(victim, signal.SIGKILL)
        wait_until(lambda: not processes.is_alive(victim), what="the supervisor is dead")

    def kill(self, process: ProcessId) -> None:
        pidfd.send_signal(process, signal.SIGKILL)
        wait_until(lambda: not processes.is_alive(process), what=f"process {process.pid} is dead")

    def output(self) -> bytes:
        try:
            with open(self.path(wire.OUTPUT), "rb") as file:
                return file.read()
        except FileNotFoundError:
            return b""

    def log(self) -> str:
        return files.read_text_or_none(self.path(wire.SUPERVISOR_LOG)) or ""

    def events(self, name: str | None = None) -> list[dict[str, Any]]:
        found = [json.loads(line) for line in files.read_last_lines(self.path(wire.EVENTS))]
        return [event for event in found if name is None or event["event"] == name]

    def marked(self) -> list[ProcessId]:
        """Living processes with this run's marker, whatever their parents."""
        return processes.find_marked(self.run_id)

    def alive(self) -> list[ProcessId]:
        """Everything of this run that lives: marked, or recorded once as supervisor, keeper or leader."""
        self.state()
        return [*self.marked(), *(process for process in self.seen if processes.is_alive(process))]

    def assert_gone(self) -> None:
        wait_until(lambda: not self.alive(), what=f"nothing of {self.run_id} lives")


def _recorded(state: State) -> list[ProcessId]:
    if not isinstance(state, (Starting, Running, Stopping, Finalizing)):
        return []
    leader = None if state.job is None else state.job.process
    return [process for process in (state.keeper, leader) if process is not None]


@dataclass(slots=True)
class Drive:
    """Makes runs in a directory of the test's, and ends whatever is left of them."""

    root: str
    workdir: str
    environ: dict[str, str]
    runs: list[Driven] = field(default_factory=list)

    def create(
        self, *command: str, environ: Mapping[str, str] | None = None, root: str | None = None, **fields: Any
    ) -> Driven:
        """A run that nobody supervises yet."""
        fields.setdefault("workdir", self.workdir)
        # A test that asks for none gets no second attempt, which could outlive what it had set up.
        fields.setdefault("retries", Retries(max=0))
        spec = JobSpec(fields.pop("name", NAME), command, **fields)
        everything = {**self.environ, **(environ or {})}
        run_dir, run_id = create_run(spec, root or self.root, argv=["holdfast", "run"], cwd="/", environ=everything)
        made = Driven(run_dir, run_id, everything)
        self.runs.append(made)
        return made

    def __call__(self, *command: str, **fields: Any) -> Driven:
        """A run with its supervisor."""
        made = self.create(*command, **fields)
        made.start()
        return made

    def clear(self) -> None:
        """KILL what a test left; what it should have left is nothing."""
        for run in self.runs:
            try:
                state = wire.from_bytes(RunState, run._read_state(), wire.STATE)
                run.seen.update(_recorded(state.state))
                run.seen.update([] if state.supervisor is None else [state.supervisor])
            except (OSError, wire.WireError):
                pass
            for _ in range(100):
                run.seen.update(_find_supervisors(run.run_dir))
                left = [*run.marked(), *(process for process in run.seen if processes.is_alive(process))]
                if not left:
                    break
                for process in left:
                    pidfd.send_signal(process, signal.SIGKILL)
                wait_until(lambda left=left: not any(map(processes.is_alive, left)))  # type: ignore[misc]
            fallback.clear(run.run_id, run.attempt)
            _remove_groups(run.run_id)


def _find_supervisors(run_dir: str) -> list[ProcessId]:
    """Supervisors of a run, and their keepers, by their command lines: one that has just begun is not on record."""
    found = []
    for pid in processes.list_pids():
        with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read().split(b"\0")
            if b"supervise" in words and os.fsencode(run_dir) in words:
                found.append(processes.identify(pid))
    return [process for process in found if process is not None]


def _remove_groups(run_id: str) -> None:
    """What a run that a test left unfinished had; an ended run has removed its own."""
    for depth in ("*", "*/*", "*/*/*"):
        for path in glob.glob(f"/sys/fs/cgroup/{depth}/holdfast/{run_id}.*"):
            with contextlib.suppress(OSError):
                os.rmdir(path)


def timeouts(**seconds: float) -> Timeouts:
    """Timeouts with short words: ``timeouts(run=3)``."""
    return Timeouts(**{f"{name}_s": value for name, value in seconds.items()})
