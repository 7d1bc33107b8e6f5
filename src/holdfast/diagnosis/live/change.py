"""What changed between two looks: per thread, per process, for the tree and the box. Pure.

A difference is only taken between the same thread of the same process: pid, thread id and start times are compared, so
a reused number is an end and a beginning. A difference of something unread is None, never zero.
"""

from __future__ import annotations

from holdfast.model.record import record

from .detect.waits import Wait, has_timeout
from .gather.snapshot import TICKS_PER_S, IoCounters, ProcessFacts, ThreadFacts, TreeSnapshot

NEGLIGIBLE_SHARE = 0.01
"""A thread that used less of a CPU than this did nothing but wake and sleep again."""
BUSY_SHARE = 0.8
FEW_SWITCHES_PER_S = 2.0
"""Helpers that only look after something (a progress bar's monitor, a queue's feeder) wake this often at most."""


@record
class ThreadChange:
    """One thread that both looks saw. Seconds; None where a counter was not readable."""

    before: ThreadFacts
    after: ThreadFacts
    window_s: float

    @property
    def ran_s(self) -> float:
        """Time on a CPU."""
        if self.before.run_ns is None or self.after.run_ns is None:
            return (self.after.cpu_ticks - self.before.cpu_ticks) / TICKS_PER_S
        return (self.after.run_ns - self.before.run_ns) / 1e9

    @property
    def queued_s(self) -> float | None:
        """Time in which it could have run and had to wait for a CPU."""
        if self.before.queue_ns is None or self.after.queue_ns is None:
            return None
        return (self.after.queue_ns - self.before.queue_ns) / 1e9

    @property
    def switches(self) -> int | None:
        """How often it left a CPU."""
        if self.before.switches is None or self.after.switches is None:
            return None
        return self.after.switches - self.before.switches

    @property
    def voluntary(self) -> int | None:
        """How often it went to sleep by itself."""
        if self.before.voluntary is None or self.after.voluntary is None:
            return None
        return self.after.voluntary - self.before.voluntary

    @property
    def share(self) -> float:
        """The part of one CPU that it used."""
        return self.ran_s / self.window_s

    @property
    def wanted_share(self) -> float:
        """The part of one CPU that it used or would have used, had one been free."""
        return (self.ran_s + (self.queued_s or 0.0)) / self.window_s

    @property
    def wait(self) -> Wait | None:
        """What it waited for in both looks; None when that changed."""
        return self.after.wait if self.after.wait is self.before.wait else None

    @property
    def is_still(self) -> bool | None:
        """Whether it did not run at all in between; None when switches are not counted here."""
        return None if self.switches is None else self.switches == 0 and self.before.state != "R"

    @property
    def is_busy(self) -> bool:
        """Whether it ran, or wanted to run, nearly all the time."""
        return self.wanted_share >= BUSY_SHARE

    @property
    def is_idle(self) -> bool:
        """Whether it did no work to speak of: no CPU, and woke now and then at most."""
        few = self.switches is None or self.switches <= max(1.0, FEW_SWITCHES_PER_S * self.window_s)
        return self.share < NEGLIGIBLE_SHARE and few and self.after.state != "R"

    @property
    def waits_for_ever(self) -> bool:
        """Whether it sits in a futex wait that no timeout ends, in the same one at both looks."""
        return (
            self.wait is Wait.FUTEX
            and self.is_still is True
            and has_timeout(self.after.syscall, self.after.arguments) is False
        )


