"""Collects the stacks of a stalled job before anything is done to it.

Two things that need neither root nor ptrace. **threads.txt**: every thread of the tree with its state and what it waits
on in the kernel, from /proc; only files there that no stuck process can make us wait for (not `cmdline`, `environ`,
`syscall` and `stack`, which take locks that a hung exec or page fault may hold). **stacks.txt**: the Python stacks that
training processes write themselves when they get their private signal; asked for as in
`host.contain.stack_signal`, which says who may be sent a signal.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.host.clock import monotonic_s, utc_now
from holdfast.host.contain import stack_signal
from holdfast.host.files import files
from holdfast.host.process.processes import read_stat
from holdfast.model import wire
from holdfast.model.units import format_count

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from holdfast.agent.supervise.context import SupervisorContext
    from holdfast.model.identity import ProcessId

MOST_RECORDS = 512
MOST_THREADS = 4000
SNAPSHOT_S = 0.3
"""The supervisor does nothing else meanwhile."""
ANSWER_S = 1.0
"""How long a process may take to write its stacks before a stop goes on without them."""
LOOK_EVERY_S = 0.05
LARGEST_THREADS_BYTES = 8 << 20


class StackCapture:
    """One taking of stacks; `then` is called with facts about it when they are there, or after a second at most."""

    def __init__(
        self,
        context: SupervisorContext,
        processes: list[ProcessId],
        why: str,
        then: Callable[[dict[str, object]], None],
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
        self._asked = request_stacks(directory, self._processes)
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
        count = format_count(stat.threads, "thread")
        lines.append(f"process {process.pid} {_clean(stat.comm)}: state {stat.state}, {count}")
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


def request_stacks(directory: str, processes: list[ProcessId]) -> dict[str, int]:
    """Send the private signal to each process of the tree that has offered it; the files, with their sizes before."""
    asked: dict[str, int] = {}
    for path in _list_records(directory):
        try:
            record = stack_signal.read_record(path)
            writer = stack_signal.find_writer(record, processes)
            if writer is not None:
                asked[record.stacks] = stack_signal.request_stacks(writer, record)
        except stack_signal.StacksRefused:
            continue  # its threads are written down all the same
    return asked


def _list_records(directory: str) -> list[str]:
    try:
        names = sorted(name for name in os.listdir(directory) if name.startswith("stacks.") and name.endswith(".json"))
    except OSError:
        return []
    return [f"{directory}/{name}" for name in names[:MOST_RECORDS]]
