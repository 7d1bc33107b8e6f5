"""The peers of benchmarks/slurm.py as programs, run by the Python of an environment that has submitit and psij-python.

    python peers_slurm.py submitit|psij submit|end FOLDER FILE      one job, until it is taken, or until its end is seen
    python peers_slurm.py submitit|psij look FOLDER COUNT           one look at so many jobs

`submit` prints the job's id. The job of `end` writes its own last instant into FILE; the program prints when it saw the
end. `look` prints ``looking`` before the look and ``looked`` after it.
"""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta
from typing import Any

LAST_ACT = 'sleep 1; date +%s.%N > "{file}"'
PARTITION = "low"


def submit_submitit(folder: str, command: str, count: int = 1, begin: str = "now") -> list[Any]:
    """Submit jobs as one array; what submitit calls a job."""
    import submitit

    executor = submitit.AutoExecutor(folder=folder, cluster="slurm")
    more = {} if begin == "now" else {"slurm_additional_parameters": {"begin": begin}}
    executor.update_parameters(timeout_min=5, slurm_partition=PARTITION, slurm_array_parallelism=count, **more)
    work = submitit.helpers.CommandFunction(["sh", "-c", command], verbose=False)
    if count == 1:
        return [executor.submit(work)]
    with executor.batch():
        return [executor.submit(work) for _ in range(count)]


def submit_psij(folder: str, command: str, count: int = 1, begin: str = "now") -> list[Any]:
    """Submit jobs one after the other; what PSI/J calls a job."""
    import psij

    executor = psij.JobExecutor.get_instance("slurm")
    jobs = []
    for _ in range(count):
        attributes = psij.JobAttributes(queue_name=PARTITION, duration=timedelta(minutes=5))
        if begin != "now":
            attributes.set_custom_attribute("slurm.begin", begin)
        spec = psij.JobSpec(executable="/bin/sh", arguments=["-c", command], directory=folder, attributes=attributes)
        spec.launcher = "single"
        jobs.append(psij.Job(spec))
        executor.submit(jobs[-1])
    return jobs


def look(who: str, folder: str, count: int) -> None:
    """One look at so many jobs."""
    submit = submit_submitit if who == "submitit" else submit_psij
    jobs = submit(folder, "true", count, "now+1hour")
    print("looking", flush=True)
    if who == "submitit":
        for job in jobs:
            assert job.state
    else:
        # It looks by itself, each 30 s.
        time.sleep(35)
    print("looked", flush=True)


def main() -> None:
    """Do what the words say."""
    who, what, folder, last = sys.argv[1:]
    if what == "look":
        look(who, folder, int(last))
    else:
        submit = submit_submitit if who == "submitit" else submit_psij
        (job,) = submit(folder, LAST_ACT.format(file=last) if what == "end" else "true")
        if what == "submit":
            print(job.job_id if who == "submitit" else job.native_id, flush=True)
        else:
            job.result() if who == "submitit" else job.wait()
            print(time.time(), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
