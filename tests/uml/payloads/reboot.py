"""A run on a box whose power goes: `before` starts it, `after` tells in the next boot what became of it.

The run directory and the lease area lie on the disk that both boots see; cards are simulated.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any

HOLDFAST = (sys.executable, "-m", "holdfast")
SMALL = ("--gpus", "1", "--idle-window", "0s", "--disk-min-free", "1MB", "--disk-min-free-inodes", "10")


def call(*words: str) -> subprocess.CompletedProcess[str]:
    """One holdfast command, and what it said."""
    return subprocess.run([*HOLDFAST, *words], capture_output=True, text=True, check=False, timeout=60)


def before() -> None:
    """Start a job with a card."""
    os.mkdir(f"{os.environ['WORK']}/run")
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
        f"{os.environ['WORK']}/run/ran",
    )
    if started.returncode:
        print(started.stderr, file=sys.stderr, flush=True)
        raise SystemExit(1)


def after() -> dict[str, object]:
    """What the next boot says of the run, and whether its card can be had."""
    waited = call("wait", "cut")
    seen = json.loads(call("show", "cut", "--json").stdout)
    call("reconcile")
    call("wait", "--timeout", "50s", "cut")  # a slow machine may still be writing its end
    listed = json.loads(call("ls", "--json").stdout)
    shown = json.loads(call("show", "cut", "--json").stdout)
    cards = look_at_cards()
    # Jobs of the queue may have all cards just now, and two of them are short.
    again = call("run", "--wait", "50s", *SMALL, "--", "true")
    work = f"{os.environ['WORK']}/run"
    return {
        "runs": [[row["name"], row["condition"], row["exit_code"]] for row in listed["runs"]],
        "waited": [waited.returncode, waited.stderr, seen["condition"], seen["ended"]],
        "evidence": shown["exit"]["evidence"],
        "failure": shown["failure"],
        "cards": [
            [card["lease"] and card["lease"]["run_id"], card["available"], card["unavailable"]] for card in cards
        ],
        "next": again.returncode,
        "next_said": again.stderr,
        "started_twice": os.path.exists(f"{work}/ran") and len(os.listdir(work)) != 1,
    }


def look_at_cards() -> list[dict[str, Any]]:
    """Each free, or with the run that has it: a supervisor that has just taken one has not written its record yet."""
    for _ in range(30):
        cards: list[dict[str, Any]] = json.loads(call("gpus", "--json").stdout)["cards"]
        if all(card["available"] or card["lease"] for card in cards):
            break
        time.sleep(0.5)
    return cards


def diagnose() -> dict[str, object]:
    """The verdict about the run."""
    said = call("diagnose", "--json", "cut")
    found: dict[str, object] = json.loads(said.stdout)["verdict"] if said.returncode == 0 else {"failed": said.stderr}
    return found
