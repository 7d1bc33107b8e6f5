"""Finds who has a card open whose memory no visible process accounts for (GPUH-07, GPUH-08).

Reports candidates with what speaks for each, and never acts. `find_open_nodes` reads, `judge_holders` decides, on two
looks some seconds apart. The rules keep healthy processes off the list:

- only processes of this account, which have this card's device node open or mapped;
- never one with the mark of a run that is not known to be over, never a system daemon;
- a process that carries the mark of a run that is over is a leftover wherever it lives;
- any other one is a candidate only if it used no CPU between the two looks, the driver does not list it, and the
  driver's list can be compared with ours: in the initial PID namespace with all of /proc visible. Inside a container
  the driver names pids of the host or none at all, so there "is not listed" says nothing (bug B-65).
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from holdfast.diagnosis.evidence import Reading
from holdfast.host.process.processes import list_pids, read_command, read_environ, read_stat, read_uid
from holdfast.model.record import record
from holdfast.model.units import format_count

if TYPE_CHECKING:
    from holdfast.model.gpu import Card

BETWEEN_LOOKS_S = 5.0
YOUNG_S = 60.0
"""A process this young may be about to show up in the driver's list."""
HIDDEN_BYTES = 1024**3
DAEMONS = frozenset(
    {"nvidia-persiste", "nv-hostengine", "nv-fabricmanage", "nvidia-cuda-mps", "dcgm-exporter", "nvidia-smi", "Xorg"}
    | {
        "Xwayland",
        "gnome-shell",
        "kwin_wayland",
        "kwin_x11",
        "sddm",
        "gdm-x-session",
        "nvtop",
        "nvitop",
        "nvidia-powerd",
    }
)
"""Names of programs that hold device nodes rightly, cut as the kernel cuts them. A name only ever takes a process off
the list, so one that borrows it gains nothing."""


@record
class OpenNode:
    """One process of this account that has a card open. `nodes` are device names (``nvidia0``)."""

    pid: int
    start_ticks: int
    comm: str
    command: str
    state: str
    nodes: tuple[str, ...]
    cpu_ticks: int
    age_s: float
    run_id: str = ""
    in_service: bool = False


@record
class OpenNodes:
    """All such processes at one moment (`at_s`, monotonic). `unread` names processes of ours that could not be read."""

    holders: tuple[OpenNode, ...]
    at_s: float
    unread: tuple[int, ...] = ()


@record
class HiddenHolder:
    """A process that may hold the memory unseen, and why; identity is pid and start ticks."""

    pid: int
    start_ticks: int
    command: str
    age_s: float
    leftover_of: str
    why: tuple[str, ...]


def find_open_nodes(*, dev: str = "/dev", uid: int | None = None) -> OpenNodes:
    """Every process of this account with a card's node open or mapped. Reads /proc of our own processes only.

    Call it in a disposable child: reading a process that hangs in the driver can block. `dev` stands in for /dev.
    """
    own = os.geteuid() if uid is None else uid
    found, unread = [], []
    for pid in list_pids():
        if pid == os.getpid() or read_uid(pid) != own:
            continue
        nodes = _nodes_of(pid, dev)
        if nodes is None:
            unread.append(pid)
            continue
        node = _describe(pid, nodes) if nodes else None
        if node is not None:
            found.append(node)
    return OpenNodes(tuple(found), time.monotonic(), tuple(unread))


def _nodes_of(pid: int, dev: str) -> tuple[str, ...] | None:
    """Names of the card nodes that it has open or mapped; None when that could not be read though it exists."""
    prefix, nodes = f"{dev}/nvidia", set()
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            try:
                target = os.readlink(f"/proc/{pid}/fd/{name}")
            except FileNotFoundError:
                continue
            if target.startswith(prefix) and target[len(prefix) :].isdigit():
                nodes.add(target[len(dev) + 1 :])
        with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as file:
            for line in file:
                _, found, path = line.rstrip("\n").partition(prefix)
                if found and path.isdigit():
                    nodes.add(f"nvidia{path}")
    except (FileNotFoundError, ProcessLookupError):
        return ()
    except OSError:
        return None
    return tuple(sorted(nodes))


