"""A run that comes home, beside rsync and tar over the same ssh: one large run, with and without cuts, and small files.

    python benchmarks/pull.py            1 GiB, and 100,000 files of 1,000 bytes; a private sshd on loopback; needs root
    python benchmarks/pull.py --quick    a tenth of it; to see that it works, not for quoting
    python benchmarks/pull.py --docs     also write the table into docs/benchmarks.md

Each way gets a new directory, in turn, in one run; nothing is removed before the end, for which there must be 12 GiB:
ext4 without a journal passes over inodes that were freed in the last minutes one by one, and a file that is made then
costs up to seven times as much. `rsync -a` and `tar` prove nothing at home; `holdfast pull`
hashes every file on both sides, and has everything on the disk before it says so. CPU is that of the desk's process and
its children; what sshd and the box's side take is not in it. With cuts, all go through a proxy that resets the
connection five times; rsync is then `rsync --partial` in a loop.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path[0] = ROOT

from benchmarks.measuring import percentile  # noqa: E402
from tests.proxy import Proxy  # noqa: E402
from tests.sshd import Sshd  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DOCUMENT = f"{ROOT}/docs/benchmarks.md"
BEGIN = "<!-- pull: begin (benchmarks/pull.py --docs writes this part) -->"
END = "<!-- pull: end -->"
LARGE_FILES, LARGE_BYTES = 8, 1 << 30
SMALL_FILES, SMALL_BYTES = 100_000, 1000
ROUNDS, QUICK_SHARE = 3, 10
CUTS = 5
MAKE = (
    "import os, sys\n"
    "top, count, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])\n"
    "for number in range(count):\n"
    "    where = f'{top}/d{number // 500}'\n"
    "    os.makedirs(where, exist_ok=True)\n"
    "    with open(f'{where}/f{number}', 'wb') as file:\n"
    "        left = size\n"
    "        while left:\n"
    "            piece = os.urandom(min(left, 1 << 20))\n"
    "            file.write(piece)\n"
    "            left -= len(piece)\n"
)


class Desk:
    """A desk of its own, and an account behind sshd with runs to be pulled."""

    def __init__(self, directory: str, sshd: Sshd) -> None:
        self.sshd, self.directory = sshd, Path(directory)
        foreign = ("HOLDFAST", "XDG", "PYTHON")
        self.environ = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        self.environ["HOLDFAST_SSH"] = str(sshd.program)
        for name in ("HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR", "TMPDIR"):
            path = self.directory / name.lower()
            path.mkdir(mode=0o700)
            self.environ[name] = str(path)
        (self.directory / "xdg_config_home" / "holdfast").mkdir(mode=0o700)
        sshd.alias("box", name="box")
        self.place("box")

    def place(self, host: str) -> None:
        """Have the place `gpu1` be reached as this host."""
        path = self.directory / "xdg_config_home" / "holdfast" / "places.toml"
        path.write_text(f'[gpu1]\nhost = "{host}"\nroot = "~/runs"\n')
        path.chmod(0o600)

    def ours(self, *words: str) -> str:
        """Run `holdfast WORDS`; what it printed."""
        return self.call(sys.executable, "-m", "holdfast", *words)

    def call(self, *command: str) -> str:
        """Run a command; what it printed.

        Raises:
            RuntimeError: it failed; says what it said.
        """
        done = subprocess.run(
            command,
            cwd=self.directory,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)[:200]}: {done.returncode}: {done.stderr[-2000:]}")
        return done.stdout

    def make_run(self, name: str, files: int, size: int) -> Path:
        """A run at the place whose results are so many files of this size; its directory there."""
        words = ("run", "--on", "gpu1", "--no-code", "--name", name, "-d", "--prove", "0", "--json", "--")
        command = 'exec python3 -c "$0" "$HOLDFAST_RUN_DIR/artifacts" "$1" "$2"'
        began = json.loads(self.ours(*words, "sh", "-c", command, MAKE, str(files), str(size)))
        self.ours("wait", f"gpu1:{began['run_id']}")
        return self.sshd.home("box") / "runs" / str(began["run_id"])

    def end_shared_connections(self) -> None:
        """The next call connects anew."""
        for path in (self.directory / "xdg_runtime_dir").glob("holdfast/*"):
            if path.is_socket():
                words = ("-F", "/dev/null", "-o", f"ControlPath={path}", "-O", "exit", "any")
                subprocess.run(["ssh", *words], capture_output=True, check=False, stdin=subprocess.DEVNULL)


class Measured:
    """Seconds and seconds of CPU of each way, round by round."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {}
        self.cpu: dict[str, list[float]] = {}

    def take(self, name: str, act: Callable[[], object]) -> None:
        """Do it once."""
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        act()
        self.seconds.setdefault(name, []).append(time.monotonic() - began)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        self.cpu.setdefault(name, []).append(spent)


def pull_all_ways(desk: Desk, run_dir: Path, rounds: int, measured: Measured, what: str) -> None:
    """The same run by each of three, each into an empty directory."""
    ssh, name = str(desk.sshd.program), run_dir.name
    ways: dict[str, Callable[[Path], object]] = {
        "holdfast pull": lambda target: desk.ours("pull", f"gpu1:{name}", str(target)),
        "rsync -a": lambda target: desk.call("rsync", "-a", "-e", ssh, f"box:runs/{name}/", f"{target}/"),
        "tar over ssh": lambda target: desk.call(
            "sh", "-c", f'mkdir "$1" && {ssh} box tar -C runs/{name} -cf - . | tar -C "$1" -xf -', "sh", str(target)
        ),
    }
    desk.ours("pull", "--dry-run", f"gpu1:{name}")  # the bundle is there
    for turn in range(rounds):
        for way, act in ways.items():
            target = desk.directory / f"{what}-{way.partition(' ')[0]}-{turn}"
            os.sync()
            measured.take(f"{what}, {way}", functools.partial(act, target))
            check(run_dir, target)


