"""The shapes of one look at a process tree: every thread of every process, with what could not be read and why.

`look.take_snapshot` fills them. A leader in state Z whose threads live is alive.
"""

from __future__ import annotations

import os

from holdfast.diagnosis.evidence import NOT_LOOKED, Reading
from holdfast.diagnosis.live.detect.waits import Wait, classify_wait
from holdfast.model.record import field, record

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@record
class ThreadFacts:
    """One thread. Times in nanoseconds, `cpu_ticks` in clock ticks; None is "not readable", with why in `unread`.

    `run_ns` is time on a CPU, `queue_ns` time in which it could have run and had to wait for one.
    """

    tid: int
    name: str
    state: str
    cpu_ticks: int
    major_faults: int
    start_ticks: int
    wchan: str | None = None
    syscall: int | None = None
    arguments: tuple[int, ...] = ()
    run_ns: int | None = None
    queue_ns: int | None = None
    voluntary: int | None = None
    forced: int | None = None
    unread: dict[str, str] = field(default_factory=dict)

    @property
    def wait(self) -> Wait:
        """What it waits for."""
        return classify_wait(self.state, self.wchan, self.syscall)

    @property
    def switches(self) -> int | None:
        """How often it left a CPU so far."""
        if self.voluntary is None or self.forced is None:
            return None
        return self.voluntary + self.forced


@record
class IoCounters:
    """Source: proc_pid_io(5). Bytes and calls so far; `read_bytes` and `write_bytes` are those that met a disk."""

    rchar: int = 0
    wchar: int = 0
    syscr: int = 0
    syscw: int = 0
    read_bytes: int = 0
    write_bytes: int = 0

    @property
    def calls(self) -> int:
        """Reads and writes."""
        return self.syscr + self.syscw


@record
class OpenFile:
    """One descriptor: where its link points (``pipe:[123]``, ``socket:[456]`` or a path)."""

    number: int
    target: str


@record
class ProcessFacts:
    """One process and its threads, the main thread first.

    `own` says whether it runs under our account, `tracer` who debugs it (0: nobody), `files_open` how many descriptors
    it has, of `files_limit` that it may have.
    """

    pid: int
    ppid: int
    start_ticks: int
    name: str
    state: str
    threads: tuple[ThreadFacts, ...]
    command: Reading[str] = field(default_factory=lambda: Reading(unread=NOT_LOOKED))
    environment: Reading[dict[str, str]] = field(default_factory=lambda: Reading(unread=NOT_LOOKED))
    io: Reading[IoCounters] = field(default_factory=lambda: Reading(unread=NOT_LOOKED))
    files: Reading[tuple[OpenFile, ...]] = field(default_factory=lambda: Reading(unread=NOT_LOOKED))
    tracer: int = 0
    own: bool = False
    files_open: int | None = None
    files_limit: int | None = None

    @property
    def main(self) -> ThreadFacts:
        """The main thread."""
        return self.threads[0]

    @property
    def living(self) -> tuple[ThreadFacts, ...]:
        """The threads that are not dead."""
        return tuple(thread for thread in self.threads if thread.state not in "ZXx")

    @property
    def is_dead(self) -> bool:
        """A zombie without a living thread. A zombie with one has only lost its main thread, and is alive."""
        return not self.living

    def target_of(self, descriptor: int) -> str | None:
        """Where a descriptor points; None when that was not read."""
        for file in self.files.value or ():
            if file.number == descriptor:
                return file.target
        return None


@record
class TreeSnapshot:
    """One look. `at_s` is on the monotonic clock, `took_s` what it took, `gone` who vanished while we looked."""

    at_s: float
    processes: tuple[ProcessFacts, ...]
    gone: tuple[int, ...] = ()
    took_s: float = 0.0
    left_out: int = 0

    def find(self, pid: int) -> ProcessFacts | None:
        """The process with this pid."""
        return next((process for process in self.processes if process.pid == pid), None)

    @property
    def threads(self) -> int:
        """How many living threads there are."""
        return sum(len(process.living) for process in self.processes)
