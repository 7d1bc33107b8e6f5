"""A queue on a box whose power goes: `before` fills it and lets it begin, `after` says what became of each job.

Queue, runs and leases lie on the disk that both boots see; cards are simulated. Each job appends a line to a file of
its own when it begins and one when it ends; the long ones wait for a file that only the second boot makes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

HOLDFAST = (sys.executable, "-m", "holdfast")
JOB = """
import os, sys, time
name, work = sys.argv[1], os.environ["WORK"]
def say(word):
    with open(f"{work}/{name}", "a") as file:
        file.write(f"{word} {os.environ['HOLDFAST_ATTEMPT']} {os.environ['HOLDFAST_REASON']}\\n")
        file.flush()
        os.fsync(file.fileno())
say("begin")
end = time.monotonic() + 120
while name.startswith("long") and not os.path.exists(f"{work}/go") and time.monotonic() < end:
    time.sleep(0.1)
say("end")
"""
SMALL = ("--gpus", "1", "--idle-window", "0s", "--disk-min-free", "1MB", "--disk-min-free-inodes", "10")
NAMES = ("short1", "short2", "long1", "long2", "later1", "later2")


def call(*words: str, timeout_s: float = 90) -> subprocess.CompletedProcess[str]:
    """One holdfast command, and what it said."""
    return subprocess.run([*HOLDFAST, *words], capture_output=True, text=True, check=False, timeout=timeout_s)


def read_lines() -> dict[str, list[str]]:
    """What each job has written."""
    work = os.environ["WORK"]
    found = {}
    for name in NAMES:
        path = f"{work}/{name}"
        found[name] = open(path, encoding="utf-8").read().split("\n")[:-1] if os.path.exists(path) else []  # noqa: SIM115
    return found


def before() -> None:
    """Hand the jobs in, and wait until two are done and two are in the middle."""
    work = os.environ["WORK"]
    with open(f"{work}/job.py", "w", encoding="utf-8") as file:
        file.write(JOB)
    with open(f"{work}/night.txt", "w", encoding="utf-8") as file:
        file.writelines(f"name={name} {sys.executable} {work}/job.py {name}\n" for name in NAMES)
    made = call("submit", "--lines", f"{work}/night.txt", "--group", "night", *SMALL)
    if made.returncode:
        print(made.stderr, file=sys.stderr, flush=True)
        raise SystemExit(1)
    end = time.monotonic() + 60
    while time.monotonic() < end:
        lines = read_lines()
        if [len(lines[name]) for name in NAMES[:4]] == [2, 2, 1, 1]:
            listed = json.loads(call("queue", "ls", "night", "--json").stdout)
            if _count_done(listed) == 2:
                break
        time.sleep(0.1)


def _count_done(listed: dict[str, object]) -> int:
    groups = listed["groups"]
    assert isinstance(groups, list)
    return sum(int(group["counts"].get("done", 0)) for group in groups)


def after() -> dict[str, object]:
    """What the next boot does with the queue."""
    with open(f"{os.environ['WORK']}/go", "w", encoding="utf-8"):
        pass
    resumed = call("queue", "resume", "--with-environment")
    waited = call("wait", "night/", "--timeout", "80s")
    listed = json.loads(call("queue", "ls", "night", "--all", "--json").stdout)
    found = {"resumed": resumed.stderr, "code": waited.returncode, "said": waited.stdout + waited.stderr}
    return {**found, "listed": listed, "lines": read_lines()}
