"""Measure what diagnosis costs: reading a large log, one live run, a patrol of many runs, health samples.

    python benchmarks/diagnosis.py              everything, about two minutes
    python benchmarks/diagnosis.py --only log   one part of: verdicts, log, live, patrol, sampling
    python benchmarks/diagnosis.py --docs       also write the table into docs/benchmarks.md

Results lie in ``benchmarks/results/diagnosis.json``. Beside ours, in the same run: grep with the words that people look
for, and py-spy where it is installed. Nothing fails because of a time.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Any

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path[0] = ROOT

from benchmarks.measuring import become_subreaper, call, end_descendants, wait_until  # noqa: E402
from benchmarks.run import _commit as commit  # noqa: E402
from benchmarks.run import _describe_machine as describe_machine  # noqa: E402
from holdfast.model import wire  # noqa: E402
from tests.diagnosis.corpus import describe, judge_case, read_cases  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from benchmarks.measuring import Row

LATEST = f"{ROOT}/benchmarks/results/diagnosis.json"
DOCUMENT = f"{ROOT}/docs/benchmarks.md"
BEGIN = "<!-- diagnosis: begin (benchmarks/diagnosis.py --docs writes this part) -->"
END = "<!-- diagnosis: end -->"
LOG_BYTES = 100 * 1000**2
ROUNDS = 5
RUNS = 200
HOLDFAST = [sys.executable, "-m", "holdfast"]
LIMITS = {
    "100 MB of log, CPU s": 1.0,
    "diagnose of a live run, wall s": 6.0,
    "diagnose of a live run, CPU s": 0.3,
    "patrol of 200 runs, CPU s": 1.0,
    "sampling, % of a core": 0.1,
}
"""The targets: at most so much."""


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help=f"some of {','.join(PARTS)}")
    parser.add_argument("--docs", action="store_true", help="write the table into docs/benchmarks.md")
    options = parser.parse_args()
    wanted = [name for name in options.only.split(",") if name] or list(PARTS)
    become_subreaper()
    directory = tempfile.mkdtemp(prefix="holdfast-bench-diagnosis-")
    rows: dict[str, Row] = {}
    load = os.getloadavg()
    try:
        for name in wanted:
            print(f"bench: {name} ...", file=sys.stderr, flush=True)
            rows.update(PARTS[name](f"{directory}/{name}"))
    finally:
        end_descendants()
        shutil.rmtree(directory, ignore_errors=True)
    record = {
        "schema": 1,
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "command": " ".join(["python", *sys.orig_argv[1:]]),
        "commit": commit(),
        "machine": describe_machine(),
        "load_before": load,
        "results": rows,
    }
    with open(LATEST, "w", encoding="utf-8") as file:
        file.write(json.dumps(record, indent=1) + "\n")
    print(render(record))
    if options.docs:
        write_document(render(record))
    return 0


def measure_verdicts(_: str) -> dict[str, Row]:
    """How many logs of failures get a class that an expert would accept; false alarms and wrong repeats among all."""
    rows: dict[str, Row] = {}
    for folder in ("unseen", "known"):
        found = describe([judge_case(case) for case in read_cases(folder)])
        count = found["failing"]
        rows[f"{folder} logs, % right or acceptable"] = {
            "p50": round(100 * found["right or acceptable"] / count, 1),
            "n": count,
        }
        rows[f"  exactly the first class, % ({folder})"] = {"p50": round(100 * found["exactly right"] / count, 1)}
        rows[f"  false alarms of {found['healthy']} healthy ({folder})"] = {"p50": found["false alarms"]}
        rows[f"  wrong repeats ({folder})"] = {"p50": found["wrong repeats"]}
    return rows


def measure_log(directory: str) -> dict[str, Row]:
    """CPU seconds to know a log of 100 MB, against grep for the usual words."""
    os.makedirs(directory)
    path = f"{directory}/output.log"
    write_log(path)
    ours = []
    for _ in range(ROUNDS):
        code = (
            "import time, resource; from holdfast.diagnosis.logs.scan import read_log\n"
            f"read_log({path!r}); u = resource.getrusage(resource.RUSAGE_SELF); print(u.ru_utime + u.ru_stime)"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment(directory), capture_output=True, text=True, check=True
        )
        ours.append(float(done.stdout))
    pattern = "error|exception|traceback|killed|no space|nan|timeout"
    peers = [_grep(pattern, path) for _ in range(ROUNDS)]
    return {
        "100 MB of log, CPU s": {"p50": round(statistics.median(ours), 3), "n": ROUNDS},
        "  grep -icE for seven words (no class, no context)": {"p50": round(statistics.median(peers), 3), "n": ROUNDS},
    }


def _grep(pattern: str, path: str) -> float:
    # Into a file: grep stops at the first hit when its output is /dev/null.
    return call(["grep", "-aicE", pattern, path], {**os.environ, "LC_ALL": "C"}, output=f"{path}.hits").cpu_s


def write_log(path: str) -> None:
    """A training's log: progress bars, losses, warnings, harmless words, and one failure at its end."""
    draw = random.Random(0)
    block = []
    for step in range(4000):
        loss = draw.random()
        block.append(f"epoch {step // 100} step {step}: loss={loss:.4f} lr=3e-4 mean squared Error {loss / 3:.4f}\n")
        if step % 7 == 0:
            block.append(
                "".join(f"\r{part:3d}%|{'#' * (part // 5):20}| {part}/100" for part in range(0, 100, 10)) + "\n"
            )
        if step % 50 == 0:
            block.append("/env/lib/site.py:12: UserWarning: errors='ignore' is deprecated, 0 errors were found\n")
    data = "".join(block).encode()
    with open(path, "wb") as file:
        written = 0
        while written < LOG_BYTES:
            written += file.write(data)
        file.write(b"Traceback (most recent call last):\n  File \"train.py\", line 3, in <module>\nKeyError: 'lr'\n")