def _describe(pid: int, nodes: tuple[str, ...]) -> OpenNode | None:
    stat = read_stat(pid)
    if stat is None:
        return None
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - stat.start_ticks / os.sysconf("SC_CLK_TCK")
    return OpenNode(
        pid=pid,
        start_ticks=stat.start_ticks,
        comm=stat.comm,
        command=(read_command(pid) or f"[{stat.comm}]")[:200],
        state=stat.state,
        nodes=nodes,
        # utime and stime, fields 14 and 15 of proc_pid_stat(5).
        cpu_ticks=int(fields[11]) + int(fields[12]),
        age_s=max(age_s, 0.0),
        run_id=(read_environ(pid) or {}).get("HOLDFAST_RUN_ID", ""),
        in_service=_is_in_service(pid),
    )


def _is_in_service(pid: int) -> bool:
    """Whether the service manager runs it as a unit of the system. Source: systemd.slice(5), system.slice."""
    try:
        with open(f"/proc/{pid}/cgroup", encoding="utf-8", errors="replace") as file:
            paths = [line.rstrip("\n").split(":", 2)[-1] for line in file]
    except OSError:
        return False
    return any(path.startswith("/system.slice/") and ".service" in path for path in paths)


def hidden_bytes(card: Card) -> int | None:
    """Memory in use that the listed processes do not account for; None when that cannot be reckoned."""
    processes = card.processes
    if card.memory_used_bytes is None or processes is None or card.mig_enabled:
        return None
    if any(process.used_bytes is None for process in processes):
        return None
    return max(card.memory_used_bytes - sum(process.used_bytes or 0 for process in processes), 0)


def judge_holders(
    card: Card,
    first: OpenNodes,
    second: OpenNodes,
    *,
    over_runs: Collection[str],
    live_pids: Collection[int] = (),
    sees_everyone: bool,
) -> Reading[tuple[HiddenHolder, ...]]:
    """Who may hold this card's memory unseen, or why that cannot be told.

    Args:
        card: the card's reading, with the driver's list of processes.
        first: a look, and
        second: another one at least `BETWEEN_LOOKS_S` later.
        over_runs: ids of the runs that are known to be over; what carries any other mark is left alone.
        live_pids: processes of live runs by other witnesses (their cgroups, their leases).
        sees_everyone: whether we are in the initial PID namespace with all of /proc visible.
    """
    if card.minor is None:
        return Reading(unread=f"which device node belongs to card {card.index} is not known")
    if second.at_s - first.at_s < BETWEEN_LOOKS_S:
        return Reading(unread=f"two looks at least {BETWEEN_LOOKS_S:g} s apart are needed")
    node = f"nvidia{card.minor}"
    before = {(holder.pid, holder.start_ticks): holder for holder in first.holders}
    listed = None if card.processes is None else {process.pid for process in card.processes}
    hidden = hidden_bytes(card)
    found = []
    for holder in second.holders:
        earlier = before.get((holder.pid, holder.start_ticks))
        if node not in holder.nodes or earlier is None or holder.pid in live_pids:
            continue
        if holder.run_id and holder.run_id not in over_runs:
            continue
        if holder.comm in DAEMONS or holder.in_service:
            continue
        why = _why(holder, earlier, listed, hidden, sees_everyone=sees_everyone)
        if why:
            found.append(
                HiddenHolder(holder.pid, holder.start_ticks, holder.command, holder.age_s, holder.run_id, tuple(why))
            )
    if not found and second.unread:
        count = format_count(len(second.unread), "process", "processes")
        return Reading(unread=f"{count} of this account cannot be looked at")
    return Reading(tuple(found))


def _why(
    holder: OpenNode, earlier: OpenNode, listed: Collection[int] | None, hidden: int | None, *, sees_everyone: bool
) -> list[str]:
    """What speaks for one process; empty when nothing does."""
    ticks = holder.cpu_ticks - earlier.cpu_ticks
    used = f"used {ticks} ticks of CPU" if ticks else "used no CPU"
    rests = f"{used} between two looks, state {holder.state}, {holder.age_s:.0f} s old"
    if holder.run_id:
        return [f"carries the mark of run {holder.run_id}, which is over", rests]
    if not sees_everyone or listed is None or holder.pid in listed or holder.age_s < YOUNG_S or ticks:
        return []
    if hidden is None or hidden < HIDDEN_BYTES:
        return []
    return [f"has {', '.join(holder.nodes)} open and is not in the driver's list of processes", rests]


def advise_candidates(candidates: Sequence[HiddenHolder]) -> str:
    """What to do about the candidates of `judge_holders`; nothing is done by itself."""
    pids = ", ".join(str(candidate.pid) for candidate in candidates)
    return (
        f"look at pid {pids}; end what you do not need with `kill -TERM PID`, and only then see whether memory is freed"
    )
