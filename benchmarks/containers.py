"""The start of a job in a container, beside the same image started by hand with Podman and Docker.

    python benchmarks/containers.py            a private dockerd and a private store of Podman; needs root
    python benchmarks/containers.py --quick    fewer rounds; to see that it works, not for quoting
    python benchmarks/containers.py --docs     also write the table into docs/benchmarks.md

By hand is what people type: ``podman run --rm --init --network host -v ... IMAGE python3 ...``. It checks nothing, and
records and leases nothing. All is measured in one run, in turn, with the tests' own image and runtimes
(`tests.runtimes`). The job writes the time of its first line: inside and outside is one clock. A run of ours without an
image stands beside it: what it takes is the price of a run, and only what is beyond that is the container's.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path[0] = ROOT

import pytest  # noqa: E402

from benchmarks.measuring import percentile  # noqa: E402
from tests.runtimes import make_docker_place, make_images, open_daemon, open_docker, open_podman  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.runtimes import Engine

DOCUMENT = f"{ROOT}/docs/benchmarks.md"
BEGIN = "<!-- containers: begin (benchmarks/containers.py --docs writes this part) -->"
END = "<!-- containers: end -->"
ROUNDS, QUICK_ROUNDS = 15, 2
TARGET_MS = 150.0
FIRST_LINE = "import sys, time; open(sys.argv[1], 'w').write(str(time.time()))"
"""The trainer: its first line is when it was reached."""
STEPS = {"preflight": "checks", "starting": "create", "container_created": "start to first line"}
"""The events of a start, each with what is done from it to the next."""


class Bench:
    """A home of its own, in which holdfast and the runtimes work."""

    def __init__(self, directory: str) -> None:
        """Make it; `runs` lie on a short path."""
        self.directory = Path(directory)
        foreign = ("HOLDFAST", "XDG", "PYTHON", "DOCKER", "CONTAINER")
        self.environ = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        for name in ("HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR", "TMPDIR"):
            path = self.directory / name.lower()
            path.mkdir(mode=0o700)
            self.environ[name] = str(path)
        self.runs, self.work = self.directory / "runs", self.directory / "work"
        self.work.mkdir()
        self.environ |= {"HOLDFAST_RUNS": str(self.runs), "HOLDFAST_LEASE_DIR": str(self.directory / "leases")}
        if "PYTHONPATH" in os.environ:
            self.environ["PYTHONPATH"] = os.environ["PYTHONPATH"]

    def call(self, *words: str, more: dict[str, str] | None = None) -> str:
        """Run a command in the work directory; what it prints.

        Raises:
            RuntimeError: it failed; says what it said.
        """
        done = subprocess.run(
            words,
            cwd=self.work,
            env={**self.environ, **(more or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(words)[:200]}: {done.returncode}: {done.stderr[-2000:]}")
        return done.stdout

    def by_hand(self, engine: Engine) -> dict[str, float]:
        """Seconds from the command to the first line."""
        mark = self.work / "by-hand"
        mark.unlink(missing_ok=True)
        words = ("run", "--rm", "--init", "--network=host", "--pull=never", f"--volume={self.work}:{self.work}")
        limits = ("--ulimit=nofile=1024:1024", "--ulimit=nproc=4096:4096") if engine.name == "podman" else ()
        user = f"--user={os.getuid()}:{os.getgid()}"
        began = time.time()
        job = ("python3", "-c", FIRST_LINE, str(mark))
        self.call(engine.name, *words, *limits, user, engine.tag, *job, more=engine.environ)
        return {"command": float(mark.read_text()) - began}

    def ours(self, engine: Engine | None) -> dict[str, float]:
        """Seconds from the command, and from the decision, to the first line; and until the command came back."""
        mark = self.work / "ours"
        mark.unlink(missing_ok=True)
        image = () if engine is None else ("--image", engine.image, "--runtime", engine.name)
        words = (sys.executable, "-m", "holdfast", "run", "-d", "--prove", "0", *image, "--")
        began = time.time()
        job = ("python3", "-c", FIRST_LINE, str(mark))
        said = self.call(*words, *job, more={} if engine is None else engine.environ)
        returned = time.time()
        run = said.split()[0]
        self.call(sys.executable, "-m", "holdfast", "wait", run, more={} if engine is None else engine.environ)
        first = float(mark.read_text())
        events = read_events(self.runs / run)
        steps: dict[str, float] = {}
        if engine is not None:
            times = [*(events[name] for name in STEPS), first]
            steps = {
                step: after - before
                for step, (before, after) in zip(STEPS.values(), itertools.pairwise(times), strict=True)
            }
        return {
            "command": first - began,
            "decision": first - events["starting"],
            "returned": returned - began,
            **steps,
        }


def read_events(run: Path) -> dict[str, float]:
    """When each event of the first attempt was, in seconds since the epoch."""
    found: dict[str, float] = {}
    for line in (run / "attempts" / "1" / "events.jsonl").read_text().splitlines():
        event = json.loads(line)
        found[event["event"]] = datetime.fromisoformat(event["utc"].replace("Z", "+00:00")).timestamp()
    return found


def measure(directory: str, rounds: int) -> dict[str, list[dict[str, float]]]:
    """Every way in turn, round after round."""
    bench = Bench(directory)
    tars = make_images(bench.directory)
    with contextlib.ExitStack() as stack:
        engines = [stack.enter_context(open_podman(tars, "overlay"))]
        place = stack.enter_context(make_docker_place())
        daemon = stack.enter_context(open_daemon(place, "overlay2"))
        engines.append(stack.enter_context(open_docker(daemon, tars)))
        ways: dict[str, Callable[[], dict[str, float]]] = {"holdfast run -d, no image": lambda: bench.ours(None)}
        for engine in engines:
            ways[f"{engine.name} run"] = lambda engine=engine: bench.by_hand(engine)  # type: ignore[misc]
            ways[f"holdfast run -d, {engine.name}"] = lambda engine=engine: bench.ours(engine)  # type: ignore[misc]
        found: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
        for number in range(rounds + 1):
            for name, way in ways.items():
                sample = way()
                if number:  # the first writes byte code and fills caches
                    found[name].append(sample)
        return found


def list_ms(samples: list[dict[str, float]], key: str) -> list[float]:
    """One figure of all rounds, in milliseconds."""
    return [sample[key] * 1e3 for sample in samples if key in sample]


def format_table(found: dict[str, list[dict[str, float]]], rounds: int) -> str:
    """The table, with the targets."""
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    date = time.strftime("%Y-%m-%d", time.gmtime())
    versions = ", ".join(" ".join(read_version(name).split()[:3]) for name in ("podman", "docker"))
    lines = [
        f"{rounds} rounds in turn, {versions}, image stores overlay, {os.cpu_count()} cores, load {load}, {date}.",
        "Milliseconds, median (95th percentile), least.",
        "",
        "| what | command to first line | least | decision to first line | beyond by hand | target |",
        "|---|---|---|---|---|---|",
    ]
    for name, samples in found.items():
        cells = [format_cell(samples, "command"), f"{min(list_ms(samples, 'command')):.0f}"]
        cells.append(format_cell(samples, "decision"))
        by_hand = found.get(f"{name.rpartition(' ')[2]} run")
        if by_hand is None:
            lines.append(f"| {name} | {' | '.join(cells)} | | beside it |")
            continue
        floor = percentile(list_ms(by_hand, "command"), 0.5)
        beyond = {key: percentile(list_ms(samples, key), 0.5) - floor for key in ("command", "decision")}
        told = {key: "met" if value <= TARGET_MS else "**missed**" for key, value in beyond.items()}
        words = f"{beyond['decision']:+.0f}; from the command {beyond['command']:+.0f}"
        target = f"<= +{TARGET_MS:.0f}: {told['decision']}; from the command {told['command']}"
        lines.append(f"| {name} | {' | '.join(cells)} | {words} | {target} |")
    lines += ["", f"| of it | {' | '.join(STEPS.values())} |", f"|---|{'---|' * len(STEPS)}"]
    for name, samples in found.items():
        if list_ms(samples, "create"):
            lines.append(f"| {name} | {' | '.join(format_cell(samples, step) for step in STEPS.values())} |")
    return "\n".join(lines)


def format_cell(samples: list[dict[str, float]], key: str) -> str:
    """Median and 95th percentile; nothing where it was not measured."""
    values = list_ms(samples, key)
    return f"{percentile(values, 0.5):.0f} ({percentile(values, 0.95):.0f})" if values else ""


def read_version(name: str) -> str:
    """What a runtime's client says of its version."""
    done = subprocess.run([name, "--version"], capture_output=True, text=True, check=False)
    return done.stdout.strip().replace(",", "")


def write_docs(table: str) -> None:
    """Put the table into its place of the document."""
    with open(DOCUMENT, encoding="utf-8") as file:
        document = file.read()
    head, rest = document.split(BEGIN, 1)
    with open(DOCUMENT, "w", encoding="utf-8") as file:
        file.write(f"{head}{BEGIN}\n{table}\n{END}{rest.split(END, 1)[1]}")


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds, not for quoting")
    parser.add_argument("--docs", action="store_true", help="write the table into docs/benchmarks.md")
    options = parser.parse_args()
    rounds = QUICK_ROUNDS if options.quick else ROUNDS
    try:
        with tempfile.TemporaryDirectory(prefix="hf-bench-") as directory:
            table = format_table(measure(directory, rounds), rounds)
    except pytest.skip.Exception as problem:
        parser.error(str(problem))
    print(table)
    if options.docs:
        write_docs(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
