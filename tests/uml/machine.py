"""A real Linux kernel for one test: user-mode Linux, booted with the host's own files as a read-only root.

What it is for: what a test cannot do to the machine it runs on. Real reboots (the boot id changes), real power cuts
(what was not forced out is lost), a real cgroup v2 with controllers or a v1-only box, full and read-only disks, a
second account, a lowered pid_max.

How it works. `linux.uml` (Debian package user-mode-linux) is started in a session of its own with the host's `/` as
its root over hostfs, read-only. `guest_init.py` is process 1: it puts a private tmpfs over every directory that
programs write (`PRIVATE`), mounts back through hostfs the few host paths that the test needs (the interpreter, the
repository, read-only; the machine's own directory, writable), builds the cgroups, runs one payload and powers off.
One boot runs one payload; the next call of `run` is the next boot of the same machine.

Where state survives from boot to boot:
  * `Machine.shared`: a host directory through hostfs. Names appear on the host at once, bytes when the guest writes
    them back (fsync, sync, power off). hostfs has no ownership of its own: every file belongs to the host's user, so
    it serves payloads that run as root only. Locks on it are the guest's own and are not seen by the host.
  * `Machine.disk` (with `disk_mib`): an ext4 file system on a block device, with journal, ownership and real loss of
    everything that was not synced, directory entries included (the journal commits on its own every 300 s only). Use it
    for power cuts, for inotify and for other users. Any account may write it.

Invariants: nothing is written outside `directory` (the guest's memory is an unlinked file in /dev/shm, or in
`directory` when /dev/shm is small or noexec); no process of the guest outlives its `Boot`; the machine dies with the
test process, even when that is killed (a small shell waits for the end of a pipe that the test process holds). It must
not know holdfast.

What the guest has. Measured by `payloads/capabilities.py` on Debian 12, user-mode-linux 6.1.176 (x86-64, one CPU,
CONFIG_HZ=100), as root and as uid 1000; `test_machine.py` keeps the table honest.

  there       cgroup v2 with cpu, io, memory, pids: cgroup.kill, cgroup.freeze, memory.max, memory.peak,
              memory.events, memory.oom.group, cpu.max, pids.max, io.max; mounted with nsdelegate and
              memory_recursiveprot. cgroup v1 memory, cpu+cpuacct, pids, freezer, blkio, devices; hybrid. pid, user
              (also for uid 1000), mount, net namespaces; /proc/self/ns/pid of process 1 is 4026531836. pidfd poll,
              waitid(P_PIDFD), pidfd_send_signal. inotify on tmpfs and ext4, IN_CLOSE_WRITE and IN_CLOSE_NOWRITE
              included. flock on tmpfs, ext4 and hostfs, each listed in /proc/locks. O_TMPFILE on tmpfs and ext4.
              renameat2(RENAME_NOREPLACE) on all three. unix sockets with SCM_CREDENTIALS. child subreaper.
              /proc/PID/environ and /proc/PID/task/TID/children. ioprio. bubblewrap, also for uid 1000. /dev/kmsg,
              readable by all. Sticky-directory protections as systemd sets them (protected_regular=2).
  not there   inotify on hostfs: the watch is accepted and no event ever comes (hostfs makes a new inode at each
              look-up), so a run directory belongs on tmpfs or on `Machine.disk`. PSI (no memory.pressure, no
              /proc/pressure). io.weight. cpuset (one CPU). PIDFD_GET_INFO (ENOTTY; kernel 6.13). O_TMPFILE on hostfs.
              Swap, so memory.swap.max exists and changes nothing. systemd's v1 name hierarchy. Any network but
              lo. GPUs.

With `Guest(systemd=True)` process 1 is the host's own systemd, on a handful of units: D-Bus, the login manager, user
managers, the payload as root's service (no udev, no journal, no polkit). `runuser -l` is then a real login: a session
scope of root's, a user manager with delegated controllers, logout. Seen with systemd 252; needs the packages systemd,
dbus, dbus-user-session and libpam-systemd; 0.5 s more than a boot without.

A boot takes about 1.6 s here, of which 0.85 s is the kernel's raid6 benchmark, which no option turns off.
"""

from __future__ import annotations

import contextlib
import enum
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, final

from tests.waiting import LIMIT_S, PATIENCE, wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

