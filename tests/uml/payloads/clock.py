"""The wall clock of the box jumps by a day while a run with a time limit is under way; prints what the run came to."""

from __future__ import annotations

import json
import subprocess
import sys
import time

HOLDFAST = (sys.executable, "-m", "holdfast")
OPTIONS = (
    "--name",
    "jump",
    "--timeout",
    "8s",
    "--grace",
    "1s",
    "--disk-min-free",
    "1MB",
    "--disk-min-free-inodes",
    "10",
)
DAY_S = 86400


def call(*words: str) -> subprocess.CompletedProcess[str]:
    """One holdfast command, and what it said."""
    return subprocess.run([*HOLDFAST, *words], capture_output=True, text=True, check=False, timeout=60)


def show() -> dict[str, object]:
    """The run as `show` has it."""
    shown: dict[str, object] = json.loads(call("show", "jump", "--json").stdout)
    return shown


# The limit counts from the run's creation, which a slow guest has long behind it when the command returns.
began = time.monotonic()
started = call("run", "-d", "--prove", "2", *OPTIONS, "--", "sleep", "1000")
time.clock_settime(time.CLOCK_REALTIME, time.time() + (DAY_S if sys.argv[1] == "forward" else -DAY_S))
time.sleep(1.5)
early, early_after_s = show()["condition"], time.monotonic() - began
while show()["condition"] == "running" and time.monotonic() - began < 40:
    time.sleep(0.2)
time.sleep(2)
end = show()
found = {"started": started.returncode, "early": early, "early_after_s": early_after_s}
print(json.dumps({**found, "condition": end["condition"], "exit": end["exit"]}))
