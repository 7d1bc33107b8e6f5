"""Starts every command of a JSON list on standard input as a job of its own; prints how each ended, as its keeper says.

It is a program of its own because it forks twice for each: from a test's process, with all that a test session has
imported, a fork costs ten times as much.
"""

from __future__ import annotations

import json
import os
import sys

from holdfast.host.job.spawn import JobLaunch, StartedJob, spawn_job
from holdfast.host.process import libc, pidfd

BATCH = 32
"""Jobs that run side by side."""


def build(number: int, argv: list[str]) -> JobLaunch:
    """A job with files of its own in the working directory."""
    return JobLaunch(
        run_id="20261120-104501-spawn-0001",
        attempt=1,
        argv=tuple(argv),
        environ={"PATH": os.environ["PATH"]},
        workdir=os.getcwd(),
        status_path=os.path.abspath(f"status-{number}.json"),
        output_path=os.path.abspath(f"out-{number}"),
        output_max_bytes=1 << 20,
        inherited_fds=(),
        kill_on_supervisor_death=False,
        pty=False,
        signal_rest=lambda _: 0,
        prepare=lambda: None,
        lock_path=os.path.abspath(f"lock-{number}"),
    )


def wait_gone(started: StartedJob) -> None:
    """Until the keeper has left, which it does last."""
    held = pidfd.hold_process(started.keeper)
    if held is not None:
        held.wait(60.0)
        held.close()


def main() -> None:
    """All commands, a batch at a time."""
    libc.set_child_subreaper()
    launches = [build(number, argv) for number, argv in enumerate(json.load(sys.stdin))]
    for first in range(0, len(launches), BATCH):
        jobs = [spawn_job(launch) for launch in launches[first : first + BATCH]]
        for job in jobs:
            job.go()
        for job in jobs:
            wait_gone(job)
            job.close()
    found = []
    for launch in launches:
        with open(launch.status_path, encoding="utf-8") as file:
            found.append(json.load(file))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
