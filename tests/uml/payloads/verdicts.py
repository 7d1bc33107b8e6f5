"""Runs that end in different ways on a kernel that is not this machine's; prints the verdicts as one JSON object."""

from __future__ import annotations

import json
import subprocess
import sys

HOLDFAST = (sys.executable, "-m", "holdfast")
SMALL = ("--disk-min-free", "1MB", "--disk-min-free-inodes", "10")
HUNGRY = "kept = []\nwhile True:\n    kept.append(bytearray(b'x' * (4 << 20)))\n"
ENDS = {
    "oom": ("--limit-memory", "64MiB", "--", sys.executable, "-I", "-S", "-c", HUNGRY),
    "killed": ("--", "sh", "-c", "kill -9 $$"),
}


def judge(name: str) -> dict[str, object]:
    """Run one and ask why it ended."""
    options = ENDS[name]
    made = subprocess.run(
        [*HOLDFAST, "run", "--json", "--name", name, *SMALL, *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=90,
    )
    try:
        run_dir = json.loads(made.stdout)["run_dir"]
    except (ValueError, KeyError):
        return {"refused": made.stdout + made.stderr}
    said = subprocess.run(
        [*HOLDFAST, "diagnose", "--json", run_dir], capture_output=True, text=True, check=False, timeout=60
    )
    return json.loads(said.stdout)["verdict"] if said.returncode == 0 else {"failed": said.stderr}


if __name__ == "__main__":
    print(json.dumps({name: judge(name) for name in ENDS}))