@record
class ProcessChange:
    """One process that both looks saw; `threads` are those that lived through, the main thread first if it did."""

    before: ProcessFacts
    after: ProcessFacts
    threads: tuple[ThreadChange, ...]
    started: int
    ended: int
    window_s: float

    @property
    def pid(self) -> int:
        """Its number."""
        return self.after.pid

    @property
    def main(self) -> ThreadChange | None:
        """The main thread; None when it has ended while others live on."""
        return next((thread for thread in self.threads if thread.after.tid == self.after.pid), None)

    @property
    def deciding(self) -> ThreadChange | None:
        """The thread whose wait speaks for the process: the main thread, else the oldest that lives."""
        main = self.main
        if main is not None and main.after.state not in "ZX":
            return main
        return next((thread for thread in self.threads if thread.after.state not in "ZX"), None)

    @property
    def ran_s(self) -> float:
        """CPU seconds of the threads that lived through."""
        return sum(thread.ran_s for thread in self.threads)

    @property
    def queued_s(self) -> float | None:
        """Seconds that its threads waited for a CPU."""
        known = [thread.queued_s for thread in self.threads if thread.queued_s is not None]
        return sum(known) if known else None

    @property
    def share(self) -> float:
        """CPUs used, 1.0 is one core."""
        return self.ran_s / self.window_s

    @property
    def switches(self) -> int | None:
        """How often its threads left a CPU."""
        known = [thread.switches for thread in self.threads]
        return None if None in known else sum(value for value in known if value is not None)

    @property
    def voluntary(self) -> int | None:
        """How often its threads went to sleep by themselves."""
        known = [thread.voluntary for thread in self.threads]
        return None if None in known else sum(value for value in known if value is not None)

    @property
    def io(self) -> IoCounters | None:
        """Its reads and writes; None where they are not readable."""
        old, new = self.before.io.value, self.after.io.value
        if old is None or new is None:
            return None
        return IoCounters(
            new.rchar - old.rchar, new.wchar - old.wchar, new.syscr - old.syscr, new.syscw - old.syscw,
            new.read_bytes - old.read_bytes, new.write_bytes - old.write_bytes,
        )  # fmt: skip

    @property
    def is_still(self) -> bool | None:
        """Whether no thread of it ran at all; None when that cannot be told."""
        if self.started or self.ended:
            return False
        answers = [thread.is_still for thread in self.threads if thread.after.state not in "ZX"]
        if False in answers:
            return False
        return None if None in answers else True

    @property
    def is_idle(self) -> bool:
        """Whether no thread of it worked."""
        return all(thread.is_idle for thread in self.threads)


@record
class TreeChange:
    """The whole tree between two looks."""

    window_s: float
    processes: tuple[ProcessChange, ...]
    started: tuple[int, ...] = ()
    ended: tuple[int, ...] = ()

    def find(self, pid: int) -> ProcessChange | None:
        """The change of one process."""
        return next((process for process in self.processes if process.pid == pid), None)

    def children(self, pid: int) -> tuple[ProcessChange, ...]:
        """The living children of one process."""
        return tuple(p for p in self.processes if p.after.ppid == pid and not p.after.is_dead)

    def subtree(self, pid: int) -> tuple[ProcessChange, ...]:
        """One process and all its living descendants."""
        found, pending, seen = [], [pid], set()
        while pending:
            current = pending.pop(0)
            if current in seen:
                continue
            seen.add(current)
            process = self.find(current)
            if process is not None and not process.after.is_dead:
                found.append(process)
            pending += [child.pid for child in self.children(current)]
        return tuple(found)

    @property
    def living(self) -> tuple[ProcessChange, ...]:
        """Processes that are not dead."""
        return tuple(process for process in self.processes if not process.after.is_dead)

    @property
    def threads(self) -> tuple[ThreadChange, ...]:
        """All living threads."""
        return tuple(t for process in self.living for t in process.threads if t.after.state not in "ZX")

    @property
    def ran_s(self) -> float:
        """CPU seconds of the tree."""
        return sum(process.ran_s for process in self.processes)

    @property
    def queued_s(self) -> float | None:
        """Seconds that its threads waited for a CPU."""
        known = [process.queued_s for process in self.processes if process.queued_s is not None]
        return sum(known) if known else None

    @property
    def cores(self) -> float:
        """CPUs used, 1.0 is one core."""
        return self.ran_s / self.window_s

    @property
    def voluntary(self) -> int | None:
        """How often threads went to sleep by themselves."""
        known = [process.voluntary for process in self.processes]
        return None if None in known else sum(value for value in known if value is not None)

    @property
    def major_faults(self) -> int:
        """Page faults that met a disk."""
        return sum(t.after.major_faults - t.before.major_faults for p in self.processes for t in p.threads)


def compare_trees(before: TreeSnapshot, after: TreeSnapshot) -> TreeChange:
    """The change from one look to the next."""
    window = max(after.at_s - before.at_s, 1e-6)
    old = {(process.pid, process.start_ticks): process for process in before.processes}
    changes, started = [], []
    for process in after.processes:
        earlier = old.pop((process.pid, process.start_ticks), None)
        if earlier is None:
            started.append(process.pid)
        else:
            changes.append(_compare(earlier, process, window))
    ended = tuple(pid for pid, _ in old)
    return TreeChange(window, tuple(changes), tuple(started), ended)


def _compare(before: ProcessFacts, after: ProcessFacts, window: float) -> ProcessChange:
    old = {(thread.tid, thread.start_ticks): thread for thread in before.threads}
    threads, started = [], 0
    for thread in after.threads:
        earlier = old.pop((thread.tid, thread.start_ticks), None)
        if earlier is None:
            started += 1
        else:
            threads.append(ThreadChange(earlier, thread, window))
    return ProcessChange(before, after, tuple(threads), started, len(old), window)
