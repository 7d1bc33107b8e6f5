"""Two boots of one box with holdfast on it: `before` starts a run and says so, `after` tells what became of it.

The run directory and the lease area lie on the disk that both boots see; cards are simulated.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

HOLDFAST = (sys.executable, "-m", "holdfast")
SMALL = ("--gpus", "1", "--idle-window", "0s", "--disk-min-free", "1MB", "--disk-min-free-inodes", "10")


def call(*words: str) -> subprocess.CompletedProcess[str]:
    """One holdfast command, and what it said."""
    return subprocess.run([*HOLDFAST, *words], capture_output=True, text=True, check=False, timeout=60)


def before() -> None:
    """Start a job with a card; the power goes when its line is out."""
    options = ("--name", "cut", "--timeout", "1h", *SMALL)
    started = call(
        "run",
        "-d",
        "--prove",
        "0",
        *options,
        "--",
        "sh",
        "-c",
        'echo $$ > "$0"; sleep 1000',
        f"{os.environ['WORK']}/ran",
    )
    lease = os.listdir(os.environ["HOLDFAST_LEASE_DIR"])
    print(json.dumps({"code": started.returncode, "lease": lease}), flush=True)
    print(started.stderr, file=sys.stderr, flush=True)
    print("under way", flush=True)
    time.sleep(600)


def after() -> None:
    """What the next boot says of the run, and whether its card can be had."""
    listed = json.loads(call("ls", "--json").stdout)
    shown = json.loads(call("show", "cut", "--json").stdout)
    end = time.monotonic() + 30
    while "evidence" not in shown["exit"] and time.monotonic() < end:
        # `show` has the run settled, and waits for that a moment only; the guest may be slow.
        time.sleep(0.2)
        shown = json.loads(call("show", "cut", "--json").stdout)
    cards = json.loads(call("gpus", "--json").stdout)["cards"]
    again = call("run", *SMALL, "--", "true")
    found = {
        "runs": [[row["name"], row["condition"], row["exit_code"]] for row in listed["runs"]],
        "evidence": shown["exit"]["evidence"],
        "failure": shown["failure"],
        "available": cards[0]["available"],
        "next": again.returncode,
        "next_said": again.stderr,
        "started_twice": os.path.exists(f"{os.environ['WORK']}/ran") and len(os.listdir(os.environ["WORK"])) != 1,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    {"before": before, "after": after}[sys.argv[1]]()
