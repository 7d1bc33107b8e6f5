"""Places behind ssh, beside the same by hand: a job's start and end, a look, a list of many places, code.

    python benchmarks/places.py            a private sshd on loopback; needs root and rsync; about three minutes
    python benchmarks/places.py --quick    fewer rounds; to see that it works, not for quoting
    python benchmarks/places.py --docs     also write the table into docs/benchmarks.md

By hand is what people type: ``scp -r`` and ``ssh host 'setsid nohup ... &'``, ``ssh host true``, ``rsync -a``. It
proves nothing, finds nothing again and supervises nothing; it is the least that can be paid. All is measured in one
run, in turn. A job writes its own time: desk and box are one machine here and have one clock.
"""

from __future__ import annotations

import argparse
import contextlib
import os
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
from tests.proxy import Proxy  # noqa: E402
from tests.sshd import Sshd  # noqa: E402
from tests.waiting import wait_until  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

DOCUMENT = f"{ROOT}/docs/benchmarks.md"
BEGIN = "<!-- places: begin (benchmarks/places.py --docs writes this part) -->"
END = "<!-- places: end -->"
FILES, FILE_BYTES = 50, 2000
ROUNDS, QUICK_ROUNDS, ROUNDS_OF_MORE = 15, 3, 5
PLACES, HOLES = 20, 3
CODE_FILES, CODE_BYTES = 1000, 10_000
SHOW_TARGET_S = 0.15
FIRST_TARGET_S, EXEC_TARGET_S, RETURNED_TARGET_S = 2.0, 0.5, 0.7


