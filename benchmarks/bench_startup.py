"""What the commands cost that hardly do anything: ``--version``, ``--help``, a list of 1,000 runs, a look at one.

The runs are copies of one real, ended run, each under an identifier of its own. `ls` is measured with the index that an
earlier `ls` left (warm) and without it (cold: every run's files are read, and the index is written anew).
"""

from __future__ import annotations

import os
import random
import shutil
import sys
from typing import TYPE_CHECKING

from benchmarks.measuring import CannotMeasure, Samples, call, must, wait_until
from benchmarks.ours import HOLDFAST, Holdfast
from benchmarks.peers import Place, find

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.measuring import Row

COLD = "holdfast ls, 1,000 runs, no index"


def measure(directory: str, nvml: Mapping[str, str], *, rounds: int, runs: int, peers: bool) -> dict[str, Row]:
    """Median CPU and wall time of each command over `rounds`, one after another in an order that changes."""
    ours = Holdfast(Place(f"{directory}/holdfast"))
    _make_runs(ours, runs)
    must([HOLDFAST, "submit", "--wait", "--", "true"], ours.environ, ours.place.directory)
    place = Place(f"{directory}/peers", nvml)
    commands: dict[str, tuple[list[str], dict[str, str]]] = {
        "python -c pass": ([sys.executable, "-c", "pass"], place.environ),
        "python -I -S -c pass": ([sys.executable, "-I", "-S", "-c", "pass"], place.environ),
        "holdfast --version": ([HOLDFAST, "--version"], ours.environ),
        "holdfast --help": ([HOLDFAST, "--help"], ours.environ),
        "holdfast run --help": ([HOLDFAST, "run", "--help"], ours.environ),
        "holdfast ls, 1,000 runs": ([HOLDFAST, "ls"], ours.environ),
        "holdfast ls --all, 1,000 runs": ([HOLDFAST, "ls", "--all"], ours.environ),
        COLD: ([HOLDFAST, "ls"], ours.environ),
        "holdfast stop, ended run": ([HOLDFAST, "stop", ours.run_ids[0]], ours.environ),
        "holdfast show": ([HOLDFAST, "show", ours.run_ids[0]], ours.environ),
        "holdfast queue": ([HOLDFAST, "queue"], ours.environ),
    }
    found: dict[str, Row] = {}
    if peers:
        commands |= _peer_commands(place, found)
    samples = {name: Samples() for name in commands}
    for number in range(rounds + 1):
        for name in random.sample(list(commands), len(commands)):
            if not samples[name].note:
                _take(name, *commands[name], ours, samples[name], keep=number > 0)
    ours.finish()
    return {name: sample.row() for name, sample in samples.items()} | found


def _take(name: str, argv: list[str], environ: dict[str, str], ours: Holdfast, samples: Samples, *, keep: bool) -> None:
    """One call; the first round (`keep` false) only warms the caches and checks that the command works."""
    if name == COLD:
        shutil.rmtree(f"{ours.environ['XDG_STATE_HOME']}/holdfast", ignore_errors=True)
    try:
        done = call(argv, environ) if keep else must(argv, environ, ours.place.directory)
    except CannotMeasure as problem:
        samples.note = str(problem)
        return
    if keep:
        samples.wall_s.append(done.wall_s)
        samples.cpu_s.append(done.cpu_s)


def _peer_commands(place: Place, absent: dict[str, Row]) -> dict[str, tuple[list[str], dict[str, str]]]:
    spooler = {**place.environ, "TS_SOCKET": f"{place.directory}/socket"}
    wanted = {
        "gq --version": ("gq-local", ["gq", "--version"], place.environ),
        "gpu-gate status": ("gpu-gate", ["gpu-gate", "status"], place.environ),
        "reslock status": ("reslock", ["reslock", "status"], place.environ),
        "job --help (jobd)": ("jobd", ["job", "--help"], place.environ),
        "gqueue --version (gflow)": ("runqd", ["gqueue", "--version"], place.environ),
        "tsp -V (task-spooler)": ("task-spooler", ["tsp", "-V"], spooler),
    }
    commands = {}
    for name, (peer, argv, environ) in wanted.items():
        try:
            commands[name] = ([find(peer, argv[0]), *argv[1:]], environ)
        except CannotMeasure as problem:
            absent[name] = {"note": str(problem)}
    return commands


def _make_runs(ours: Holdfast, count: int) -> None:
    """`count` ended runs: one real one and its copies, with their own identifiers in every file."""
    ours.submit(["/bin/true"], cards=0)
    first = ours.run_ids[0]
    wait_until(lambda: ours.has_ended(first), 30, f"{first} to end")
    head, _, tail = first.rpartition("-")
    digits = int(tail, 16)
    contents: dict[str, bytes] = {}
    directories = []
    root = f"{ours.runs}/{first}"
    for path, names, files in os.walk(root):
        directories += [os.path.relpath(f"{path}/{name}", root) for name in names]
        for name in files:
            with open(f"{path}/{name}", "rb") as file:
                contents[os.path.relpath(f"{path}/{name}", root)] = file.read()
    for number in range(1, count):
        run_id = f"{head}-{(digits + number) % 0x10000:04x}"
        os.mkdir(f"{ours.runs}/{run_id}", 0o700)
        for name in directories:
            os.mkdir(f"{ours.runs}/{run_id}/{name}", 0o700)
        for name, data in contents.items():
            with open(f"{ours.runs}/{run_id}/{name}", "wb") as file:
                file.write(data.replace(first.encode(), run_id.encode()))
