"""The peers: what they are, how they are installed for a benchmark, and how each is asked to run a job.

They are installed beside each other under `cache_directory` (each PyPI peer in a virtual environment of its own at the
version named here, the Debian ones unpacked from their packages without being installed), never into the machine. One
that cannot be installed or does not run is reported with what was seen, never guessed.

Each works in a home of its own, so nothing of the user's is touched and no queue that somebody uses is joined.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from benchmarks.measuring import CannotMeasure, call, must, spawn, wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

VERSIONS = {
    "runqd": "0.4.18",  # gflow
    "gq-local": "0.3.0",
    "gpu-gate": "0.2.0",
    "simple-gpu-scheduler": "0.1.4",
    "reslock": "0.12.3",
    "jobd": "0.5.52",
}
DEBIAN = {"task-spooler": "tsp", "nq": "nq"}
INSTALL_TIMEOUT_S = 300


def cache_directory() -> str:
    """Where the peers are kept between runs of the benchmarks."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return f"{base}/holdfast-bench/peers"


def install() -> dict[str, str]:
    """Install what is missing; answers for each peer that is not there why."""
    os.makedirs(cache_directory(), exist_ok=True)
    missing = {}
    for name, version in VERSIONS.items():
        if reason := _install_wheel(name, version):
            missing[name] = reason
    for package, command in DEBIAN.items():
        if reason := _unpack_debian(package, command):
            missing[package] = reason
    return missing


def _install_wheel(name: str, version: str) -> str:
    place = f"{cache_directory()}/{name}"
    done = f"{place}/installed-{version}"
    if os.path.exists(done):
        return ""
    shutil.rmtree(place, ignore_errors=True)
    try:
        subprocess.run(
            [sys.executable, "-m", "venv", place], check=True, capture_output=True, timeout=INSTALL_TIMEOUT_S
        )
        pip = [f"{place}/bin/python", "-m", "pip", "--disable-pip-version-check", "--no-input", "install", "--quiet"]
        argv = [*pip, "--only-binary", ":all:", f"{name}=={version}"]
        subprocess.run(argv, check=True, capture_output=True, timeout=INSTALL_TIMEOUT_S)
    except (OSError, subprocess.SubprocessError) as error:
        return f"does not install: {_last_words(error)}"
    with open(done, "w", encoding="utf-8"):
        return ""


def _unpack_debian(package: str, command: str) -> str:
    if shutil.which(command) or os.path.exists(f"{cache_directory()}/apt/usr/bin/{command}"):
        return ""
    fetched = f"{cache_directory()}/deb"
    os.makedirs(fetched, exist_ok=True)
    try:
        subprocess.run(
            ["apt-get", "download", package], cwd=fetched, check=True, capture_output=True, timeout=INSTALL_TIMEOUT_S
        )
        archive = next(name for name in sorted(os.listdir(fetched)) if name.startswith(f"{package}_"))
        unpack = ["dpkg-deb", "-x", f"{fetched}/{archive}", f"{cache_directory()}/apt"]
        subprocess.run(unpack, check=True, capture_output=True, timeout=INSTALL_TIMEOUT_S)
    except (OSError, StopIteration, subprocess.SubprocessError) as error:
        return f"cannot be unpacked: {_last_words(error)}"
    return ""


def _last_words(error: BaseException) -> str:
    said = getattr(error, "stderr", None) or b""
    return (said.decode("utf-8", "replace").strip().splitlines() or [repr(error)])[-1][:200]


def find(peer: str, command: str) -> str:
    """The path of a peer's command. Raises: CannotMeasure."""
    for path in (f"{cache_directory()}/{peer}/bin/{command}", f"{cache_directory()}/apt/usr/bin/{command}"):
        if os.path.exists(path):
            return path
    found = shutil.which(command)
    if found is None:
        raise CannotMeasure("not installed")
    return found


