"""Train twice under holdfast: once in peace, once killed in the middle; then compare the weights, bit for bit.

Killed means SIGKILL for everything that belongs to the run: the job, its keeper, its supervisor, with no chance to say
goodbye. `holdfast restart` then starts the same command again, which continues from the newest checkpoint that
proves right. The exit code is 0 when both networks are the same.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

JOB = os.path.join(os.path.dirname(os.path.abspath(__file__)), "job.yaml")
KILL_AFTER = 0.5  # of all steps
PATIENCE_S = 300.0


def holdfast(*arguments: str) -> str:
    """Run one verb; its standard output.

    Raises:
        SystemExit: it failed; what it said is on standard error.
    """
    done = subprocess.run(["holdfast", *arguments], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode not in (0, 130):
        sys.exit(f"demo: holdfast {' '.join(arguments)} ended with {done.returncode}")
    return done.stdout


def look(run: str) -> dict[str, Any]:
    """What holdfast knows about a run."""
    seen: dict[str, Any] = json.loads(holdfast("show", run, "--json"))
    return seen


def read_json(path: str) -> dict[str, Any]:
    """A file of the run directory; empty while it is not there."""
    with contextlib.suppress(OSError, ValueError), open(path, encoding="utf-8") as file:
        content: dict[str, Any] = json.load(file)
        return content
    return {}


def wait_for_step(run_dir: str, step: int) -> int:
    """Wait until the run has done `step` steps and has a checkpoint; how many it has done."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        beat = read_json(os.path.join(run_dir, "attempts", "1", "heartbeat.json"))
        if int(beat.get("step") or 0) >= step and beat.get("last_durable_step"):
            return int(beat["step"])
        time.sleep(0.05)
    sys.exit(f"demo: the run in {run_dir} did not come to step {step} within {PATIENCE_S:.0f} s")


def kill_everything(run: str) -> list[int]:
    """SIGKILL the run's supervisor, keeper and job, in this order, so that nobody can react."""
    seen = look(run)["committed"]
    named = [seen["supervisor"], seen["state"]["keeper"], seen["state"]["job"]["process"]]
    pids = [int(process["pid"]) for process in named]
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return pids


def read_result(run_dir: str) -> dict[str, Any]:
    """What the training left."""
    return read_json(os.path.join(run_dir, "artifacts", "result.json"))


def main() -> int:
    """Both runs, and the comparison."""
    print("demo: training in peace", flush=True)
    whole = holdfast("run", "-d", "--name", "digits-whole", JOB).strip()
    subprocess.run(["holdfast", "attach", whole], check=False)
    expected = read_result(look(whole)["run_dir"])
    beat = read_json(os.path.join(look(whole)["run_dir"], "attempts", "1", "heartbeat.json"))

    print("\ndemo: the same again, killed in the middle", flush=True)
    cut = holdfast("run", "-d", "--name", "digits-killed", JOB).strip()
    run_dir = look(cut)["run_dir"]
    at = wait_for_step(run_dir, int(KILL_AFTER * int(beat["step"])))
    pids = kill_everything(cut)
    print(f"demo: SIGKILL at step {at} to the supervisor, the keeper and the job (pids {pids})", flush=True)
    holdfast("restart", cut)
    subprocess.run(["holdfast", "attach", cut], check=False)
    result = read_result(run_dir)

    same = bool(expected) and expected["weights_sha256"] == result.get("weights_sha256")
    print(f"\ndemo: in peace  {expected.get('weights_sha256')}")
    print(f"demo: killed    {result.get('weights_sha256')}")
    print("demo: the same weights, bit for bit" if same else "demo: NOT the same weights", flush=True)
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
