"""Who belongs to a run, by proof; signals to exactly those; and emptying the tree until nothing is left.

Theory. A process is a member when the kernel says so: it is in the run's control group, in the PID namespace whose
first process is the keeper, or descends from the run's known processes; or, last, when it carries the run's marker in
the environment it was started with and runs under our uid. Never by name. Descent alone loses a daemon that was
re-parented beyond the keeper, the marker alone one that cleared its environment, so all proofs are taken together in
one pass over /proc that reads each process's ``stat`` once.

Never members: ourselves, our ancestors, the keeper, whom the caller lists as bystanders, and who is older than the
keeper. A signal goes through a pidfd whose start time was compared after opening. A zombie is dead, unless threads of
it still run (its main thread ended first). A process that KILL has not ended yet is reported with where it is stuck
(PROC-16, B-41).
"""

from __future__ import annotations

import os
import select
import signal as signals
import time
from collections.abc import Iterable
from enum import Enum
from typing import TYPE_CHECKING

from holdfast.host.clock import boot_id
from holdfast.host.process import pidfd
from holdfast.host.process.processes import (
    ATTEMPT,
    RUN_ID,
    has_living_threads,
    list_values,
    read_environment,
    read_stat,
    read_uid,
)
from holdfast.model.identity import ProcessId
from holdfast.model.record import record

from .namespaces import read_namespace

if TYPE_CHECKING:
    from .create import ControlGroup

MOST_WATCHED = 256
"""So many ends are waited for at once: more pidfds could meet the limit of open files."""
GENTLE = frozenset({signals.SIGTERM, signals.SIGINT, signals.SIGHUP, signals.SIGUSR1, signals.SIGUSR2, signals.SIGQUIT})


class MembershipProof(str, Enum):
    """What says that a process belongs to a run."""

    CGROUP = "cgroup"
    NAMESPACE = "namespace"
    DESCENT = "descent"
    MARKER = "marker"


@record
class Member:
    """One living process of a run: identity, proof, state letter (proc_pid_stat(5)) and the kernel's name for it."""

    process: ProcessId
    proof: MembershipProof
    state: str
    name: str


@record
class RunTree:
    """All by which a run's processes can be found.

    `keeper` is no member but the root of the search; `roots` are further processes known to be the run's (the job's
    leader). When the keeper is dead, orphans are children of `adopter`, a child subreaper (the supervisor): then its
    children are members too, except `bystanders`, which must list every other child it has. `first` is the first
    process of a container's PID namespace: all in that are members.
    """

    run_id: str
    attempt: int
    group: ControlGroup | None = None
    keeper: ProcessId | None = None
    roots: tuple[ProcessId, ...] = ()
    adopter: int | None = None
    bystanders: frozenset[int] = frozenset()
    first: ProcessId | None = None


@record
class RefusedSignal:
    """A member that could not be signalled, and why."""

    member: Member
    why: str


@record
class EmptyResult:
    """How emptying a tree went. `killed` counts the processes that were signalled.

    `unseen` is True when none was found and yet the keeper still has living children: processes that end and fork
    faster than /proc can be read.
    """

    survivors: tuple[Member, ...]
    killed: int
    rounds: int
    refused: tuple[RefusedSignal, ...] = ()
    unseen: bool = False

    @property
    def empty(self) -> bool:
        """Whether it is proven that nothing of the run is left."""
        return not self.survivors and not self.unseen


@record(frozen=False)
class _ScannedProcess:
    ppid: int
    state: str
    start_ticks: int
    threads: int
    name: str