PACKAGE = "user-mode-linux"
BOOT_LIMIT_S = 4 * LIMIT_S
"""How long one boot may take at most, its payload included: a guest is many times slower than the box it is on."""
REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
GUEST_INIT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "guest_init.py")
PAYLOADS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "payloads")
ACCOUNTS = (("ada", 1000), ("ben", 1001))
# Directories of the guest that are an empty tmpfs at each boot, with their mode.
PRIVATE = {
    "/tmp": "1777",
    "/var/tmp": "1777",
    "/var/lib": "0755",
    "/run": "0755",
    "/root": "0755",
    "/home": "0755",
    "/mnt": "0755",
}
GUEST_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
CONSOLE_TAIL_BYTES = 4000


class Cgroups(str, enum.Enum):
    """Which cgroup tree the guest mounts at /sys/fs/cgroup."""

    V2 = "v2"
    V1 = "v1"
    HYBRID = "hybrid"
    NONE = "none"


class Mount(NamedTuple):
    """One more mount in the guest: `Mount("tmpfs", "/mnt/full", "size=64k")` is a disk that is soon full."""

    kind: str
    path: str
    options: str = ""
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class Guest:
    """How one boot is set up.

    Attributes:
        uid: account of the payload: 0, or one of `ACCOUNTS`.
        cgroups: the cgroup tree.
        delegated: the payload's cgroup belongs to `uid`, as in a systemd user session; else it is root's.
        env: added to a minimal environment (PATH, LANG, HOME, the tests' patience); nothing else of the host's gets in.
        cwd: working directory of the payload.
        mem_mib: memory of the guest in MiB.
        mounts: mounted last, after everything else.
        proc_options: options of /proc, such as "hidepid=2".
        writable: host directories that the guest may write, at their own paths.
        readable: host directories that must be visible (needed only below a directory of `PRIVATE` or a closed one).
        systemd: process 1 is systemd, with D-Bus and the login manager; the payload is a service of root's, `uid` and
            `cgroups` do not count.
        files: path and text of files written before systemd starts; in a private directory or below /run.
    """

    uid: int = 0
    cgroups: Cgroups = Cgroups.V2
    delegated: bool = False
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str = "/"
    mem_mib: int = 384
    mounts: tuple[Mount, ...] = ()
    proc_options: str = ""
    writable: tuple[str, ...] = ()
    readable: tuple[str, ...] = ()
    systemd: bool = False
    files: tuple[tuple[str, str], ...] = ()


ROOT = Guest()


@dataclass(frozen=True, slots=True)
class Result:
    """How the payload of one boot ended.

    Attributes:
        code: exit code, or minus the signal that ended it.
        stdout, stderr: what it wrote, undecodable bytes replaced.
        boot_id: the guest's boot id (UUID text).
        ready_s: guest uptime when the payload was started, in seconds.
        console: kernel messages and what process 1 printed.
    """

    code: int
    stdout: str
    stderr: str
    boot_id: str
    ready_s: float
    console: str


class MachineError(Exception):
    """The guest did not boot, did not end in time, or ended without a result; carries the console's tail."""


def find_kernel() -> str | None:
    """Path of the user-mode Linux kernel, None when the package is not installed."""
    return shutil.which("linux.uml")


