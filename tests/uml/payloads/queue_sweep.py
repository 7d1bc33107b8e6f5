"""Two boots of a box with four simulated cards: the sweep of examples/digits, its worker killed, then the power cut.

What `before` leaves lies on the disk that both boots see; `after` waits for the sweep and says what it found.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

HOLDFAST = (sys.executable, "-m", "holdfast")
SMALL = ("--disk-min-free", "1MB", "--disk-min-free-inodes", "10", "--idle-window", "0s")


def call(*words: str, timeout_s: float = 400) -> subprocess.CompletedProcess[str]:
    """One holdfast command, and what it said."""
    return subprocess.run([*HOLDFAST, *words], capture_output=True, text=True, check=False, timeout=timeout_s)


def list_jobs() -> list[dict[str, Any]]:
    """The sweep's table."""
    said = call("sweep", "show", "digits", "--json")
    jobs: list[dict[str, Any]] = json.loads(said.stdout)["jobs"]
    return jobs


def wait_done(number: int) -> None:
    """Until so many jobs are proven done; ends the payload when that does not come true in four minutes."""
    end = time.monotonic() + 240
    jobs = list_jobs()
    while [job["state"] for job in jobs].count("done") < number:
        if time.monotonic() > end or any(job["state"] in ("failed", "held") for job in jobs):
            print(call("queue", "ls", "--all").stdout, call("sweep", "check").stdout, file=sys.stderr, flush=True)
            print(call("diagnose", jobs[-1]["run_id"] or "").stdout, file=sys.stderr, flush=True)
            raise SystemExit(1)
        time.sleep(0.5)
        jobs = list_jobs()


def before() -> None:
    """Begin the sweep, kill the worker, let another one go on, and wait for the power cut."""
    made = call("sweep", os.environ["SWEEP"], *SMALL)
    if made.returncode:
        print(made.stderr, file=sys.stderr, flush=True)
        raise SystemExit(1)
    wait_done(2)
    with open(f"{os.environ['HOLDFAST_QUEUE']}/worker.lock", encoding="utf-8") as file:
        os.kill(int(json.load(file)["process"]["pid"]), signal.SIGKILL)
    call("queue", "resume")
    wait_done(4)
    print(json.dumps([job["state"] for job in list_jobs()]), flush=True)
    os.sync()
    print("under way", flush=True)
    time.sleep(600)


def after() -> None:
    """Go on, and tell how it ended."""
    call("queue", "resume")
    waited = call("wait", "digits/", "--timeout", "400s", timeout_s=450)
    checked = call("sweep", "check", "digits")
    print(json.dumps({"code": waited.returncode, "said": waited.stdout + waited.stderr, "jobs": list_jobs()}))
    print(json.dumps({"check": checked.returncode, "said": checked.stdout[-2000:]}), file=sys.stderr)
    raise SystemExit(checked.returncode)


if __name__ == "__main__":
    {"before": before, "after": after}[sys.argv[1]]()
