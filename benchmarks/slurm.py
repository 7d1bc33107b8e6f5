"""Runs at a Slurm beside sbatch by hand, submitit and PSI/J: taken, ended, looked at, warned.

    python benchmarks/slurm.py            a private Slurm and sshd on loopback; needs root and Debian's Slurm
    python benchmarks/slurm.py --quick    fewer rounds; to see that it works, not for quoting
    python benchmarks/slurm.py --docs     also write the table into docs/benchmarks.md

All is measured in one run, in turn, on the tests' own Slurm (`tests.slurm.cluster`): it plans every two seconds and
lets a job begin again after five, which a site takes 30 and 120 seconds for. Its own part of a wait is shown apart.
Commands of Slurm are counted by programs of their names, which come first on the PATH.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path[0] = ROOT

from benchmarks.measuring import percentile  # noqa: E402
from benchmarks.peers import cache_directory  # noqa: E402
from tests.slurm.cluster import Slurm  # noqa: E402
from tests.slurm.lab import Lab  # noqa: E402
from tests.slurm.preempted import BrokenOff, list_waits  # noqa: E402
from tests.sshd import Sshd  # noqa: E402
from tests.waiting import wait_until  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DOCUMENT = f"{ROOT}/docs/benchmarks.md"
BEGIN = "<!-- slurm: begin (benchmarks/slurm.py --docs writes this part) -->"
END = "<!-- slurm: end -->"
PEERS = {"submitit": "submitit==1.5.4", "psij": "psij-python==0.9.11"}
PEERS_AT = cache_directory()
COMMANDS = ("sbatch", "squeue", "scontrol", "scancel", "sacct", "sinfo")
ROUNDS, QUICK_ROUNDS, END_ROUNDS, WARNINGS = 15, 2, 5, 5
JOBS, QUICK_JOBS = 1000, 50
SHARED = ("-o", "ControlMaster=auto", "-o", "ControlPersist=60", "-o")


class Bench:
    """A desk with the places `lab` (typed on the login node) and `far` (through ssh), and the peers beside it."""

    def __init__(self, directory: str, slurm: Slurm, sshd: Sshd) -> None:
        """Configure them."""
        self.directory, self.slurm, self.sshd = Path(directory), slurm, sshd
        foreign = ("HOLDFAST", "XDG", "PYTHON", "SLURM")
        for name in [name for name in os.environ if name.startswith(foreign)]:
            del os.environ[name]
        os.environ |= {"HOLDFAST_SSH": str(sshd.program), "SLURM_CONF": str(slurm.conf)}
        for name in ("HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR", "TMPDIR"):
            path = self.directory / name.lower()
            path.mkdir(mode=0o700)
            os.environ[name] = str(path)
        self.calls = self.directory / "calls"
        self._count_calls()
        self.lab = Lab(slurm, self.directory)
        home = sshd.home("box")
        (home / ".ssh").mkdir(exist_ok=True)
        (home / ".ssh" / "environment").write_text(f"SLURM_CONF={slurm.conf}\n")
        for path in (home / ".ssh", home / ".ssh" / "environment"):
            os.chown(path, sshd.users["box"], sshd.users["box"])
        self.lab("place", "add", "far", sshd.alias("box"), "--kind", "slurm", "--root", f"{home}/runs")
        self.script = self.directory / "job.sh"
        self.script.write_text("#!/bin/sh\ntrue\n")

    def _count_calls(self) -> None:
        directory = self.directory / "bin"
        directory.mkdir()
        for name in COMMANDS:
            real = shutil.which(name)
            if real is not None:
                text = f'#!/bin/sh\necho "{name} $1" >> {self.calls}\nexec {real} "$@"\n'
                (directory / name).write_text(text)
                (directory / name).chmod(0o755)
        self.counting = f"{directory}:{os.environ['PATH']}"

    @contextlib.contextmanager
    def counted(self) -> Iterator[list[str]]:
        """The commands of Slurm that are called meanwhile on this machine, each by its name."""
        found: list[str] = []
        self.calls.write_text("")
        before = os.environ["PATH"]
        os.environ["PATH"] = self.counting
        try:
            yield found
        finally:
            os.environ["PATH"] = before
            found += self.calls.read_text().split("\n")[:-1]

    def peer(self, *words: str) -> list[str]:
        """The command line of a peer's program (`peers_slurm`), in a folder of its own."""
        folder = tempfile.mkdtemp(dir=self.directory)
        python = f"{PEERS_AT}/{words[0]}/bin/python"
        return [python, f"{ROOT}/benchmarks/peers_slurm.py", *words[:2], folder, *words[2:]]

    def clear(self) -> None:
        """Leave no job in the queue."""
        self.slurm.call("scancel", "--state=PENDING", "--user=root,box", code=None)


