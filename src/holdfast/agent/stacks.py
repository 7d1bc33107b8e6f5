"""The stacks of a job that stands still, taken before anything is done to it.

Two things that need neither root nor ptrace. **threads.txt**: every thread of the tree with its state and what it waits
on in the kernel, from /proc; only files there that no stuck process can make us wait for (not `cmdline`, `environ`,
`syscall` and `stack`, which take locks that a hung exec or page fault may hold). **stacks.txt**: the Python stacks that
training processes write themselves when they get their private signal; asked for by the protocol of
`holdfast.training.reporting.stacks`: only a process of our tree that is the very one that wrote the record, and that
handles the signal at this moment.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

from ..host import files
from ..host.clock import boot_id, monotonic_s, utc_now
from ..host.processes import handles_signal, read_stat, send_signal
from ..model import wire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..model.identity import ProcessId
    from .context import Context

MOST_RECORDS = 512
MOST_THREADS = 4000
SNAPSHOT_S = 0.3
"""The supervisor does nothing else meanwhile."""
ANSWER_S = 1.0
"""How long a process may take to write its stacks before a stop goes on without them."""
LOOK_EVERY_S = 0.05
LARGEST_THREADS_BYTES = 8 << 20
LARGEST_RECORD_BYTES = 4096


class Capture:
    """One taking of stacks; `then` is called with facts about it when they are there, or after a second at most."""

    def __init__(
        self, context: Context, processes: list[ProcessId], why: str, then: Callable[[dict[str, object]], None]
    ) -> None:
        """Nothing happens before `begin`."""
        self._context, self._processes, self._why, self._then = context, processes, why, then
        self._asked: dict[str, int] = {}
        self._sizes: dict[str, int] = {}
        self._facts: dict[str, object] = {}
        self._until = 0.0

    def begin(self) -> None:
        """Write down the threads, ask for the stacks, wait for them beside the loop."""
        directory = self._context.directory
        processes, threads = note_threads(f"{directory}/{wire.THREADS}", self._processes, self._why)
        self._facts = {"why": self._why, "processes": processes, "threads": threads}
        self._asked = ask_for_stacks(directory, self._processes)
        self._until = monotonic_s() + ANSWER_S
        self._look()

    def _look(self) -> None:
        sizes = {path: _size_of(path) for path in self._asked}
        written = {path for path, size in sizes.items() if size > self._asked[path] and size == self._sizes.get(path)}
        self._sizes = sizes
        if len(written) < len(self._asked) and monotonic_s() < self._until:
            self._context.loop.timers.arm(self, LOOK_EVERY_S, self._look)
            return
        answered = sum(size > self._asked[path] for path, size in sizes.items())
        facts = {**self._facts, "asked": len(self._asked), "answered": answered}
        self._context.recorder.event("stacks", **facts)
        self._then(facts)


def note_threads(path: str, processes: list[ProcessId], why: str) -> tuple[int, int]:
    """Append one snapshot of all threads; how many processes and threads are in it.

    A file that cannot be written, or is full (8 MiB), gets none: this is help, and never a reason to fail.
    """
    until = monotonic_s() + SNAPSHOT_S
    lines = [f"== {utc_now()} {why}"]
    seen = threads = 0
    for process in processes:
        stat = read_stat(process.pid)
        if stat is None or stat.start_ticks != process.start_ticks:
            continue
        seen += 1
        lines.append(f"process {process.pid} {_clean(stat.comm)}: state {stat.state}, {stat.threads} threads")
        for line in _describe_threads(process.pid):
            lines.append(line)
            threads += 1
            if threads >= MOST_THREADS or monotonic_s() > until:
                break
        if threads >= MOST_THREADS or monotonic_s() > until:
            lines.append("(more were not looked at)")
            break
    try:
        if _size_of(path) < LARGEST_THREADS_BYTES:
            files.append(path, ("\n".join(lines) + "\n\n").encode())
    except OSError:
        return seen, threads
    return seen, threads


def _describe_threads(pid: int) -> Iterator[str]:
    """Each thread: its number, state, name, and the kernel function that it waits in (0: none, or not told)."""
    try:
        numbers = sorted(int(name) for name in os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return
    for number in numbers:
        data = files.read_text_or_none(f"/proc/{pid}/task/{number}/stat")
        if data is None:
            continue
        head, _, tail = data.rpartition(")")
        waits = files.read_text_or_none(f"/proc/{pid}/task/{number}/wchan") or "0"
        yield f"  {number} {tail[1:2]} {_clean(head.partition('(')[2])} {_clean(waits.strip())}"


def _clean(text: str) -> str:
    """A process chooses its own name: nothing in it may steer a terminal or forge a line."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:64])


def _size_of(path: str) -> int:
    try:
        return os.lstat(path).st_size
    except OSError:
        return 0


def ask_for_stacks(directory: str, processes: list[ProcessId]) -> dict[str, int]:
    """Send the private signal to each process of the tree that has offered it; the files, with their sizes before."""
    asked: dict[str, int] = {}
    records = list(_read_records(directory))
    if not records:
        return asked
    boot, inner = boot_id(), {process: _read_inner(process.pid) for process in processes}
    for record in records:
        for process in processes:
            path = f"{directory}/{record['stacks']}"
            if path in asked or record["boot_id"] != boot or record["start_ticks"] != process.start_ticks:
                continue
            number = int(record["signal"])
            if (record["pid"], record["pid_namespace"]) != inner[process] or not handles_signal(process.pid, number):
                continue
            size = _size_of(path)
            try:
                if send_signal(process, number):
                    asked[path] = size
            except OSError:
                continue
    return asked


def _read_records(directory: str) -> Iterator[dict[str, Any]]:
    """The records of this attempt that have the form; a job writes them, so nothing in one is believed."""
    try:
        names = sorted(name for name in os.listdir(directory) if name.startswith("stacks.") and name.endswith(".json"))
    except OSError:
        return
    for name in names[:MOST_RECORDS]:
        try:
            record = wire.parse_object(files.read_bytes(f"{directory}/{name}", limit=LARGEST_RECORD_BYTES), name)
        except (OSError, wire.WireError):
            continue
        numbers = [record.get(key) for key in ("signal", "pid", "start_ticks", "pid_namespace")]
        if not all(type(number) is int for number in numbers):
            continue
        if not signal.SIGRTMIN <= record["signal"] <= signal.SIGRTMAX:
            # Anything else is no private signal: a record must not make us send KILL.
            continue
        if record.get("stacks") == f"{os.path.splitext(name)[0]}.txt" and isinstance(record.get("boot_id"), str):
            yield {**record, "boot_id": record["boot_id"].strip()}


def _read_inner(pid: int) -> tuple[int, int] | None:
    """The process's number in its own PID namespace, and that namespace; None when either cannot be read."""
    status = files.read_text_or_none(f"/proc/{pid}/status") or ""
    numbers = [line.split()[-1] for line in status.splitlines() if line.startswith("NSpid:")]
    try:
        return int(numbers[0]), os.stat(f"/proc/{pid}/ns/pid").st_ino
    except (IndexError, ValueError, OSError):
        return None