def measure_live(directory: str) -> dict[str, Row]:
    """Wall and CPU seconds of ``holdfast diagnose`` of a live run with 50 threads, against one dump of py-spy."""
    os.makedirs(directory)
    payload = (
        "import threading, time\n"
        "for _ in range(50): threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
        "time.sleep(600)\n"
    )
    env = environment(directory)
    run_id = start(env, [sys.executable, "-c", payload])
    state = f"{env['HOLDFAST_RUNS']}/{run_id}/attempts/1/{wire.STATE}"
    with open(state, encoding="utf-8") as file:
        pid = json.loads(file.read())["state"]["job"]["process"]["pid"]
    walls, cpus = [], []
    for _ in range(ROUNDS):
        done = call([*HOLDFAST, "diagnose", run_id, "--json"], env)
        walls.append(done.wall_s)
        cpus.append(done.cpu_s)
    rows: dict[str, Row] = {
        "diagnose of a live run, wall s": {"p50": round(statistics.median(walls), 3), "n": ROUNDS},
        "diagnose of a live run, CPU s": {"p50": round(statistics.median(cpus), 3), "n": ROUNDS},
    }
    spy = shutil.which("py-spy")
    if spy is None:
        rows["  py-spy dump (stacks only)"] = {"note": "py-spy is not installed"}
    else:
        dumps = [call([spy, "dump", "--pid", str(pid)], env).cpu_s for _ in range(ROUNDS)]
        rows["  py-spy dump (stacks only), CPU s"] = {"p50": round(statistics.median(dumps), 3), "n": ROUNDS}
    call([*HOLDFAST, "stop", "--now", run_id], env)
    return rows


def measure_patrol(directory: str) -> dict[str, Row]:
    """CPU seconds of a tick over 200 runs: 190 that have ended and ten that live."""
    os.makedirs(directory)
    env = environment(directory)
    pattern = start(env, ["true"], wait=True)
    runs = env["HOLDFAST_RUNS"]
    for number in range(RUNS - 11):
        copy = f"{pattern[:-4]}{number:04x}"
        shutil.copytree(f"{runs}/{pattern}", f"{runs}/{copy}", symlinks=True)
        for name in ("run.json", f"attempts/1/{wire.STATE}", f"attempts/1/{wire.MANIFEST}"):
            place = f"{runs}/{copy}/{name}"
            with open(place, encoding="utf-8") as file:
                text = file.read()
            with open(place, "w", encoding="utf-8") as file:
                file.write(text.replace(pattern, copy))
    for _ in range(10):
        start(env, [sys.executable, "-c", "import time; time.sleep(600)"])
    ticks = [call([*HOLDFAST, "patrol", "--json"], env) for _ in range(ROUNDS)]
    call([*HOLDFAST, "ls", "--json"], env)
    for entry in json.loads(
        subprocess.run(
            [*HOLDFAST, "ls", "--json", "--state", "running"], env=env, capture_output=True, text=True, check=False
        ).stdout
        or '{"runs": []}'
    )["runs"]:
        call([*HOLDFAST, "stop", "--now", entry["run_id"]], env)
    return {
        "patrol of 200 runs, CPU s": {"p50": round(statistics.median(tick.cpu_s for tick in ticks), 3), "n": ROUNDS},
        "patrol of 200 runs, wall s": {"p50": round(statistics.median(tick.wall_s for tick in ticks), 3), "n": ROUNDS},
    }