class Boot:
    """One boot of a machine, from the start of the kernel to its end; made by `Machine.start`."""

    def __init__(self, process: subprocess.Popen[bytes], record: str) -> None:
        self._process = process
        self._record = record
        self._pidfd = os.pidfd_open(process.pid)
        # PR_SET_PDEATHSIG would end the kernel alone: its processes for guest address spaces stay (seen with 6.1.176).
        self._guard = subprocess.Popen(
            ["sh", "-c", 'read -r _; kill -s KILL -- "-$0"', str(process.pid)],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={},
            start_new_session=True,
        )

    def _read(self, name: str) -> str:
        try:
            with open(os.path.join(self._record, name), "rb") as file:
                return file.read().decode(errors="replace")
        except FileNotFoundError:
            return ""

    @property
    def pid(self) -> int:
        """The kernel's process on the host; also the number of the session that holds the whole guest."""
        return self._process.pid

    @property
    def stdout(self) -> str:
        """What the payload has written to standard output so far; also after a power cut."""
        return self._read("stdout")

    @property
    def stderr(self) -> str:
        """What the payload has written to standard error so far; also after a power cut."""
        return self._read("stderr")

    @property
    def console(self) -> str:
        """Kernel messages and the words of process 1 so far."""
        return self._read("console.log")

    @property
    def running(self) -> bool:
        """True until the kernel's process on the host has ended."""
        return self._process.returncode is None and not self._ended(0.0)

    def wait_for_output(self, text: str, timeout_s: float = BOOT_LIMIT_S) -> None:
        """Wait until `text` stands in the payload's standard output.

        Raises:
            MachineError: it did not appear in time, or the guest ended without it; the guest is powered off.
        """
        wait_until(lambda: text in self.stdout or not self.running, timeout_s)
        if text not in self.stdout:
            raise self._failure(f"ended without the output {text!r}")

    def wait(self, timeout_s: float = BOOT_LIMIT_S) -> Result:
        """Wait until the guest has powered off and return the payload's result.

        Raises:
            MachineError: not in time (the guest is then powered off), or it left no result.
        """
        if self._process.returncode is None and not self._ended(timeout_s):
            raise self._failure(f"still running after {timeout_s} s")
        self._collect()
        text = self._read("result.json")
        found: dict[str, Any] = json.loads(text) if text else {"init_error": "no result was written"}
        if "init_error" in found:
            raise self._failure(str(found["init_error"]))
        return Result(
            code=found["code"],
            stdout=self.stdout,
            stderr=self.stderr,
            boot_id=found["boot_id"],
            ready_s=found["ready_s"],
            console=self.console,
        )

    def power_cut(self) -> None:
        """Take the power away: the kernel is killed at once; on return no process of the guest is left. Idempotent."""
        if self._process.returncode is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._collect()

    def _ended(self, timeout_s: float) -> bool:
        """True when the kernel's process ends within the time; it is not reaped."""
        poller = select.poll()
        poller.register(self._pidfd, select.POLLIN)
        return bool(poller.poll(timeout_s * 1000))

    def _collect(self) -> None:
        """Empty the kernel's session, then reap its leader: until then the session's number cannot belong to others."""
        if self._process.returncode is None:
            _end_session(self._process.pid)
            self._guard.kill()
            self._guard.communicate()
            self._process.wait()
            os.close(self._pidfd)

    def _failure(self, what: str) -> MachineError:
        self.power_cut()
        tails = [f"--- {n} (tail)\n{self._read(n)[-CONSOLE_TAIL_BYTES:]}" for n in ("console.log", "stdout", "stderr")]
        return MachineError("\n".join([f"user-mode Linux guest: {what}", *tails]))


@final
class Machine:
    """A machine that can be booted again and again, one boot at a time; use it as a context manager.

    Args:
        directory: an existing empty directory of the test; everything of the machine is below it.
        disk_mib: size of the persistent ext4 disk in MiB; 0 for none.

    Raises:
        MachineError: the package is not installed, or the disk could not be made.
    """

    def __init__(self, directory: str | os.PathLike[str], *, disk_mib: int = 0) -> None:
        kernel = find_kernel()
        if kernel is None:
            msg = f"linux.uml is not installed; apt-get install {PACKAGE}"
            raise MachineError(msg)
        self._kernel = kernel
        self._directory = os.path.realpath(directory)
        self._boots = 0
        self._boot: Boot | None = None
        self.shared = os.path.join(self._directory, "shared")
        os.makedirs(self.shared, exist_ok=True)
        self.disk: str | None = None
        if disk_mib:
            self.disk = "/mnt/disk"
            _make_ext4(self._image, disk_mib)

    @property
    def _image(self) -> str:
        return os.path.join(self._directory, "disk.ext4")

    def __enter__(self) -> Machine:
        """Return the machine itself; it is off."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take the power away when the machine is still on."""
        self.power_cut()

    def run(self, argv: Sequence[str], guest: Guest = ROOT, *, timeout_s: float = BOOT_LIMIT_S) -> Result:
        """Boot, run `argv`, power off, and return how `argv` ended; see `start` and `Boot.wait` for errors."""
        return self.start(argv, guest).wait(timeout_s)

    def start(self, argv: Sequence[str], guest: Guest = ROOT) -> Boot:
        """Boot with `argv` as the payload and return at once.

        A first word that is `python` means the interpreter that runs the tests; a word that names a file of `payloads/`
        stands for its path.
        """
        assert self._boot is None or not self._boot.running, "one boot at a time: wait for it or cut the power"
        self._boots += 1
        record = os.path.join(self._directory, f"boot-{self._boots}")
        os.mkdir(record)
        request = os.path.join(record, "request.json")
        with open(request, "w") as file:
            json.dump(self._build_request(argv, guest, record), file, indent=1)
        with open(os.path.join(record, "console.log"), "wb") as console:
            process = subprocess.Popen(
                self._build_command(guest, request),
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                env=self._build_host_environment(guest),
                cwd=self._directory,
                start_new_session=True,
            )
        self._boot = Boot(process, record)
        return self._boot

    def power_cut(self) -> None:
        """Take the power away from the boot that is running, if there is one."""
        if self._boot is not None:
            self._boot.power_cut()

    def _build_command(self, guest: Guest, request: str) -> list[str]:
        interpreter = os.path.realpath(sys.executable)
        disk = [f"ubd0={self._image}"] if self.disk else []
        return [
            *(self._kernel, f"mem={guest.mem_mib}M", *disk),
            *("rootfstype=hostfs", "rootflags=/", "root=/dev/root", "ro", f"uml_dir={self._directory}/"),
            *("con=null", "con0=fd:0,fd:1", "quiet", "lsm=yama", f"init={interpreter}"),
            *("--", "-I", "-S", GUEST_INIT, request),
        ]

    def _build_host_environment(self, guest: Guest) -> dict[str, str]:
        environment = {"PATH": os.environ.get("PATH", GUEST_PATH), "HOME": self._directory}
        try:
            room = os.statvfs("/dev/shm")
            fits = room.f_bavail * room.f_frsize > 2 * guest.mem_mib * 2**20 and not room.f_flag & os.ST_NOEXEC
        except OSError:
            fits = False
        return environment if fits else {**environment, "TMPDIR": self._directory}

    def _build_request(self, argv: Sequence[str], guest: Guest, record: str) -> dict[str, Any]:
        words = [os.path.join(PAYLOADS, word) if word in os.listdir(PAYLOADS) else word for word in argv]
        if words[0] == "python":
            words[0] = sys.executable
        readable = [sys.base_prefix, sys.prefix, REPOSITORY, *guest.readable]
        writable = [self._directory, *(os.path.realpath(path) for path in guest.writable)]
        private, host_paths = _plan_mounts(readable, writable)
        return {
            "argv": words,
            "env": {"PATH": GUEST_PATH, "LANG": "C.UTF-8", "HOLDFAST_TEST_PATIENCE": str(PATIENCE), **guest.env},
            "cwd": guest.cwd,
            "uid": guest.uid,
            "accounts": ACCOUNTS,
            "cgroups": guest.cgroups.value,
            "delegated": guest.delegated,
            "private": private,
            "host_paths": host_paths,
            "disk": self.disk,
            "mounts": guest.mounts,
            "systemd": guest.systemd,
            "files": guest.files,
            "proc_options": guest.proc_options,
            "record": record,
        }


