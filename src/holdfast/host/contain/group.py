"""A handle of one run's control group: joined by the job, read, frozen, killed, removed.

Theory. A group is plain data (directories), so that it can be written down and opened again by the supervisor that
adopts a run. Membership is the kernel's word: whoever is in the group was started by the job. All reads answer None for
"cannot tell"; a directory that is gone is empty only where the tree around it can be seen. The counters vanish with the
group: read `usage` before `remove` (B-23). `create` makes groups and limits them.

Source: cgroups(7), Documentation/admin-guide/cgroup-v2.rst; ``cgroup.kill`` since Linux 5.14, ``memory.peak`` since
5.19.
"""

from __future__ import annotations

import errno
import os
import select
import signal

from holdfast.host.process import pidfd
from holdfast.model.record import field, record

from .tree import parse_limit

TOP = "holdfast"
"""The directory that holds one user's groups."""


@record
class GroupUsage:
    """What the whole tree uses, as the group counts it (LIM-04); None is "cannot tell here".

    Bytes include page cache that the tree brought in; `memory_anon_bytes` is what cannot be given back. `oom_kills`
    counts processes that the kernel killed for lack of memory in this group; `throttled_s` is time that the CPU limit
    took away.
    """

    memory_bytes: int | None = None
    memory_peak_bytes: int | None = None
    memory_anon_bytes: int | None = None
    memory_limit_bytes: int | None = None
    oom_kills: int | None = None
    cpu_s: float | None = None
    throttled_s: float | None = None
    tasks: int | None = None