def measure_sampling(directory: str) -> dict[str, Row]:
    """What the supervisor spends on samples: at one a second against one in an hour, brought to the default of 30 s."""
    os.makedirs(directory)
    env = environment(directory)
    used = {}
    for name, every in (("fast", "1s"), ("never", "1h")):
        run_id = start(env, [sys.executable, "-c", "import time; time.sleep(600)"], "--health-every", every)
        state = f"{env['HOLDFAST_RUNS']}/{run_id}/attempts/1/{wire.STATE}"
        time.sleep(5)
        with open(state, encoding="utf-8") as file:
            pid = json.loads(file.read())["supervisor"]["pid"]
        before, began = read_cpu(pid), time.monotonic()
        time.sleep(30)
        used[name] = (read_cpu(pid) - before) / (time.monotonic() - began)
        call([*HOLDFAST, "stop", "--now", run_id], env)
    per_sample_s = max(used["fast"] - used["never"], 0.0)
    share = (used["never"] + per_sample_s / 30) * 100
    return {
        "sampling, % of a core": {"p50": round(share, 4), "n": 30},
        "one sample, CPU ms": {"p50": round(per_sample_s * 1e3, 3), "n": 30},
    }


def read_cpu(pid: int) -> float:
    """CPU seconds of a process and of its waited-for children. Source: proc_pid_stat(5), fields 14 to 17."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    return sum(int(field) for field in fields[11:15]) / os.sysconf("SC_CLK_TCK")


def environment(directory: str) -> dict[str, str]:
    """A home of its own for the program that is measured."""
    names = {"HOLDFAST_RUNS": "runs", "HOLDFAST_LEASE_DIR": "leases", "XDG_STATE_HOME": "state", "HOME": "home"}
    for name in names.values():
        os.makedirs(f"{directory}/{name}", exist_ok=True)
    own = {key: f"{directory}/{name}" for key, name in names.items()}
    return {**os.environ, **own, "PYTHONPATH": f"{ROOT}/src"}


def start(env: Mapping[str, str], command: list[str], *options: str, wait: bool = False) -> str:
    """Start a run; its id. With `wait` it has ended."""
    words = [*HOLDFAST, "run", *([] if wait else ["-d"]), "--json", *options, "--", *command]
    done = subprocess.run(words, env=dict(env), capture_output=True, text=True, check=True)
    run_id = str(json.loads(done.stdout)["run_id"])
    state = f"{env['HOLDFAST_RUNS']}/{run_id}/attempts/1/{wire.STATE}"

    def reached() -> bool:
        with open(state, encoding="utf-8") as file:
            return bool(json.loads(file.read())["state"]["kind"] == ("ended" if wait else "running"))

    wait_until(reached, 20, f"{run_id} got there")
    return run_id


def render(record: Mapping[str, Any]) -> str:
    """The table, in Markdown."""
    machine = record["machine"]
    box = f"{machine['cpu']}, {machine['cores']} cores"
    head = f"{record['date']}, `{record['command']}`, commit {record['commit']}; {box}."
    lines = [head, "", "| what | median | target | |", "|---|---|---|---|"]
    for name, row in record["results"].items():
        value, limit = row.get("p50"), LIMITS.get(name)
        shown = row.get("note") if value is None else f"{value:g}"
        verdict = "" if limit is None or value is None else "met" if float(value) <= limit else "MISSED"
        lines.append(f"| {name.strip()} | {shown} | {'' if limit is None else f'<= {limit:g}'} | {verdict} |")
    return "\n".join(lines)


def write_document(part: str) -> None:
    """Put the table into its place in docs/benchmarks.md."""
    with open(DOCUMENT, encoding="utf-8") as file:
        text = file.read()
    head, _, rest = text.partition(BEGIN)
    tail = rest.partition(END)[2]
    with open(DOCUMENT, "w", encoding="utf-8") as file:
        file.write(f"{head}{BEGIN}\n\n{part}\n\n{END}{tail}")


PARTS: dict[str, Callable[[str], dict[str, Row]]] = {
    "verdicts": measure_verdicts,
    "log": measure_log,
    "live": measure_live,
    "patrol": measure_patrol,
    "sampling": measure_sampling,
}

if __name__ == "__main__":
    sys.exit(main())