def _scan() -> dict[int, _ScannedProcess]:
    """Every process that /proc shows, by pid. One open, one read each: this is the cost of a search."""
    found: dict[int, _ScannedProcess] = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            descriptor = os.open(f"/proc/{entry}/stat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            data = os.read(descriptor, 2048)
        except OSError:
            continue
        finally:
            os.close(descriptor)
        head, _, tail = data.rpartition(b")")
        fields = tail.split(None, 20)
        name = head.partition(b"(")[2].decode("utf-8", "replace")
        found[int(entry)] = _ScannedProcess(int(fields[1]), chr(fields[0][0]), int(fields[19]), int(fields[17]), name)
    return found


def _is_living(pid: int, seen: _ScannedProcess) -> bool:
    return seen.state not in "ZX" or (seen.threads > 1 and has_living_threads(pid))


def find_members(tree: RunTree) -> list[Member]:
    """Every living process of the run, oldest first, each with the first proof that held.

    A process that ends meanwhile may still be listed; signals to it find it gone.
    """
    boot, seen = boot_id(), _scan()
    excluded = _lineage(seen, os.getpid()) | tree.bystanders
    keeper = None
    if tree.keeper is not None and _is_same(tree.keeper, seen, boot):
        excluded |= {tree.keeper.pid}
        # A dead keeper that nobody has reaped yet has no descendants any more.
        keeper = tree.keeper.pid if _is_living(tree.keeper.pid, seen[tree.keeper.pid]) else None
    proofs: dict[int, MembershipProof] = {}
    if tree.group is not None:
        proofs.update(
            (pid, MembershipProof.CGROUP) for pid in tree.group.pids() or () if pid in seen and pid not in excluded
        )
    roots = [root.pid for root in tree.roots if _is_same(root, seen, boot)] + ([keeper] if keeper is not None else [])
    _prove_descent(proofs, seen, tree, roots, excluded, adopted=keeper is None)
    _prove_by_reading(proofs, seen, tree, keeper, excluded)
    members = [
        Member(ProcessId(pid, seen[pid].start_ticks, boot), proof, seen[pid].state, seen[pid].name)
        for pid, proof in proofs.items()
        if _is_living(pid, seen[pid])
    ]
    return sorted(members, key=lambda member: (member.process.start_ticks, member.process.pid))


def _is_same(process: ProcessId, seen: dict[int, _ScannedProcess], boot: str) -> bool:
    return process.boot_id == boot and process.pid in seen and seen[process.pid].start_ticks == process.start_ticks


def _lineage(seen: dict[int, _ScannedProcess], pid: int) -> frozenset[int]:
    line = set()
    while pid in seen and pid not in line:
        line.add(pid)
        pid = seen[pid].ppid
    return frozenset(line | {1})


def _prove_descent(
    proofs: dict[int, MembershipProof],
    seen: dict[int, _ScannedProcess],
    tree: RunTree,
    roots: list[int],
    excluded: frozenset[int],
    *,
    adopted: bool,
) -> None:
    children: dict[int, list[int]] = {}
    for pid, process in seen.items():
        children.setdefault(process.ppid, []).append(pid)
    pending = [*roots, *proofs]
    oldest = tree.keeper.start_ticks if tree.keeper is not None else 0
    if adopted and tree.adopter is not None and tree.keeper is not None:
        orphans = [pid for pid in children.get(tree.adopter, ()) if pid not in tree.bystanders]
        pending += [pid for pid in orphans if pid not in excluded and seen[pid].start_ticks >= oldest]
    visited = set()
    while pending:
        pid = pending.pop()
        if pid in visited:
            continue
        visited.add(pid)
        if pid not in excluded:
            proofs.setdefault(pid, MembershipProof.DESCENT)
        pending += [child for child in children.get(pid, ()) if child not in excluded]


def _prove_by_reading(
    proofs: dict[int, MembershipProof],
    seen: dict[int, _ScannedProcess],
    tree: RunTree,
    keeper: int | None,
    excluded: frozenset[int],
) -> None:
    """The costly proofs, for processes of ours that are not older than the run and not proven yet."""
    known = [process.start_ticks for process in (tree.keeper, *tree.roots) if process is not None]
    oldest = min(known, default=0)
    first = tree.first.pid if tree.first is not None and _is_same(tree.first, seen, boot_id()) else None
    own_namespace = read_namespace()
    inside = {read_namespace(pid) for pid in (keeper, first) if pid is not None} - {own_namespace, None}
    marker, attempt = tree.run_id.encode(), str(tree.attempt).encode()
    own = os.geteuid()
    for pid, process in seen.items():
        if pid in proofs or pid in excluded or process.start_ticks < oldest:
            continue
        if inside and read_namespace(pid) in inside:
            proofs[pid] = MembershipProof.NAMESPACE
            continue
        environment = _read_environment(pid, own)
        if marker in list_values(environment, RUN_ID) and attempt in list_values(environment, ATTEMPT):
            proofs[pid] = MembershipProof.MARKER


def _read_environment(pid: int, uid: int) -> bytes:
    # Anybody can set our marker; only under our own uid does it prove anything. Whose it is is asked on both sides:
    # a number can be given to somebody else meanwhile.
    if read_uid(pid) != uid:
        return b""
    data = read_environment(pid)
    return data if data and read_uid(pid) == uid else b""


def signal_members(members: Iterable[Member], number: int) -> tuple[RefusedSignal, ...]:
    """Signal exactly these processes; who is gone already is passed over.

    A stopped process does not act on a gentle signal: it gets CONT after it.

    Returns:
        Those that live and could not be signalled.
    """
    refused = []
    for member in members:
        try:
            _signal_one(member.process, number)
            if member.state == "T" and number in GENTLE:
                _signal_one(member.process, signals.SIGCONT)
        except ProcessLookupError:
            continue
        except OSError as error:
            refused.append(RefusedSignal(member, error.strerror or str(error)))
    return tuple(refused)


def _signal_one(process: ProcessId, number: int) -> None:
    if not pidfd.send_signal(process, number):
        raise ProcessLookupError


def empty_tree(tree: RunTree, *, deadline_s: float, end_keeper: bool = False) -> EmptyResult:
    """KILL the run's processes again and again until none is found or `deadline_s` is over.

    The control group's own kill comes first. Whoever is found outside of it is killed one by one; if new processes
    appear faster than that (a fork bomb), all are stopped before they are killed. With `end_keeper` the keeper goes too
    once the rest could not be emptied otherwise: as first process of a PID namespace it takes everything with it.
    """
    end = time.monotonic() + deadline_s
    known: set[ProcessId] = set()
    refused: tuple[RefusedSignal, ...] = ()
    rounds, growing = 0, False
    while True:
        if tree.group is not None:
            tree.group.kill()
        members = find_members(tree)
        unseen = not members and tree.keeper is not None and _has_living_children(tree.keeper)
        if not (members or unseen) or (rounds and time.monotonic() >= end):
            return EmptyResult(tuple(members), len(known), rounds, refused if members else (), unseen)
        fresh = {member.process for member in members} - known
        growing = growing or bool(rounds and fresh)
        rounds += 1
        if growing:
            members = _stop_all(tree, members)
        known.update(member.process for member in members)
        refused = signal_members(members, signals.SIGKILL)
        if end_keeper and rounds > 3 and tree.keeper is not None:
            keeper = Member(tree.keeper, MembershipProof.DESCENT, "", "keeper")
            refused += signal_members([keeper], signals.SIGKILL)
        _wait_for_ends(members, min(0.05, max(0.001, end - time.monotonic())))


def _has_living_children(keeper: ProcessId) -> bool:
    """Whether the keeper, to whom every orphan of the tree comes, still has a child that is not a zombie.

    This is the proof of emptiness: a chain of processes each of which forks and ends can hide from any number of looks
    at /proc, but not from its adoptive parent. Source: proc_tid_children(5); exact for a list that does not change.
    """
    for _ in range(20):
        stat = read_stat(keeper.pid)
        if stat is None or stat.start_ticks != keeper.start_ticks or stat.state in "ZX":
            return False
        states = []
        for child in _read_children(keeper.pid):
            stat = read_stat(child)
            states.append("gone" if stat is None else stat.state)
        if not states:
            return False
        if any(state not in ("Z", "X", "gone") for state in states):
            return True
        # Only ends so far: the keeper is about to reap them, or the next of the chain is already there.
        select.poll().poll(1)
    return "gone" in states


def _read_children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as file:
                found += [int(word) for word in file.read().split()]
    except OSError:
        return found
    return found


def list_descendants(keeper: ProcessId) -> list[int] | None:
    """The living processes below a living keeper; None when it is gone or this kernel tells no children.

    Far cheaper than a search through all of /proc, and no proof: whoever forks meanwhile may be missed.
    """
    stat = read_stat(keeper.pid)
    tells = os.path.exists(f"/proc/{keeper.pid}/task/{keeper.pid}/children")
    if not tells or stat is None or stat.start_ticks != keeper.start_ticks or stat.state in "ZX":
        return None
    found: list[int] = []
    pending = [keeper.pid]
    seen = set(pending)
    while pending:
        for child in _read_children(pending.pop()):
            if child in seen:
                continue
            seen.add(child)
            pending.append(child)
            stat = read_stat(child)
            if stat is not None and stat.state not in "ZX":
                found.append(child)
    return found


def _stop_all(tree: RunTree, members: list[Member]) -> list[Member]:
    # A stopped process does not fork: the set can only shrink to a fixed point.
    stopped: set[ProcessId] = set()
    for _ in range(50):
        running = [member for member in members if member.process not in stopped]
        if not running:
            break
        signal_members(running, signals.SIGSTOP)
        stopped.update(member.process for member in running)
        members = find_members(tree)
    return members


def _wait_for_ends(members: list[Member], timeout_s: float) -> None:
    """Return when every one of these has ended, or the time is over, or one end is worth another look."""
    watched = []
    try:
        for member in members[:MOST_WATCHED]:
            try:
                held = pidfd.hold_process(member.process)
            except OSError:
                break
            if held is not None:
                watched.append(held)
        if watched:
            pidfd.wait_for_ends(watched, timeout_s)
        elif members:
            # All ended between the search and now: look again at once, but not in a hot loop.
            select.poll().poll(1)
    finally:
        for held in watched:
            held.close()


@record
class BlockedProcess:
    """A process that does not end: its state letter and where in the kernel it waits (None: not told)."""

    pid: int
    name: str
    state: str
    wchan: str | None

    def describe(self) -> str:
        """For people: what it is doing, and that KILL cannot change it while it is in uninterruptible sleep."""
        where = f", waits in {self.wchan}" if self.wchan else ", the kernel does not say where it waits"
        if self.state == "D":
            return (
                f"pid {self.pid} ({self.name}) is in uninterruptible sleep (D){where}: KILL is queued and takes effect "
                "when that call returns; it is not dead"
            )
        return f"pid {self.pid} ({self.name}) is in state {self.state}{where}"


def describe_blocked(pid: int, *, proc: str = "/proc") -> BlockedProcess | None:
    """Why a process is still there (PROC-16); None when it is gone. `proc` is another /proc for tests."""
    try:
        with open(f"{proc}/{pid}/stat", "rb") as file:
            head, _, tail = file.read().rpartition(b")")
    except OSError:
        return None
    try:
        with open(f"{proc}/{pid}/wchan", encoding="ascii", errors="replace") as file:
            wchan = file.read().strip()
    except OSError:
        wchan = ""
    name = head.partition(b"(")[2].decode("utf-8", "replace")
    return BlockedProcess(
        pid, name, tail.split()[0].decode("ascii", "replace"), wchan if wchan not in ("", "0") else None
    )