def check(run_dir: Path, target: Path) -> None:
    """Everything is there.

    Raises:
        RuntimeError: it is not.
    """
    there = sum(len(files) for _, _, files in os.walk(run_dir / "artifacts"))
    here = sum(len(files) for _, _, files in os.walk(target / "artifacts"))
    if there != here:
        raise RuntimeError(f"{here} of {there} files came")


@contextlib.contextmanager
def cutting(link: Proxy, every: int) -> Iterator[None]:
    """Reset the connection each time so many bytes came, `CUTS` times."""
    over, before = threading.Event(), link.cuts

    def watch() -> None:
        armed = before - 1
        while not over.wait(0.02) and link.cuts - before < CUTS:
            if link.cuts > armed:
                armed = link.cuts
                link.cut_after(every)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        link.cut_after(1 << 62)


def pull_with_cuts(desk: Desk, run_dir: Path, size: int, measured: Measured) -> dict[str, float]:
    """Bytes that came over the link, as a share of the run's, by way."""
    shares = {}
    with Proxy(desk.sshd.port) as link:
        alias = desk.sshd.alias("box", via=link.port, ControlMaster="no", ControlPath="none")
        desk.place(alias)
        desk.ours("pull", "--dry-run", f"gpu1:{run_dir.name}")
        target = desk.directory / "target"

        def rsync() -> None:
            for _ in range(CUTS * 4):
                with contextlib.suppress(RuntimeError):
                    words = ("rsync", "-a", "--partial", "-e", str(desk.sshd.program))
                    desk.call(*words, f"{alias}:runs/{run_dir.name}/", f"{target}/")
                    return
            raise RuntimeError("rsync did not come to its end")

        ways: dict[str, Callable[[], object]] = {
            "holdfast pull": lambda: desk.ours("pull", f"gpu1:{run_dir.name}", str(target)),
            "rsync --partial in a loop": rsync,
        }
        for way, act in ways.items():
            began, cuts = link.carried, link.cuts
            with cutting(link, size // (CUTS + 1)):
                measured.take(f"large, {CUTS} cuts, {way}", act)
            check(run_dir, target)
            shutil.rmtree(target)
            shares[f"{way} ({link.cuts - cuts} cuts)"] = (link.carried - began) / size
    desk.place("box")
    return shares


def format_table(measured: Measured, shares: dict[str, float], sizes: str) -> str:
    """The table, with its targets."""
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    machine = f"{os.cpu_count()} cores, load {load}, {time.strftime('%Y-%m-%d', time.gmtime())}"
    lines = [
        f"{sizes}. Private sshd on loopback, {machine}. Seconds, median (least); CPU of the desk.",
        "",
        "| what | seconds | CPU s | target |",
        "|---|---|---|---|",
    ]
    for name, values in measured.seconds.items():
        kind, way = name.split(", ", 1)
        target = "beside it"
        if way == "holdfast pull":
            others = [min(v) for n, v in measured.seconds.items() if n.startswith(kind) and "holdfast" not in n]
            fastest = min(others) if kind == "small" else min(measured.seconds[f"{kind}, rsync -a"])
            target = f"<= {1.2 * fastest:.1f}"
        cell = f"{percentile(values, 0.5):.1f} ({min(values):.1f})"
        lines.append(f"| {name} | {cell} | {percentile(measured.cpu[name], 0.5):.1f} | {target} |")
    lines += ["", "| bytes over the link, with cuts | share of the run | target |", "|---|---|---|"]
    for way, share in shares.items():
        lines.append(f"| {way} | {share:.2f} | {'<= 1.30' if 'holdfast' in way else 'beside it'} |")
    return "\n".join(lines)


def write_docs(table: str) -> None:
    """Put the table into its place of the document, or at the end of it."""
    document = Path(DOCUMENT).read_text(encoding="utf-8")
    part = f"{BEGIN}\n{table}\n{END}"
    if BEGIN in document:
        head, rest = document.split(BEGIN, 1)
        document = head + part + rest.split(END, 1)[1]
    else:
        document = (
            f"{document.rstrip()}\n\n## A run comes home\n\n`python benchmarks/pull.py --docs`, as root.\n\n{part}\n"
        )
    Path(DOCUMENT).write_text(document, encoding="utf-8")


def main() -> int:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--docs", action="store_true")
    parser.add_argument("--share", type=int, default=1, help="measure this fraction of it: 100 for a hundredth")
    words = parser.parse_args()
    share, rounds = (QUICK_SHARE, 1) if words.quick else (words.share, ROUNDS)
    size, files = LARGE_BYTES // share, SMALL_FILES // share
    measured = Measured()
    with Sshd.started() as sshd, tempfile.TemporaryDirectory(prefix="hf-bench-") as directory:
        desk = Desk(directory, sshd)
        try:
            large = desk.make_run("large", LARGE_FILES, size // LARGE_FILES)
            pull_all_ways(desk, large, rounds, measured, "large")
            shares = pull_with_cuts(desk, large, size, measured)
            small = desk.make_run("small", files, SMALL_BYTES)
            pull_all_ways(desk, small, rounds, measured, "small")
        finally:
            desk.end_shared_connections()
    sizes = f"Large: {size / (1 << 30):.2f} GiB in {LARGE_FILES} files; small: {files:,} files of {SMALL_BYTES:,} bytes"
    table = format_table(measured, shares, sizes)
    print(table)
    if words.docs:
        write_docs(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