@dataclass(slots=True)
class Place:
    """A home for one peer (or for us) in one benchmark: a directory, and an environment that keeps it in there.

    `nvml` is what a process needs to see the fake cards; empty: no library.
    """

    directory: str
    nvml: Mapping[str, str] = field(default_factory=dict)

    @property
    def environ(self) -> dict[str, str]:
        """The environment of every command of this peer."""
        home = self.directory
        os.makedirs(f"{home}/run", mode=0o700, exist_ok=True)
        names = {"config": "CONFIG", "data": "DATA", "state": "STATE", "cache": "CACHE"}
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "LANG": "C.UTF-8",
            "USER": "bench",
            "HOME": home,
            "XDG_RUNTIME_DIR": f"{home}/run",
            "TMPDIR": home,
            **{f"XDG_{name}_HOME": f"{home}/{directory}" for directory, name in names.items()},
            **self.nvml,
        }


class Queue:
    """A queue for one card: what every peer (and we) can be asked for in a benchmark.

    `submit` may block until the job is accepted, not until it ran. Raises: CannotMeasure everywhere.
    """

    name = ""
    stops_jobs = True
    spacing_s = 0.0
    """How far apart jobs must be handed in, where a peer cannot take them all at once."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.environ = place.environ

    def begin(self) -> None:
        """Start what must run before the first job."""

    def submit(self, argv: Sequence[str], *, cards: int) -> None:
        """Hand in a job that needs `cards` cards (0 or 1)."""
        raise NotImplementedError

    def stop_job(self) -> None:
        """Ask for the end of the job that was handed in last, and wait as long as the command waits."""
        raise NotImplementedError

    def finish(self) -> None:
        """End what `begin` or `submit` started; what is left is killed by the caller."""

    def run(self, *argv: str) -> str:
        """Run one of its commands; answers what it printed."""
        return must(argv, self.environ, self.place.directory).output


class TaskSpooler(Queue):
    """task-spooler: a server in memory, one process waiting for each job."""

    name = "task-spooler"

    def begin(self) -> None:
        """Set its socket; the server comes with the first job."""
        self.tsp = find("task-spooler", "tsp")
        self.environ["TS_SOCKET"] = f"{self.place.directory}/socket"
        self.run(self.tsp, "-S", "1")

    def submit(self, argv: Sequence[str], *, cards: int) -> None:
        """Add a job; it knows no cards, its one slot stands for one."""
        _ = cards
        self.run(self.tsp, "-n", *argv)

    def stop_job(self) -> None:
        """TERM to the process group of the last job."""
        self.run(self.tsp, "-k")

    def finish(self) -> None:
        """End the server."""
        call([self.tsp, "-K"], self.environ)


class Nq(Queue):
    """nq: no daemon, a lock on each job's log, which the job holds."""

    name = "nq"
    stops_jobs = False

    def begin(self) -> None:
        """Choose the directory that is the queue."""
        self.nq = find("nq", "nq")
        self.environ["NQDIR"] = f"{self.place.directory}/queue"
        os.makedirs(self.environ["NQDIR"], exist_ok=True)

    def submit(self, argv: Sequence[str], *, cards: int) -> None:
        """Add a job; it knows no cards, its directory is one line."""
        _ = cards
        self.run(self.nq, "-q", *argv)


class SimpleGpuScheduler(Queue):
    """simple_gpu_scheduler: commands on standard input, a list of cards in memory."""

    name = "simple-gpu-scheduler"
    stops_jobs = False
    cards: tuple[str, ...] = ("0",)

    def begin(self) -> None:
        """Start it with a pipe as its input."""
        reader, self.writer = os.pipe()
        os.set_inheritable(self.writer, False)
        command = find("simple-gpu-scheduler", "simple_gpu_scheduler")
        self.pid = spawn([command, "--gpus", *self.cards], self.environ, stdin=reader)
        os.close(reader)

    def submit(self, argv: Sequence[str], *, cards: int) -> None:
        """Write a line."""
        _ = cards
        os.write(self.writer, f"exec {' '.join(argv)}\n".encode())

    def finish(self) -> None:
        """Close its input: it ends after the last job."""
        os.close(self.writer)