def install_peers() -> dict[str, str]:
    """Have the peers in environments of their own; of those that are not, why."""
    missing = {}
    for name, version in PEERS.items():
        place = f"{PEERS_AT}/{name}"
        if os.path.exists(f"{place}/{version}"):
            continue
        pip = [f"{place}/bin/python", "-m", "pip", "install", "--quiet", "--only-binary", ":all:", version]
        try:
            subprocess.run([sys.executable, "-m", "venv", "--clear", place], check=True, capture_output=True)
            subprocess.run(pip, check=True, capture_output=True)
            Path(place, version).touch()
        except (OSError, subprocess.CalledProcessError) as error:
            missing[name] = str(error)[:200]
    return missing


def call(*words: str) -> str:
    """Run a command; what it prints.

    Raises:
        RuntimeError: it failed; says what it said.
    """
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(words)[:200]}: {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout


# ------------------------------------------------------------------------------------------------------------- measured


def measure_taken(bench: Bench, rounds: int, missing: dict[str, str]) -> dict[str, list[tuple[float, float]]]:
    """Until a job is taken, as (wall, CPU of this machine's commands) in seconds."""
    ssh, socket = str(bench.sshd.program), f"ControlPath={bench.sshd.root}/by-hand.socket"
    host = bench.sshd.alias("box")
    shared = (ssh, *SHARED, socket, host)
    ways: dict[str, Callable[[], object]] = {
        "`sbatch`, on the login node": lambda: call("sbatch", "--parsable", "--output=/dev/null", str(bench.script)),
        "`holdfast run -d --on`, on the login node": lambda: bench.lab("run", "-d", "--on", "lab", "--", "true"),
        "submitit, on the login node": lambda: call(*bench.peer("submitit", "submit", "-")),
        "PSI/J, on the login node": lambda: call(*bench.peer("psij", "submit", "-")),
        "`ssh host sbatch`, an open connection": lambda: call(*shared, "sbatch --parsable -o /dev/null --wrap true"),
        "`holdfast run -d --on`, through ssh": lambda: bench.lab("run", "-d", "--on", "far", "--", "true"),
    }
    ways = {name: way for name, way in ways.items() if not any(_names(name, one) for one in missing)}
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, way in ways.items():
            before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
            way()
            wall_s, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
            if number:  # the first makes connections and writes byte code
                found[name].append((wall_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime))
        bench.clear()
    call(ssh, "-o", socket, "-O", "exit", host)
    return found


def _names(row: str, peer: str) -> bool:
    return row.startswith({"psij": "PSI/J"}.get(peer, peer))


def count_submit(bench: Bench) -> list[str]:
    """The commands of Slurm for one submit."""
    with bench.counted() as calls:
        bench.lab("run", "-d", "--on", "lab", "--", "true")
    bench.clear()
    return calls


def measure_end(bench: Bench, rounds: int, missing: dict[str, str]) -> dict[str, list[float]]:
    """Seconds from a job's last act until its end is seen by whoever waits for it."""
    found: dict[str, list[float]] = {"`holdfast wait`": []}
    for number in range(rounds):
        mark = bench.directory / f"end-{number}"
        name = bench.lab("run", "-d", "--on", "lab", "--", "sh", "-c", f"sleep 3; date +%s.%N > {mark}").stdout.strip()
        bench.lab("wait", name)
        found["`holdfast wait`"].append(time.time() - float(mark.read_text()))
        for who in PEERS:
            if who not in missing:
                mark = bench.directory / f"end-{who}-{number}"
                seen = float(call(*bench.peer(who, "end", str(mark))).split()[-1])
                row = {"psij": "PSI/J", "submitit": "submitit"}[who]
                found.setdefault(row, []).append(seen - float(mark.read_text()))
    return found


def count_look(bench: Bench, jobs: int, missing: dict[str, str]) -> dict[str, list[str]]:
    """The commands of Slurm for one look at so many jobs that wait."""
    found: dict[str, list[str]] = {}
    cells = bench.lab.code / "cells.csv"
    cells.write_text("\n".join(["x", *map(str, range(jobs))]) + "\n")
    words = ("--on", "lab", "--slurm", "begin=now+1hour", "--csv", str(cells), "--", "echo", "{x}")
    bench.lab("sweep", "submit", *words)
    with bench.counted() as found["`holdfast ls --on`"]:
        bench.lab("ls", "--on", "lab")
    bench.clear()
    for who in PEERS:
        if who in missing:
            continue
        command = bench.peer(who, "look", str(jobs))
        with bench.counted() as calls, subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if line == "looking\n":
                    bench.calls.write_text("")
                elif line == "looked\n":
                    break
        found[{"psij": "PSI/J, in 35 s", "submitit": "submitit, `state` of each"}[who]] = calls
        bench.clear()
    return found


def measure_warned(bench: Bench, rounds: int) -> dict[str, list[float]]:
    """From the end on record of a warned attempt to the first step of the next: our part and Slurm's."""
    training = BrokenOff(bench.lab)
    for number in range(1, rounds + 1):
        wait_until(lambda at=number: training.read_steps(at), 150, what=f"attempt {number} counts")  # type: ignore[misc]
        bench.slurm.call("scancel", "--batch", "--signal=USR1", training.run.job)
    wait_until(lambda: training.read_steps(rounds + 1), 150, what="the last attempt counts")
    training.finish()
    waits = list_waits(bench.slurm, training)
    return {
        "our own: exit record to requeue, Slurm's start to the next step": [
            w.to_requeue_s + w.to_step_s for w in waits
        ],
        "Slurm's: requeue to its start": [w.of_slurm_s for w in waits],
    }


# --------------------------------------------------------------------------------------------------------------- shown


def _tell(values: list[float]) -> str:
    return f"{percentile(values, 0.5):.2f} ({percentile(values, 0.95):.2f}) | {min(values):.2f}"


def _sum_up(calls: list[str]) -> str:
    names = [one.split()[0] for one in calls]
    return ", ".join(f"{names.count(name)} {name}" for name in dict.fromkeys(names)) or "none"


def write_docs(table: str) -> None:
    """Put the table into its place of the document, or at the end of it."""
    document = Path(DOCUMENT).read_text(encoding="utf-8")
    part = f"{BEGIN}\n{table}\n{END}"
    if BEGIN in document:
        head, rest = document.split(BEGIN, 1)
        document = head + part + rest.split(END, 1)[1]
    else:
        document = (
            f"{document.rstrip()}\n\n## Runs at a Slurm\n\n`python benchmarks/slurm.py --docs`, as root.\n\n{part}\n"
        )
    Path(DOCUMENT).write_text(document, encoding="utf-8")


def measure(bench: Bench, *, quick: bool, missing: dict[str, str]) -> str:
    """All of it, as a table."""
    rounds, jobs = (QUICK_ROUNDS, QUICK_JOBS) if quick else (ROUNDS, JOBS)
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    lines = [
        f"Private Slurm 22.05 and sshd on loopback, {rounds} rounds in turn, {os.cpu_count()} cores, load {load},",
        f"{time.strftime('%Y-%m-%d', time.gmtime())}. Seconds, median (95th percentile).",
        *(f"{name} could not be installed: {why}" for name, why in missing.items()),
        "",
        "| until a job is taken | seconds | least | CPU here |",
        "|---|---|---|---|",
    ]
    for name, samples in measure_taken(bench, rounds, missing).items():
        cpu_s = percentile([cpu for _, cpu in samples], 0.5)
        lines.append(f"| {name} | {_tell([wall for wall, _ in samples])} | {cpu_s:.2f} |")
    lines += ["", f"Commands of Slurm for one submit: {_sum_up(count_submit(bench))}.", ""]
    lines += ["| end of a job seen, after its last act | seconds | least |", "|---|---|---|"]
    ends = measure_end(bench, QUICK_ROUNDS if quick else END_ROUNDS, missing)
    lines += [f"| {name} | {_tell(values)} |" for name, values in ends.items()]
    lines += ["", f"| one look at {jobs:,} jobs | commands of Slurm |", "|---|---|"]
    lines += [f"| {name} | {_sum_up(calls)} |" for name, calls in count_look(bench, jobs, missing).items()]
    lines += ["", "| warned, until the next attempt's first step | seconds | least |", "|---|---|---|"]
    warned = measure_warned(bench, 1 if quick else WARNINGS)
    lines += [f"| {name} | {_tell(values)} |" for name, values in warned.items()]
    return "\n".join(lines)


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds, not for quoting")
    parser.add_argument("--docs", action="store_true", help="write the table into docs/benchmarks.md")
    options = parser.parse_args()
    missing = install_peers()
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="hf-bench-"))
        sshd = stack.enter_context(Sshd.started(options="PermitUserEnvironment yes"))
        slurm = stack.enter_context(Slurm.started(accounts=sshd.root / "etc"))
        table = measure(Bench(directory, slurm, sshd), quick=options.quick, missing=missing)
    print(table)
    if options.docs:
        write_docs(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