@record
class ControlGroup:
    """One run's control group, as data: it can be written down and opened again by another process.

    `unified` is its v2 directory, `v1` maps a v1 controller to a directory, `controllers` are those that v2 gives it.
    `enforced` says by which mechanism each limit asked for holds, `refused` why others do not. `top` is the name of the
    directory above, which a container's own group has from its runtime.
    """

    name: str
    unified: str | None = None
    v1: dict[str, str] = field(default_factory=dict)
    controllers: tuple[str, ...] = ()
    enforced: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    top: str = TOP

    def directories(self) -> list[str]:
        """Every directory of the group, the v2 one first."""
        return list(dict.fromkeys(([self.unified] if self.unified else []) + list(self.v1.values())))

    @property
    def witness(self) -> str | None:
        """The directory whose population anybody may read: what a lease record names."""
        return next(iter(self.directories()), None)

    @property
    def can_kill_at_once(self) -> bool:
        """Whether the kernel ends the whole group in one step."""
        return self.unified is not None and os.access(f"{self.unified}/cgroup.kill", os.W_OK)

    def add(self, pid: int = 0) -> None:
        """Move a process (0: the caller) with all its threads into the group. Its later children start there.

        Safe between fork and exec. The mover needs write access to the nearest common ancestor's ``cgroup.procs`` too.

        Raises:
            OSError: the kernel refused; the message names the directory.
        """
        for directory in self.directories():
            write_control(f"{directory}/cgroup.procs", str(pid))

    def pids(self) -> list[int] | None:
        """Every process in the group or below it, in any hierarchy; None when it cannot be read.

        A process of another PID namespace that we cannot see is left out (the kernel shows it as 0).
        """
        found: set[int] = set()
        for directory in self.directories():
            members = _read_pids(directory)
            if members is None:
                return None
            found.update(members)
        found.discard(0)
        return sorted(found)

    def is_populated(self) -> bool | None:
        """Whether any living process is in the group; None when it cannot be told. Zombies do not count."""
        answers = [is_populated(directory) for directory in self.directories()]
        if True in answers:
            return True
        return None if None in answers else False

    def usage(self) -> GroupUsage:
        """Memory, CPU time and tasks of the whole tree, now; the counters go with the group: read before `remove`."""
        return _read_v2_usage(self) if "memory" in self.controllers else _read_v1_usage(self)

    def freeze(self) -> bool:
        """Stop every process of the group where the kernel can; False where it cannot.

        KILL still ends frozen v2 processes; v1 ones die when they are thawed.
        """
        if self.unified is not None and try_write(f"{self.unified}/cgroup.freeze", "1") is None:
            return True
        freezer = self.v1.get("freezer")
        if freezer is None or try_write(f"{freezer}/freezer.state", "FROZEN") is not None:
            return False
        return _wait_frozen(f"{freezer}/freezer.state")

    def thaw(self) -> None:
        """Let its processes go on, whoever froze them and by whichever hierarchy, as far as we may."""
        if self.unified is not None:
            try_write(f"{self.unified}/cgroup.freeze", "0")
        if "freezer" in self.v1:
            try_write(f"{self.v1['freezer']}/freezer.state", "THAWED")

    def is_frozen(self) -> bool:
        """Whether somebody has frozen it."""
        return any(is_frozen(directory) for directory in self.directories())

    def kill(self) -> bool:
        """Send KILL to every process of the group.

        Returns:
            True when no process can have slipped through by forking (``cgroup.kill``, or all were frozen first); after
            False the caller looks again and repeats.
        """
        if self.unified is not None and try_write(f"{self.unified}/cgroup.kill", "1") is None:
            # Where a v1 freezer holds them, which a runtime's pause may do, they die only now.
            self.thaw()
            return True
        frozen = self.freeze()
        try:
            for pid in self.pids() or ():
                self._kill_member(pid)
        finally:
            self.thaw()
        return frozen

    def _kill_member(self, pid: int) -> None:
        # It is held first and membership read again after it: a reused pid can then only mean one that has ended.
        try:
            held = pidfd.hold(pid)
            if held is None:
                return
            try:
                if self._is_member(pid):
                    held.send(signal.SIGKILL)
            finally:
                held.close()
        except OSError:
            return

    def _is_member(self, pid: int) -> bool:
        # By the process's own word on where it is; the names are unique, so no mount table is needed to compare.
        inside = f"/{self.top}/{self.name}"
        lines = (read_text(f"/proc/{pid}/cgroup") or "").splitlines()
        return any(line.endswith(inside) or f"{inside}/" in line for line in lines)

    def remove(self) -> bool:
        """Remove the group and everything below it; False while a process (or another hand) keeps it."""
        gone = True
        for directory in self.directories():
            gone = remove_tree(directory) and gone
            # Our own top directory goes with its last run.
            _rmdir(directory.rpartition("/")[0])
        return gone


def is_populated(directory: str) -> bool | None:
    """Whether a living process is in one cgroup directory or below it; anybody may ask.

    A directory that is gone is empty, provided that the tree it was in is still there to see; else None.
    """
    events = read_text(f"{directory}/cgroup.events")
    if events is not None:
        return "populated 1" in events.splitlines()
    pids = _read_pids(directory)
    return None if pids is None else bool(pids)


def is_frozen(directory: str) -> bool | None:
    """Whether the processes of one cgroup directory, of either hierarchy, are frozen; None when it does not tell."""
    state = read_text(f"{directory}/freezer.state")
    if state is not None:
        return state in ("FROZEN", "FREEZING")
    events = read_text(f"{directory}/cgroup.events")
    return None if events is None else "frozen 1" in events.splitlines()


def _read_pids(directory: str) -> set[int] | None:
    found: set[int] = set()
    pending = [directory]
    while pending:
        current = pending.pop()
        try:
            with open(f"{current}/cgroup.procs", encoding="ascii") as file:
                found.update(int(line) for line in file)
            pending += [entry.path for entry in os.scandir(current) if entry.is_dir(follow_symlinks=False)]
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENODEV):
                return None
            if not os.path.lexists(current) and _tree_is_visible(current):
                continue
            if current == directory:
                return None
    return found