class GqLocal(Queue):
    """gq-local: a daemon with a database, NVML."""

    name = "gq-local"

    def begin(self) -> None:
        """Start the daemon."""
        self.gq = find("gq-local", "gq")
        self.run(self.gq, "daemon", "start")

    def submit(self, argv: Sequence[str], *, cards: int) -> None:
        """Submit; it must not be asked for zero cards."""
        said = self.run(self.gq, "run", "-g", str(max(cards, 1)), "--", *argv)
        self.job = _number(said)

    def stop_job(self) -> None:
        """Cancel the last job."""
        self.run(self.gq, "cancel", "-y", self.job)

    def finish(self) -> None:
        """End the daemon."""
        call([self.gq, "daemon", "stop"], self.environ)


class Gflow(Queue):
    """gflow (runqd) with its process executor: a daemon, NVML every `POLL_S` seconds."""

    name = "gflow"
    POLL_S = 1
    """The least that it takes; its default is 10, which makes hand-over slower."""

    def begin(self) -> None:
        """Start the daemon on a port that is free now, and wait for it to answer."""
        self.config = f"{self.place.directory}/gflow.toml"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        with open(self.config, "w", encoding="utf-8") as file:
            file.write(f'[daemon]\nhost = "127.0.0.1"\nport = {port}\ngpu_poll_interval_secs = {self.POLL_S}\n')
            file.write('[executor]\ntype = "process"\n')
        program = find("runqd", "gflow")
        log = f"{self.place.directory}/gflowd.log"
        spawn([program, "__multicall", "gflowd", "--config", self.config], self.environ, output=log)
        info = [find("runqd", "ginfo"), "--config", self.config]
        wait_until(lambda: call(info, self.environ).status == 0, 10, "gflowd to answer", pause_s=0.1)

    def submit(self, argv: Sequence[str], *, cards: int) -> None:
        """Submit a batch job."""
        words = ["--gpus", str(cards)] if cards else []
        said = self.run(find("runqd", "gbatch"), "--config", self.config, *words, *argv)
        self.job = _number(said)

    def stop_job(self) -> None:
        """Cancel the last job."""
        self.run(find("runqd", "gcancel"), "--config", self.config, self.job)


class GpuGate(Queue):
    """gpu-gate: a wrapper around each job that polls every `poll_s` seconds and holds a lock file."""

    name = "gpu-gate"
    poll_s = 5.0
    spacing_s = 0.2
    """Two that find the card free at the same instant: one of them dies of the lost race (a Timeout of its lock)."""

    def begin(self) -> None:
        """Choose the directory of its locks."""
        self.command = find("gpu-gate", "gpu-gate")
        self.environ["GPU_GATE_LOCK_DIR"] = f"{self.place.directory}/locks"

    def submit(self, argv: Sequence[str], *, cards: int) -> None:
        """Start a wrapper and leave it alone."""
        gate = [self.command, "run", "-n", str(max(cards, 1)), "--poll", str(self.poll_s), "--", *argv]
        self.pid = spawn(gate, self.environ, output=f"{self.place.directory}/said")

    def stop_job(self) -> None:
        """TERM to the wrapper: it has no other way."""
        os.kill(self.pid, 15)


class GpuGateQuick(GpuGate):
    """gpu-gate, told to poll twenty times a second."""

    name = "gpu-gate --poll 0.05"
    poll_s = 0.05


def _number(said: str) -> str:
    found = re.search(r"\bjob (\d+)", said)
    if found is None:
        raise CannotMeasure(f"no job number in {said[-200:]!r}")
    return found[1]


ALL: tuple[type[Queue], ...] = (TaskSpooler, Nq, SimpleGpuScheduler, GqLocal, GpuGate, Gflow)