def _plan_mounts(readable: list[str], writable: list[str]) -> tuple[list[tuple[str, str]], list[tuple[str, bool]]]:
    """Choose the private directories and the host paths to mount back over them, both in an order that works.

    A directory of the host that other accounts may not enter (a home with mode 0700) and that lies above a readable
    path becomes private too, so that a payload with a uid can reach the interpreter.
    """
    private = {path: mode for path, mode in PRIVATE.items() if os.path.isdir(path)}
    for path in [*readable, *writable]:
        parent = os.path.dirname(path)
        while parent != "/":
            if not os.stat(parent).st_mode & 0o001:
                private[parent] = "0755"
            parent = os.path.dirname(parent)
    tops = {path: mode for path, mode in private.items() if not any(path.startswith(f"{top}/") for top in private)}
    hidden = sorted({path for path in readable if any(path.startswith(f"{top}/") for top in tops)} - set(writable))
    outer = [path for path in hidden if not any(path.startswith(f"{top}/") for top in hidden)]
    wanted = [*((path, False) for path in outer), *((path, True) for path in writable)]
    return sorted(tops.items()), sorted(wanted)


def _make_ext4(image: str, size_mib: int) -> None:
    """Make an image file with an empty ext4 file system, unless it exists already."""
    if os.path.exists(image):
        return
    with open(image, "wb") as file:
        file.truncate(size_mib * 2**20)
    command = ["mkfs.ext4", "-q", "-F", image]
    search = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    try:
        done = subprocess.run(command, capture_output=True, check=False, env={"PATH": search})
    except FileNotFoundError as error:
        msg = "mkfs.ext4 is not installed; apt-get install e2fsprogs"
        raise MachineError(msg) from error
    if done.returncode != 0:
        msg = f"{' '.join(command)}: code {done.returncode}: {done.stderr.decode(errors='replace')}"
        raise MachineError(msg)


def list_session(session: int) -> list[int]:
    """Pids of the living (not zombie) members of a session."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                words = file.read().rpartition(b")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(words[3]) == session and words[0] != b"Z":
            found.append(int(name))
    return found


def _end_session(session: int, timeout_s: float = LIMIT_S) -> None:
    """Kill what is left in a session (processes that hold guest address spaces) and wait until it is empty.

    The caller has not reaped the session's leader, so the number cannot have been given to anyone else.
    """

    def empty() -> bool:
        left = list_session(session)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not left

    wait_until(empty, timeout_s)
