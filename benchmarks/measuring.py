"""How the benchmarks measure: starting commands, their wall and CPU time, what is left of them, medians.

The measuring process is a child subreaper, so that whatever a command leaves behind (a detached supervisor, a peer's
daemon) becomes its child: its CPU time is counted by `wait4` when it ends, it can be listed, and nothing is left when a
benchmark is over. Only processes that are our descendants are ever signalled.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import statistics
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

PR_SET_CHILD_SUBREAPER = 36
"""Source: prctl(2)."""

Row = dict[str, "float | int | str | None"]
"""What is known about one measured thing: numbers with their units in the names, or ``note``: why there are none."""


class CannotMeasure(Exception):
    """Something that is measured did not do what it must; the message says what was seen. The rest goes on."""


@dataclass(slots=True)
class Call:
    """One finished command: seconds of wall and CPU time (its own and its waited-for children's), status, output."""

    wall_s: float
    cpu_s: float
    status: int
    begin_ns: int
    output: str = ""


@dataclass(slots=True)
class Samples:
    """Times of one thing over the rounds, in seconds."""

    wall_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    note: str = ""

    def row(self) -> Row:
        """The medians and the spread in milliseconds, or the note why there are none."""
        if self.note or not self.wall_s:
            return {"note": self.note or "nothing measured"}
        row: Row = dict(spread(self.wall_s))
        if self.cpu_s:
            row["cpu_p50_ms"] = round(statistics.median(self.cpu_s) * 1e3, 2)
            row["cpu_p95_ms"] = round(percentile(self.cpu_s, 0.95) * 1e3, 2)
        return row


def percentile(values: Sequence[float], share: float) -> float:
    """The value which `share` (0 to 1) of `values` do not exceed; no interpolation."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def spread(seconds: Sequence[float]) -> dict[str, float]:
    """Count, median, least, 95th percentile and greatest in milliseconds."""
    return {
        "n": len(seconds),
        "p50_ms": round(statistics.median(seconds) * 1e3, 2),
        "min_ms": round(min(seconds) * 1e3, 2),
        "p95_ms": round(percentile(seconds, 0.95) * 1e3, 2),
        "max_ms": round(max(seconds) * 1e3, 2),
    }


def become_subreaper() -> None:
    """Make orphans of our commands our children. Raises: OSError."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def spawn(
    argv: Sequence[str], environ: Mapping[str, str], *, output: str = os.devnull, stdin: int | None = None
) -> int:
    """Start a command with its output in a file; answers its pid."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    actions: list[tuple[int, int, str, int, int] | tuple[int, int, int]] = [
        (os.POSIX_SPAWN_OPEN, 1, output, flags, 0o600),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    if stdin is None:
        actions.append((os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0))
    else:
        actions.append((os.POSIX_SPAWN_DUP2, stdin, 0))
    return os.posix_spawnp(argv[0], list(argv), dict(environ), file_actions=actions)


def call(argv: Sequence[str], environ: Mapping[str, str], *, output: str = os.devnull, timeout_s: float = 60.0) -> Call:
    """Run a command to its end and measure it; its output is read back when `output` names a file.

    Raises: CannotMeasure: it does not exist, or was still running after `timeout_s` and was killed.
    """
    begin_ns = time.monotonic_ns()
    try:
        pid = spawn(argv, environ, output=output)
    except OSError as error:
        raise CannotMeasure(f"{argv[0]} does not start: {error}") from error
    late = not wait_readable_pid(pid, timeout_s)
    if late:
        os.kill(pid, signal.SIGKILL)
    _, status, usage = os.wait4(pid, 0)
    wall_s = (time.monotonic_ns() - begin_ns) / 1e9
    if late:
        raise CannotMeasure(f"{' '.join(argv[:3])} had not ended after {timeout_s:g} s")
    text = ""
    if output != os.devnull:
        with open(output, encoding="utf-8", errors="replace") as file:
            text = file.read()
        os.unlink(output)
    return Call(wall_s, usage.ru_utime + usage.ru_stime, os.waitstatus_to_exitcode(status), begin_ns, text)


def must(argv: Sequence[str], environ: Mapping[str, str], directory: str, *, timeout_s: float = 60.0) -> Call:
    """As `call`, with its output; an exit code other than 0 raises CannotMeasure with what it said."""
    done = call(argv, environ, output=f"{directory}/said-{time.monotonic_ns()}", timeout_s=timeout_s)
    if done.status:
        said = " ".join(done.output.split())[-300:]
        raise CannotMeasure(f"`{' '.join(argv)}` ended with {done.status}: {said}")
    return done


def wait_readable_pid(pid: int, timeout_s: float) -> bool:
    """Wait for the end of a child without reaping it."""
    descriptor = os.pidfd_open(pid)
    try:
        return bool(select.select([descriptor], [], [], timeout_s)[0])
    finally:
        os.close(descriptor)


def wait_until(condition: Callable[[], bool], timeout_s: float, what: str, *, pause_s: float = 0.005) -> None:
    """Ask again and again. Raises: CannotMeasure with `what` after `timeout_s`."""
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end:
            raise CannotMeasure(f"waited {timeout_s:g} s in vain for {what}")
        time.sleep(pause_s)


def reap() -> float:
    """Reap the orphans that have ended; answers their CPU time in seconds, waited-for children included."""
    cpu_s = 0.0
    while True:
        try:
            pid, _, usage = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return cpu_s
        if not pid:
            return cpu_s
        cpu_s += usage.ru_utime + usage.ru_stime


def descendants() -> list[int]:
    """Every living process that descends from us; one that is a zombie does not count."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                    fields = file.read().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[0] not in "ZX":
                parents[int(name)] = int(fields[1])
    found, layer = [], {os.getpid()}
    while layer:
        layer = {pid for pid, parent in parents.items() if parent in layer}
        found += sorted(layer)
    return found


def read_command(pid: int) -> str:
    """The process's arguments with blanks between them; empty when it is gone."""
    try:
        with open(f"/proc/{pid}/cmdline", encoding="utf-8", errors="replace") as file:
            return file.read().replace("\0", " ").strip()
    except OSError:
        return ""


def find_by_arguments(*words: str) -> list[int]:
    """Living processes whose arguments, the program's own name left out, begin with `words`."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/cmdline", "rb") as file:
                    arguments = file.read().split(b"\0")
            except OSError:
                continue
            if arguments[1 : len(words) + 1] == [word.encode() for word in words]:
                found.append(int(name))
    return found


def end_descendants(*, keep: Iterable[int] = ()) -> int:
    """KILL whatever of ours still lives, orphans of orphans too, and wait for it; answers how many there were."""
    spared, ended = set(keep), 0
    for _ in range(50):
        living = [pid for pid in descendants() if pid not in spared]
        if not living:
            break
        ended += len(living)
        for pid in living:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.02)
        reap()
    reap()
    return ended