def _tree_is_visible(directory: str) -> bool:
    # The nearest directory above that exists must be a cgroup, or "gone" would only mean "not mounted here".
    parent = directory.rpartition("/")[0]
    while parent and not os.path.isdir(parent):
        parent = parent.rpartition("/")[0]
    return bool(parent) and os.path.exists(f"{parent}/cgroup.procs")


def _read_v2_usage(group: ControlGroup) -> GroupUsage:
    base = group.unified or ""
    stat, cpu = _read_table(f"{base}/memory.stat"), _read_table(f"{base}/cpu.stat")
    return GroupUsage(
        memory_bytes=parse_limit(read_text(f"{base}/memory.current")),
        memory_peak_bytes=parse_limit(read_text(f"{base}/memory.peak")),
        memory_anon_bytes=stat.get("anon"),
        memory_limit_bytes=parse_limit(read_text(f"{base}/memory.max")),
        oom_kills=_read_table(f"{base}/memory.events").get("oom_kill"),
        cpu_s=_scaled(cpu.get("usage_usec"), 1e-6),
        throttled_s=_scaled(cpu.get("throttled_usec"), 1e-6),
        tasks=parse_limit(read_text(f"{base}/pids.current")),
    )


def _read_v1_usage(group: ControlGroup) -> GroupUsage:
    memory, cpu = group.v1.get("memory", ""), group.v1.get("cpu", "")
    spent = _scaled(parse_limit(read_text(f"{group.v1.get('cpuacct', '')}/cpuacct.usage")), 1e-9)
    if spent is None and group.unified is not None:
        spent = _scaled(_read_table(f"{group.unified}/cpu.stat").get("usage_usec"), 1e-6)
    return GroupUsage(
        memory_bytes=parse_limit(read_text(f"{memory}/memory.usage_in_bytes")),
        memory_peak_bytes=parse_limit(read_text(f"{memory}/memory.max_usage_in_bytes")),
        memory_anon_bytes=_read_table(f"{memory}/memory.stat").get("total_rss"),
        memory_limit_bytes=parse_limit(read_text(f"{memory}/memory.limit_in_bytes")),
        oom_kills=_read_table(f"{memory}/memory.oom_control").get("oom_kill"),
        cpu_s=spent,
        throttled_s=_scaled(_read_table(f"{cpu}/cpu.stat").get("throttled_time"), 1e-9),
        tasks=parse_limit(read_text(f"{group.v1.get('pids', '')}/pids.current")),
    )


def _scaled(value: int | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _read_table(path: str) -> dict[str, int]:
    rows = (line.partition(" ") for line in (read_text(path) or "").splitlines())
    return {name: int(value) for name, _, value in rows if value.isdigit()}


def read_text(path: str) -> str | None:
    """A control file's content without blanks around it; None when it cannot be read."""
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return None


def write_control(path: str, value: str) -> None:
    """Write a control file.

    Raises:
        OSError: the kernel refused; the path is its file name.
    """
    # One write(2), no O_CREAT: a control file exists or the kernel does not know it.
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        os.write(descriptor, value.encode("ascii"))
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None
    finally:
        os.close(descriptor)


def try_write(path: str, value: str) -> str | None:
    """Write a control file; None when that worked, else the kernel's words."""
    try:
        write_control(path, value)
    except OSError as error:
        return error.strerror or str(error)
    return None


def _wait_frozen(path: str) -> bool:
    # A task in a system call freezes when it comes out of it; one that never does must not hold us up.
    for _ in range(50):
        if read_text(path) == "FROZEN":
            return True
        select.poll().poll(1)
    return False


def remove_tree(directory: str) -> bool:
    """Remove a cgroup and those below it; False while one of them is in use."""
    try:
        for entry in list(os.scandir(directory)):
            if entry.is_dir(follow_symlinks=False) and not remove_tree(entry.path):
                return False
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return _rmdir(directory)


def _rmdir(directory: str) -> bool:
    try:
        os.rmdir(directory)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