class Desk:
    """A desk of its own with a tree of code, and an account behind sshd."""

    def __init__(self, directory: str, sshd: Sshd) -> None:
        self.sshd = sshd
        self.home = sshd.home("box")
        self.tree = Path(directory, "tree")
        self.tree.mkdir()
        for number in range(FILES):
            (self.tree / f"module_{number}.py").write_bytes(os.urandom(FILE_BYTES // 2).hex().encode())
        (self.tree / "job.sh").write_text('date +%s%N > "$HOME/$1.new"\nmv "$HOME/$1.new" "$HOME/$1"\n')
        # PYTHONDONTWRITEBYTECODE would have every command compile what it loads, which no desk does.
        foreign = ("HOLDFAST", "XDG", "PYTHON")
        self._environ = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        self._environ["HOLDFAST_SSH"] = str(sshd.program)
        for name in ("HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR", "TMPDIR"):
            path = Path(directory, name.lower())
            path.mkdir(mode=0o700)
            self._environ[name] = str(path)
        Path(self._environ["XDG_CONFIG_HOME"], "holdfast").mkdir(mode=0o700)
        self.place("warm")

    def place(self, name: str, host: str = "box", root: str | None = None) -> None:
        """Configure one more place: the same account, another runs root, so that the box has nothing of ours there."""
        path = Path(self._environ["XDG_CONFIG_HOME"], "holdfast", "places.toml")
        before = path.read_text() if path.exists() else ""
        path.write_text(f'{before}[{name}]\nkind = "ssh"\nhost = "{host}"\nroot = "~/runs-{root or name}"\n')
        path.chmod(0o600)

    def call(self, *command: str, environ: Mapping[str, str] | None = None) -> None:
        """Run a command in the tree.

        Raises:
            RuntimeError: it failed; says what it said.
        """
        done = subprocess.run(
            command,
            cwd=self.tree,
            env={**self._environ, **(environ or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)[:200]}: {done.returncode}: {done.stderr}")

    def ours(self, *words: str) -> None:
        """Run `holdfast WORDS`."""
        self.call(sys.executable, "-m", "holdfast", *words)

    def time(self, *words: str) -> float:
        """Seconds that `holdfast WORDS` takes."""
        began = time.monotonic()
        self.ours(*words)
        return time.monotonic() - began

    def run_there(self, place: str, mark: str) -> None:
        """One run at a place, until its exec is proven."""
        words = ("run", "-d", "--prove", "0", "--on", place, "--", "sh", "job.sh", mark)
        self.call(sys.executable, "-m", "holdfast", *words)

    def run_by_hand(self, mark: str, *, copy: bool) -> None:
        """The same by hand: copied with scp when it is not there, started with nohup."""
        ssh = str(self.sshd.program)
        if copy:
            self.call("scp", "-q", "-r", "-S", ssh, ".", f"box:by-hand-{mark}")
        there = f"by-hand-{mark}" if copy else "by-hand"
        self.call(ssh, "box", f"cd {there} && setsid nohup sh job.sh {mark} >/dev/null 2>&1 </dev/null &")

    def end_shared_connections(self) -> None:
        """As in the morning: the next call connects anew."""
        for path in Path(self._environ["XDG_RUNTIME_DIR"]).glob("holdfast/*"):
            if path.is_socket():
                words = ("-F", "/dev/null", "-o", f"ControlPath={path}", "-O", "exit", "any")
                subprocess.run(["ssh", *words], capture_output=True, check=False, stdin=subprocess.DEVNULL)


def measure(desk: Desk, mark: str, start: Callable[[], None]) -> tuple[float, float]:
    """Seconds to the job's first act there, and until the command came back."""
    began = time.time()
    start()
    returned_s = time.time() - began
    file = desk.home / mark
    wait_until(file.exists, 60, what=mark)
    return int(file.read_text()) / 1e9 - began, returned_s


def measure_all(desk: Desk, rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Every way in turn, round after round."""
    found: dict[str, list[tuple[float, float]]] = {
        "first, holdfast run": [],
        "first, scp and nohup": [],
        "warm, holdfast run": [],
        "warm, nohup": [],
    }
    socket = f"{desk.sshd.root}/by-hand.socket"
    desk.run_there("warm", "warm-up")
    desk.call("scp", "-q", "-r", "-S", str(desk.sshd.program), ".", "box:by-hand")
    for number in range(rounds):
        desk.place(f"new-{number}")
        desk.end_shared_connections()

        def first(number: int = number) -> None:
            desk.run_there(f"new-{number}", f"first-{number}")

        found["first, holdfast run"].append(measure(desk, f"first-{number}", first))

        def by_hand(number: int = number) -> None:
            desk.run_by_hand(f"hand-{number}", copy=True)

        found["first, scp and nohup"].append(measure(desk, f"hand-{number}", by_hand))
        # Both have a connection that is open already.
        desk.call(sys.executable, "-m", "holdfast", "ls", "--on", "warm")

        def warm(number: int = number) -> None:
            desk.run_there("warm", f"warm-{number}")

        found["warm, holdfast run"].append(measure(desk, f"warm-{number}", warm))
        shared = ("-o", "ControlMaster=auto", "-o", f"ControlPath={socket}", "-o", "ControlPersist=60")
        ssh = str(desk.sshd.program)
        desk.call(ssh, *shared, "box", "true")

        def shared_hand(number: int = number, ssh: str = ssh, shared: tuple[str, ...] = shared) -> None:
            line = f"cd by-hand && setsid nohup sh job.sh share-{number} >/dev/null 2>&1 </dev/null &"
            desk.call(ssh, *shared, "box", line)

        found["warm, nohup"].append(measure(desk, f"share-{number}", shared_hand))
    subprocess.run(["ssh", "-o", f"ControlPath={socket}", "-O", "exit", "any"], capture_output=True, check=False)
    return found


def measure_more(desk: Desk, rounds: int) -> dict[str, tuple[list[float], str]]:
    """The end of a job, a look over a slow link, many places, code: seconds, and the target."""
    found: dict[str, tuple[list[float], str]] = {}
    found["end of a job seen by `run --on` (by a poll of 5 s: 2.5 on average)"] = (
        [measure_end(desk, number) for number in range(rounds)],
        "<= 0.3",
    )
    found |= measure_slow_link(desk, rounds)
    found |= measure_list(desk.sshd, rounds)
    return found | measure_code(desk, rounds)


def measure_end(desk: Desk, number: int) -> float:
    """Seconds from the job's last act to the end of the command that follows it."""
    mark = f"end-{number}"
    desk.ours("run", "--on", "warm", "--", "sh", "-c", f'sleep 1; date +%s%N > "$HOME/{mark}"')
    return time.time() - int((desk.home / mark).read_text()) / 1e9


def measure_slow_link(desk: Desk, rounds: int) -> dict[str, tuple[list[float], str]]:
    """`show` over a round trip of 200 ms, beside the least call of ssh, each over a connection that is open."""
    ours, by_hand = [], []
    with Proxy(desk.sshd.port) as link:
        alias = desk.sshd.alias("box", via=link.port)
        desk.place("slow", alias)
        desk.run_there("slow", "slow")
        socket = f"{desk.sshd.root}/slow.socket"
        shared = ("-o", "ControlMaster=auto", "-o", f"ControlPath={socket}", "-o", "ControlPersist=60")
        words = (str(desk.sshd.program), *shared, alias, "true")
        desk.call(*words)
        desk.time("show", "slow:job")
        link.delay_s = 0.1
        for _ in range(rounds):
            began = time.monotonic()
            desk.call(*words)
            by_hand.append(time.monotonic() - began)
            ours.append(desk.time("show", "slow:job"))
        link.delay_s = 0.0
        subprocess.run(["ssh", "-o", f"ControlPath={socket}", "-O", "exit", "any"], capture_output=True, check=False)
        desk.end_shared_connections()
    return {
        "`show`, warm, a round trip of 200 ms": (ours, f"<= {percentile(by_hand, 0.5) + SHOW_TARGET_S:.2f}"),
        "`ssh host true`, the same": (by_hand, "beside it"),
    }


def measure_list(sshd: Sshd, rounds: int) -> dict[str, tuple[list[float], str]]:
    """`ls` of places with open connections of their own, then with three that take a connection and say nothing.

    They are one runs root, so that the box is not filled; each answers all of its runs.
    """
    alone, everything = [], []
    with tempfile.TemporaryDirectory(prefix="hf-bench-") as directory, contextlib.ExitStack() as stack:
        desk = Desk(directory, sshd)
        stack.callback(desk.end_shared_connections)
        for number in range(1, PLACES - HOLES):
            # Another setting, so that it is a connection of its own, as to another box.
            desk.place(f"many-{number}", sshd.alias("box", Compression="no", ConnectionAttempts=number), root="warm")
        for _ in range(rounds + 1):
            desk.ours("ls", "--all")  # the connections, and a desk that has met them all
        alone = [desk.time("ls", "--all") for _ in range(rounds)]
        for number in range(HOLES):
            hole = stack.enter_context(Proxy(sshd.port))
            hole.freeze()
            desk.place(f"hole-{number}", sshd.alias("box", via=hole.port))
        everything = [desk.time("ls", "--all") for _ in range(rounds)]
    return {
        f"`ls --all` of {PLACES - HOLES} places": (alone, "<= 1"),
        f"the same and {HOLES} black holes": (everything, "<= 3"),
    }


def measure_code(desk: Desk, rounds: int) -> dict[str, tuple[list[float], str]]:
    """What code costs: `run` with a tree, less the same without, beside rsync over a shared connection."""
    desk.tree = tree = desk.tree.parent / "code"  # where its commands are typed from now on
    for number in range(CODE_FILES):
        path = tree / f"part{number % 20}" / f"m{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(CODE_BYTES // 2).hex().encode())
    socket = f"{desk.sshd.root}/rsync.socket"
    shell = f"{desk.sshd.program} -o ControlMaster=auto -o ControlPath={socket} -o ControlPersist=60"
    taken: dict[str, list[float]] = {}

    def push(kind: str, place: str, there: str) -> None:
        began = time.monotonic()
        desk.call("rsync", "-a", "--delete", "-e", shell, f"{tree}/", f"box:{there}/")
        taken.setdefault(f"rsync -a, {kind}", []).append(time.monotonic() - began)
        bare = desk.time("run", "-d", "--on", place, "--prove", "0", "--no-code", "--", "true")
        words = ("run", "-d", "--on", place, "--prove", "0", "--", "true")
        taken.setdefault(f"code, {kind}", []).append(max(0.0, desk.time(*words) - bare))

    desk.call(*shell.split(), "box", "true")
    for number in range(rounds):
        desk.place(f"code-{number}")
        desk.ours("place", "probe", f"code-{number}")
        place, there = f"code-{number}", f"rsync-{number}"
        push("first", place, there)
        push("unchanged", place, there)
        (tree / "part0" / "m0.py").write_bytes(os.urandom(CODE_BYTES // 2).hex().encode())
        push("one file changed", place, there)
    subprocess.run(["ssh", "-o", f"ControlPath={socket}", "-O", "exit", "any"], capture_output=True, check=False)
    first_s = 1.5 * percentile(taken["rsync -a, first"], 0.5)
    targets = {"code, first": f"<= {first_s:.2f}", "code, unchanged": "<= 0.2", "code, one file changed": "<= 0.5"}
    return {name: (values, targets.get(name, "beside it")) for name, values in taken.items()}


def format_tables(
    found: Mapping[str, list[tuple[float, float]]], more: Mapping[str, tuple[list[float], str]], rounds: int
) -> str:
    """The tables, with their targets."""
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    tree = f"{FILES} files of {FILE_BYTES} bytes"
    machine = f"{os.cpu_count()} cores, load {load}, {time.strftime('%Y-%m-%d', time.gmtime())}"
    lines = [
        f"Private sshd on loopback, {tree}, {rounds} rounds in turn, {machine}.",
        "Seconds, median (95th percentile), least.",
        "",
        "| what | the job's exec | command is back | least | target |",
        "|---|---|---|---|---|",
    ]
    targets = {
        "first, holdfast run": f"exec <= {FIRST_TARGET_S:g}",
        "warm, holdfast run": f"<= {EXEC_TARGET_S:g} / {RETURNED_TARGET_S:g}",
    }
    for name, samples in found.items():
        cells = []
        for index in (0, 1):
            values = [sample[index] for sample in samples]
            cells.append(f"{percentile(values, 0.5):.2f} ({percentile(values, 0.95):.2f})")
        cells.append(" / ".join(f"{min(sample[index] for sample in samples):.2f}" for index in (0, 1)))
        lines.append(f"| {name} | {' | '.join(cells)} | {targets.get(name, 'beside it')} |")
    code = f"{CODE_FILES:,} files of {CODE_BYTES:,} bytes; what the same run without code takes is taken off"
    lines += ["", f"Code: {code}.", "", "| what | seconds | least | target |", "|---|---|---|---|"]
    for name, (values, target) in more.items():
        cell = f"{percentile(values, 0.5):.2f} ({percentile(values, 0.95):.2f})"
        lines.append(f"| {name} | {cell} | {min(values):.2f} | {target} |")
    return "\n".join(lines)


def write_docs(table: str) -> None:
    """Put the table into its place of the document, or at the end of it."""
    with open(DOCUMENT, encoding="utf-8") as file:
        document = file.read()
    part = f"{BEGIN}\n{table}\n{END}"
    if BEGIN in document:
        head, rest = document.split(BEGIN, 1)
        document = head + part + rest.split(END, 1)[1]
    else:
        title = "## A job at a place behind ssh"
        document = f"{document.rstrip()}\n\n{title}\n\n`python benchmarks/places.py --docs`, as root.\n\n{part}\n"
    with open(DOCUMENT, "w", encoding="utf-8") as file:
        file.write(document)


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds, not for quoting")
    parser.add_argument("--docs", action="store_true", help="write the table into docs/benchmarks.md")
    options = parser.parse_args()
    if shutil.which("rsync") is None:
        parser.error("rsync is not installed, and stands beside the code that is pushed (Debian: rsync)")
    rounds = QUICK_ROUNDS if options.quick else ROUNDS
    with tempfile.TemporaryDirectory(prefix="hf-bench-") as directory, Sshd.started() as sshd:
        sshd.alias("box")
        desk = Desk(directory, sshd)
        found = measure_all(desk, rounds)
        more = measure_more(desk, ROUNDS_OF_MORE if not options.quick else 1)
        desk.end_shared_connections()
    table = format_tables(found, more, rounds)
    print(table)
    if options.docs:
        write_docs(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
