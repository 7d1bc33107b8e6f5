"""One run writes into a directory of checkpoints: a kernel lock that ends with the last process that holds it.

The trainer's writer holds it too: a trainer that starts while the writer of a killed one finishes its save waits for
that, and for a run that is ending; a run that goes on is refused at once. Forked children (data loaders) let go of it
at once. Where the file system has no locks there is only a word.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import time
from collections.abc import Callable

from holdfast.host.files import files
from holdfast.training.errors import DirectoryBusy, TrainingError

from . import layout
from .write.files import make_directory

UNSUPPORTED = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
WAIT_S = 300.0
"""How long what a killed trainer left behind (its writer) is waited for: some hundred gigabytes, or their copy."""
UNSEEN_WAIT_S = 100.0
"""How long a holder on another machine is waited for, whose life cannot be seen: a little more than an NFS lease."""
LOOK_S = 0.05
_SUPERVISOR_LOCK, _STATE = "supervisor.lock", "attempts/{}/state.json"
"""In a run's directory, as `model.wire` has them: what runs inside a job loads little of ours."""
_OF_RUN = {"run": "HOLDFAST_RUN_ID", "run_dir": "HOLDFAST_RUN_DIR", "attempt": "HOLDFAST_ATTEMPT"}
"""What a holder says of the run that it belongs to, by the variable that has it."""


class DirectoryLock:
    """The lock of one directory, taken in the constructor, given back by `release` or the end of all its holders."""

    def __init__(self, directory: str, warn: Callable[[str], None], *, wait_s: float = WAIT_S) -> None:
        """Take it; waits for a writer whose trainer is dead, and for a run that is ending, not for one that goes on.

        Raises:
            DirectoryBusy: another run writes here.
            OSError: the directory cannot be written.
        """
        self.path = os.path.join(directory, layout.LOCK)
        self.fd: int | None = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            self._take(directory, warn, wait_s)
        except BaseException:
            os.close(self.fd)
            raise
        os.register_at_fork(after_in_child=self._let_go)

    def _take(self, directory: str, warn: Callable[[str], None], wait_s: float) -> None:
        assert self.fd is not None
        deadline, said = time.monotonic() + wait_s, False
        unseen_deadline = time.monotonic() + min(wait_s, UNSEEN_WAIT_S)
        while True:
            try:
                fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                who = self._read_record()
                holder, alive = _name_holder(who), _is_alive(who)
                if alive or time.monotonic() > (unseen_deadline if alive is None else deadline):
                    run = who.get("run")
                    wait = f"wait for that one (holdfast wait {run})" if run else "wait for that one or stop it"
                    raise DirectoryBusy(
                        f"{directory} is written by {holder}", f"give this one a directory of its own, or {wait}"
                    ) from None
                if not said:
                    warn(f"{directory}: waiting for {holder}, or what it left behind, to finish its save")
                    said = True
                time.sleep(LOOK_S)
            except OSError as error:
                if error.errno not in UNSUPPORTED:
                    raise
                warn(f"{directory} is on a file system without locks: nothing keeps a second run from writing there")
                break
        self._write_holder()

    def _write_holder(self) -> None:
        assert self.fd is not None
        me = {"pid": os.getpid(), "start": _start_time(os.getpid()), "host": os.uname().nodename, "boot": _boot_id()}
        me |= {name: os.environ.get(variable, "") for name, variable in _OF_RUN.items()}
        me["space"] = _process_space()
        data = json.dumps(me).encode() + b"\n"
        with contextlib.suppress(OSError):  # a full disk: the run makes room later, and the lock holds without a name
            os.ftruncate(self.fd, 0)
            os.pwrite(self.fd, data, 0)

    def _read_record(self) -> dict[str, str]:
        """What its holder wrote; empty where that is nothing, or damaged."""
        assert self.fd is not None
        try:
            who = json.loads(os.pread(self.fd, 4096, 0))
            known = {name: str(who[name]) for name in ("pid", "start", "host", "boot", "run")}
            int(known["pid"])
            return known | {name: str(who.get(name, "")) for name in ("run_dir", "attempt", "space")}
        except (OSError, ValueError, KeyError, TypeError):
            return {}

    def _let_go(self) -> None:
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None

    def release(self) -> None:
        """Give it back; a writer that is still busy goes on holding it."""
        self._let_go()


def lock_directory(directory: str, warn: Callable[[str], None]) -> DirectoryLock:
    """Make a directory of checkpoints where it is missing, and take its lock.

    Raises:
        DirectoryBusy: another run writes there.
        TrainingError: it cannot be made or written.
    """
    try:
        make_directory(directory)
        return DirectoryLock(directory, warn)
    except OSError as error:
        at = f" (at {error.filename})" if error.filename not in (None, directory) else ""
        raise TrainingError(
            f"checkpoints cannot be saved in {directory}: {error.strerror or error}{at}",
            "give a directory that this account can make and write",
        ) from error


def _name_holder(who: dict[str, str]) -> str:
    """Who holds it, in words; of a run its id, because a number of a contained process is another one outside."""
    if not who:
        return "a process that left no name"
    if who["run"]:
        return f"run {who['run']} on {who['host']}"
    return f"another run (process {who['pid']} on {who['host']})"


def _is_alive(who: dict[str, str]) -> bool | None:
    """Whether its holder lives and goes on; None where that cannot be seen from here, or it is ending."""
    if not who:
        return False
    if _is_supervised(who):
        return None if _is_ending(who) else True
    if who["host"] != os.uname().nodename:
        # Another machine or container: its processes cannot be seen, only the lock itself speaks. A file
        # server keeps that of a crashed machine for a while (NFS: 90 s), so it is waited for.
        return None
    if who["boot"] and _boot_id() and who["boot"] != _boot_id():
        return False
    if who["space"] != _process_space():
        return None  # a number there is another process here
    return _start_time(who["pid"]) == who["start"]


def _is_supervised(who: dict[str, str]) -> bool:
    """Whether it is another run than this one, whose supervisor lives: that holds the lock of its run directory."""
    if not who["run"] or not who["run_dir"] or who["run"] == os.environ.get(_OF_RUN["run"]):
        return False
    return files.is_locked(os.path.join(who["run_dir"], _SUPERVISOR_LOCK)) is True


def _is_ending(who: dict[str, str]) -> bool:
    """Whether that run is being stopped, or its job has ended: its last save is worth waiting for."""
    try:
        state = os.path.join(who["run_dir"], _STATE.format(int(who["attempt"])))
        return json.loads(files.read_bytes(state, limit=65536))["state"]["kind"] in ("stopping", "finalizing")
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _start_time(pid: int | str) -> str:
    """When a process began, in the kernel's clock ticks since boot; empty when there is no such process (or a zombie).

    Source: proc(5), field 22 of stat, counted behind the name in parentheses.
    """
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in ("Z", "X") else fields[19]


def _process_space() -> str:
    """The namespace in which process numbers are counted (contained jobs have their own); source: namespaces(7)."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""
