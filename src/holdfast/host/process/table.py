"""One look at the processes of the box, by which many questions are answered: who lives, who carries a run's mark.

Each part of it is read at the first question that needs it, and once: what other accounts have written decides what is
asked, so one question more must not be one more walk through /proc. It is as old as its first question.
"""

from __future__ import annotations

import itertools
import os
from functools import cached_property

from holdfast.host import clock
from holdfast.model.identity import ProcessId

from . import processes

# Source: include/linux/proc_ns.h, PROC_PID_INIT_INO: the number of the initial PID namespace on every Linux.
_INITIAL_PID_NAMESPACE = "pid:[4026531836]"


def own_pid_namespace() -> str:
    """The name of our PID namespace, empty when /proc does not tell."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def is_initial_pid_namespace() -> bool:
    """Whether we see every process of the box (hidepid aside)."""
    return own_pid_namespace() == _INITIAL_PID_NAMESPACE


class ProcessTable:
    """The processes as one look sees them."""

    def __init__(self) -> None:
        """Nothing is read yet."""
        self._by_ticks: dict[int, list[int]] | None = None
        self._inner: dict[int, frozenset[int]] = {}
        self._marked: dict[tuple[str, int], list[tuple[int, int]]] | None = None
        self._unread: set[int] = set()

    @cached_property
    def boot_id(self) -> str:
        """The boot that this is about."""
        return clock.boot_id()

    def is_other_boot(self, recorded: str) -> bool:
        """As `clock.is_other_boot`, for a boot id that is read once."""
        return bool(recorded and self.boot_id) and recorded != self.boot_id

    @cached_property
    def namespace(self) -> str:
        """Our PID namespace, empty when /proc does not tell."""
        return own_pid_namespace()

    def is_alive(self, process: ProcessId, pid_namespace: str) -> bool | None:
        """Whether a process that was recorded in that PID namespace lives; None when it cannot be seen from here."""
        if self.is_other_boot(process.boot_id):
            return False
        if not pid_namespace or pid_namespace == self.namespace:
            stat = processes.read_stat(process.pid)
            if stat is None:
                return None if _is_hidden(process.pid) else False
            if stat.start_ticks != process.start_ticks:
                return False
            return stat.state not in "ZX" or processes.has_living_threads(process.pid)
        if process.pid in self._read_inner(process.start_ticks):
            return True
        # Only the initial namespace contains every other one; hidepid hides process 1 from us as it does the rest.
        complete = self.namespace == _INITIAL_PID_NAMESPACE and os.path.exists("/proc/1/stat")
        return False if complete else None

    def find_marked(self, run_id: str, attempt: int, uid: int) -> tuple[int, ...]:
        """The living processes of that account that carry the attempt's mark, where we may read it.

        Root's processes may have become anybody's; nobody's become those of another account.
        """
        if self._marked is None:
            self._marked = _read_marks(self._unread)
        return tuple(pid for pid, owner in self._marked.get((run_id, attempt), ()) if uid in (0, owner))

    def is_unread(self, uid: int) -> bool:
        """Whether the processes of that uid's account have more environment than was read for `find_marked`."""
        return processes.find_account(uid) in self._unread

    def _list_started(self, ticks: int) -> list[int]:
        """The processes that were started in that tick of the clock."""
        if self._by_ticks is None:
            self._by_ticks = {}
            for pid in processes.list_pids():
                stat = processes.read_stat(pid)
                if stat is not None:
                    self._by_ticks.setdefault(stat.start_ticks, []).append(pid)
        return self._by_ticks.get(ticks, [])

    def _read_inner(self, ticks: int) -> frozenset[int]:
        """The pids, in every PID namespace from ours inwards, of the processes that were started in that tick."""
        if ticks not in self._inner:
            self._inner[ticks] = frozenset(itertools.chain(*map(read_inner_pids, self._list_started(ticks))))
        return self._inner[ticks]


def _read_marks(unread: set[int]) -> dict[tuple[str, int], list[tuple[int, int]]]:
    """Every run's mark in an environment that we may read: (run, attempt) to pid and account."""
    found: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for pid, uid, data in processes.iterate_environments(unread):
        runs = processes.list_values(data, processes.RUN_ID)
        process = processes.identify(pid) if runs else None
        if process is None or not processes.is_alive(process):
            continue
        for run, attempt in itertools.product(runs, processes.list_values(data, processes.ATTEMPT)):
            if attempt.isdigit() and len(attempt) < 10:
                found.setdefault((os.fsdecode(run), int(attempt)), []).append((pid, uid))
    return found


def _is_hidden(pid: int) -> bool:
    """Whether a process exists that /proc does not show us (hidepid). Source: proc(5), hidepid=."""
    if os.path.exists(f"/proc/{pid}"):
        return False
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError, ValueError):
        return False
    return os.path.exists("/proc/self") and not os.path.exists(f"/proc/{pid}")


def read_inner_pids(pid: int) -> tuple[int, ...]:
    """The pids of one process, one for each PID namespace from ours inwards. Source: proc_pid_status(5), NSpid."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            for line in file:
                if line.startswith(b"NSpid:"):
                    return tuple(int(field) for field in line.split()[1:])
    except OSError:
        return ()
    return ()
