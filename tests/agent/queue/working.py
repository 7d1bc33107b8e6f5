"""Driving a queue with a real worker in tests: hand jobs in, kill the worker, wait, clear away."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from holdfast.agent.queue import environment
from holdfast.agent.queue.change.start_worker import ensure_worker
from holdfast.agent.queue.presence import read_worker
from holdfast.agent.view import observe, run_view
from holdfast.core.job.job_hash import hash_job
from holdfast.host.clock import utc_now
from holdfast.host.process import pidfd, processes
from holdfast.model import wire
from holdfast.model.job import JobSpec, Retries
from holdfast.model.queue import ACTIVE_STATES, JobState, NewJob, OrderVerb, QueueAct, QueuedJob, Submission
from holdfast.model.record import fields as record_fields
from holdfast.store.queue.queue import Queue
from tests.waiting import LIMIT_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.model.identity import ProcessId

JOB = os.path.join(os.path.dirname(os.path.abspath(__file__)), "job.py")


def payload(*words: object) -> tuple[str, ...]:
    """A command that appends one line to a file and leaves with a code: ``payload(file, code, seconds)``."""
    return (sys.executable, "-I", "-S", JOB, *(str(word) for word in words))


@dataclass(slots=True)
class Work:
    """One queue in a directory of the test's."""

    directory: str
    runs: str
    workdir: str
    environ: dict[str, str]
    workers: list[ProcessId] = field(default_factory=list)

    def open(self) -> Queue:
        """The queue, as any other process would open it."""
        from holdfast.agent.view.runs.of_queue import find_runs

        return Queue(self.directory, find_runs=find_runs)

    def make(self, jobs: Mapping[str, Sequence[str]], fields: Mapping[str, Any], **submission: Any) -> Submission:
        """A submission of jobs, each a name and a command."""
        spec = {"workdir": self.workdir, "retries": Retries(max=0), **fields}
        base = JobSpec("t", ("/bin/true",), **spec)
        each: dict[str, dict[str, Any]] = submission.pop("each", {})
        new = []
        for name, command in jobs.items():
            job = JobSpec("t", tuple(command), **spec)
            change: dict[str, object] = {"command": list(command)}
            new.append(NewJob(name, change, sha256=hash_job(job), **each.get(name, {})))
        submission.setdefault("environment", environment.store_environment(self.environ, directory=self.directory))
        return Submission(
            submission.pop("group", "g"),
            wire.encode(base),
            tuple(new),
            self.runs,
            self.workdir,
            ("holdfast", "submit"),
            "a test",
            utc_now(),
            **submission,
        )

    def submit(self, jobs: Mapping[str, Sequence[str]], *, start: bool = True, **fields: Any) -> tuple[int, ...]:
        """Hand jobs in; keywords of `Submission` go there, all others are fields of the job."""
        known = {item.name for item in record_fields(Submission)}
        submission = {name: value for name, value in fields.items() if name in known or name == "each"}
        job = {name: value for name, value in fields.items() if name not in submission}
        with self.open() as queue:
            ids = queue.submit(self.make(jobs, job, **submission))
        if start:
            self.ensure()
        return ids

    def order(self, verb: OrderVerb, **fields: Any) -> tuple[QueuedJob, ...]:
        with self.open() as queue:
            return queue.order(QueueAct(verb, "a test", utc_now(), **fields))

    def ensure(self) -> None:
        """See that a worker is there; returns when it has taken the lock, or has been and gone."""
        before = self._read_lock()
        if ensure_worker(self.directory, self.environ):
            wait_until(lambda: self._read_lock() not in ("", before), what=f"a worker came up; its log: {self.log()}")

    def _read_lock(self) -> str:
        self.worker()
        try:
            with open(f"{self.directory}/worker.lock", encoding="utf-8") as file:
                return file.read()
        except FileNotFoundError:
            return ""

    def worker(self) -> ProcessId | None:
        """Who holds the lock now."""
        facts = read_worker(self.directory)
        if facts is not None and facts.process is not None and facts.process not in self.workers:
            self.workers.append(facts.process)
        return None if facts is None else facts.process

    def wait_worker(self) -> ProcessId:
        found = wait_until(self.worker, what=f"a worker is there; its log: {self.log()}")
        assert found is not None
        return found

    def kill_worker(self) -> None:
        """SIGKILL whoever holds the lock, if anybody does, and see it gone."""
        victim = self.worker()
        if victim is not None:
            pidfd.send_signal(victim, signal.SIGKILL)
            wait_until(lambda: not processes.is_alive(victim), what="the worker is dead")

    def jobs(self) -> dict[str, QueuedJob]:
        with self.open() as queue:
            return {job.name: job for job in queue.jobs()}

    def states(self) -> dict[str, JobState]:
        return {name: job.state for name, job in self.jobs().items()}

    def wait_state(self, name: str, *states: JobState, timeout_s: float = LIMIT_S) -> QueuedJob:
        def look() -> QueuedJob | None:
            job = self.jobs()[name]
            return job if job.state in states else None

        try:
            found = wait_until(look, timeout_s, what=f"{name} is {states}")
        except AssertionError as error:
            raise AssertionError(f"{error}; {self.jobs()[name]}; worker {self.worker()}; {self.log()}") from None
        assert found is not None
        return found

    def wait_left(self, timeout_s: float = LIMIT_S) -> None:
        """Until the worker has left by itself."""
        wait_until(lambda: self.worker() is None, timeout_s, what=f"the worker has left; {self.states()} {self.log()}")
        for process in self.workers:
            wait_until(lambda process=process: not processes.is_alive(process), what="it is gone")  # type: ignore[misc]

    def log(self) -> str:
        try:
            with open(f"{self.directory}/worker.log", encoding="utf-8") as file:
                return file.read()[-3000:]
        except FileNotFoundError:
            return ""

    def view(self, name: str) -> run_view.RunView:
        run_dir = self.jobs()[name].run_dir
        assert run_dir is not None
        return observe.observe_run(run_dir)

    def clear(self) -> None:
        """End every worker and every run, and forget the secrets."""
        for _ in range(20):
            self.kill_worker()
            with self.open() as queue:
                left = [job for job in queue.jobs() if job.state in ACTIVE_STATES and job.run_id]
            alive = [process for job in left for process in processes.find_marked(str(job.run_id))]
            alive += [item for job in left if job.run_dir and (item := _supervisor(job.run_dir)) is not None]
            if not alive and self.worker() is None:
                break
            for process in alive:
                pidfd.send_signal(process, signal.SIGKILL)
        path = f"{self.directory}/environments"
        names = os.listdir(path) if os.path.isdir(path) else []
        environment.remove_unneeded(frozenset(name.removesuffix(".json") for name in names), directory=self.directory)


def _supervisor(run_dir: str) -> ProcessId | None:
    state = observe.observe_run(run_dir).state
    found = None if state is None else state.supervisor
    return found if found is not None and processes.is_alive(found) else None
