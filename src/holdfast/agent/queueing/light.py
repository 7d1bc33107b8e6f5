"""The light supervisor of one lean cell: it starts the command, waits for it, ends what it left, writes one record.

It is a fork of the worker with a session of its own, so it lives on when the worker is killed. It is a child subreaper
(prctl(2)): whatever the command leaves behind becomes its child, so that having no child is the proof that nothing is
left, and the pid of a child that was not waited for is nobody else's. The command is started without copying this
image (posix_spawn(3) of glibc uses vfork), which is what makes a lean cell cheap.
"""

from __future__ import annotations

import fcntl
import json
import os
import resource
import shutil
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...host import files, libc
from ...host.clock import boot_id, monotonic_s, utc_now
from ...host.processes import identify_self
from ...model import wire

if TYPE_CHECKING:
    from .lean import Plan

EXIT_NOT_FOUND, EXIT_NOT_EXECUTABLE, EXIT_LOST = 127, 126, 70
"""As shells have them (`host.spawn`); the last one is our own failure."""
LEFTOVER_GRACE_S = 2.0
"""How long what the command left behind gets between TERM and KILL."""
LOOK_S = 0.05
"""How often the children are looked at while they are being ended: a child that forks may hide from one look."""
LONGEST_END_S = 30.0
"""After so long, what KILL did not end (uninterruptible sleep) is named in the record and left to init."""
HEARD = frozenset({signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
BY_LIMIT = "its time limit"
KEPT = 3
"""The descriptor of the marker, whose lock says that we live."""


@dataclass(slots=True)
class _Life:
    """What became of the command so far. `stopped` is why it was ended before it ended by itself.

    `stop_path`, of a cell in a lane: the file without which a TERM is not meant for it.
    """

    pid: int = 0
    status: int | None = None
    usage: resource.struct_rusage | None = None
    stopped: str = ""
    stop_path: str = ""
    left: int = 0
    emptied: bool = True
    stuck: tuple[int, ...] = ()


def supervise(plan: Plan, marker: int) -> None:
    """In the fork: run the cell to its end and leave. Never returns; nothing unwinds into the worker."""
    code = EXIT_LOST
    try:
        _detach(marker, plan.log_path)
        # The second line of the marker: from here on the command may have run.
        line = {"supervisor": wire.encode(identify_self()), "started_at": utc_now()}
        files.write_all(KEPT, (json.dumps(line) + "\n").encode())
        run(plan, line)
        code = 0
    except BaseException:  # noqa: BLE001 - the last barrier of a forked child; without a record the cell counts as lost
        import traceback

        files.write_all(2, traceback.format_exc().encode())
    finally:
        os._exit(code)


def _detach(marker: int, log_path: str) -> None:
    """Own session, the log as output, /dev/null as input, and no other descriptor of the worker but the marker."""
    held = fcntl.fcntl(marker, fcntl.F_DUPFD_CLOEXEC, KEPT)
    leave_worker(log_path)
    if held != KEPT:
        os.dup2(held, KEPT, inheritable=False)
    close_from(KEPT + 1)


def leave_worker(log_path: str) -> None:
    """Own session, signals as they were for the worker's parent, the log as output, /dev/null as input."""
    signal.set_wakeup_fd(-1)
    signal.pthread_sigmask(signal.SIG_BLOCK, HEARD)
    for number in HEARD:
        # An ignored SIGCHLD would have the kernel throw the exit status away. Source: wait(2), NOTES.
        signal.signal(number, signal.SIG_DFL)
    os.setsid()
    null = os.open(os.devnull, os.O_RDONLY)
    log = os.open(log_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    for source, target in ((null, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    libc.set_child_subreaper()


def close_from(first: int) -> None:
    """Close every descriptor from this one on."""
    os.closerange(first, resource.getrlimit(resource.RLIMIT_NOFILE)[0] if _many_open() else 1024)


def _many_open() -> bool:
    """Whether there are descriptors beyond those that are closed anyway."""
    return any(int(name) >= 1024 for name in os.listdir("/proc/self/fd"))


def run(plan: Plan, line: dict[str, Any], *, stop_path: str = "") -> bool:
    """Run a cell whose marker is in place with all its lines, and write its record; whether nothing of it is left."""
    began_s = monotonic_s()
    life = _Life(stop_path=stop_path)
    error = _prepare(plan) or _spawn(plan, life)
    if error is None:
        _wait(plan, life, began_s)
    # Not synced: the worker's next commit holds the end; without it a power cut makes the cell lost, never repeated.
    files.commit(plan.record_path, wire.to_bytes(_describe(plan, life, error, began_s, line)), durable=False)
    if life.stopped and stop_path:
        files.remove_quietly(stop_path)
    return life.emptied


def _prepare(plan: Plan) -> tuple[int, str] | None:
    """Place, umask and priority; what cannot be had as (errno, words)."""
    try:
        os.chdir(plan.workdir)
    except OSError as error:
        return EXIT_NOT_EXECUTABLE, f"workdir {plan.workdir}: {error.strerror}"
    os.umask(plan.umask)
    if plan.nice is not None:
        # Only ever nicer, as `host.limits` has it.
        os.setpriority(os.PRIO_PROCESS, 0, max(plan.nice, os.getpriority(os.PRIO_PROCESS, 0)))
    return None


def _spawn(plan: Plan, life: _Life) -> tuple[int, str] | None:
    """Start the command in a process group of its own; when it cannot be: (exit code, words)."""
    name = plan.command[0]
    path = name if "/" in name else shutil.which(name, path=plan.environ.get("PATH", os.defpath))
    if path is None:
        return EXIT_NOT_FOUND, f"{name}: no such command in the cell's PATH"
    try:
        life.pid = os.posix_spawn(
            path, plan.command, plan.environ, setpgroup=0, setsigmask=(), setsigdef=signal.valid_signals() - _FIXED
        )
    except OSError as error:
        code = EXIT_NOT_FOUND if isinstance(error, (FileNotFoundError, NotADirectoryError)) else EXIT_NOT_EXECUTABLE
        return code, f"{name}: {error.strerror}"
    return None


_FIXED = frozenset({signal.SIGKILL, signal.SIGSTOP})


def _wait(plan: Plan, life: _Life, began_s: float) -> None:
    """Until the command and all that it left have ended: by itself, by its time limit, or because we were told so."""
    deadline = None if plan.limit_s is None else began_s + plan.limit_s
    kill_at: float | None = None
    end_at: float | None = None
    while not _reap(life):
        now = monotonic_s()
        if life.status is None and kill_at is None and deadline is not None and now >= deadline:
            life.stopped = f"{BY_LIMIT} of {plan.limit_s:g} s"
        if life.status is not None and kill_at is None and not life.stopped:
            life.left = len(_children())
        if kill_at is None and (life.stopped or life.status is not None):
            grace_s = plan.grace_s if life.stopped else LEFTOVER_GRACE_S
            kill_at, end_at = now + grace_s, now + grace_s + LONGEST_END_S
            _signal_rest(life, signal.SIGTERM)
        elif kill_at is not None and now >= kill_at:
            _signal_rest(life, signal.SIGKILL)
        if end_at is not None and now >= end_at:
            life.stuck, life.emptied = tuple(_children()), False
            return
        _sleep(life, None if deadline is None else max(0.0, deadline - now), ending=kill_at is not None)


def _sleep(life: _Life, limit_s: float | None, *, ending: bool) -> None:
    """Until a child ends, somebody tells us to stop, or it is time to look."""
    if ending:
        found = signal.sigtimedwait(HEARD, LOOK_S)
    elif limit_s is None:
        found = signal.sigwaitinfo(HEARD)
    else:
        found = signal.sigtimedwait(HEARD, limit_s)
    meant = found is not None and (not life.stop_path or os.path.exists(life.stop_path))
    if found is not None and meant and found.si_signo != signal.SIGCHLD and not life.stopped:
        life.stopped = signal.Signals(found.si_signo).name


def _reap(life: _Life) -> bool:
    """Take every child that has ended; True when none is left."""
    while True:
        try:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return True
        if pid == 0:
            return False
        if pid == life.pid:
            life.status, life.usage = status, usage


def _signal_rest(life: _Life, number: int) -> None:
    """Signal the command's group while its leader is ours to wait for, and every child: none of the pids can be reused.

    What is stopped acts on TERM only when it goes on.
    """
    numbers = (number, signal.SIGCONT) if number != signal.SIGKILL else (number,)
    for each in numbers:
        if life.status is None:
            os.killpg(life.pid, each)
        for pid in _children():
            if pid != life.pid:
                os.kill(pid, each)


def _children() -> list[int]:
    """Our children. Source: proc_tid_children(5)."""
    data = files.read_text_or_none(f"/proc/self/task/{os.getpid()}/children")
    return [int(word) for word in (data or "").split()]


def _describe(
    plan: Plan, life: _Life, error: tuple[int, str] | None, began_s: float, line: dict[str, Any]
) -> dict[str, Any]:
    """The record."""
    code, number = _read_status(life, error)
    outcome = "succeeded" if code == 0 and not life.stopped else "stopped" if life.stopped else "failed"
    usage = life.usage
    return {
        **plan.identity,
        **line,
        "boot_id": boot_id(),
        "command": list(plan.command),
        "workdir": plan.workdir,
        "output": plan.log_path,
        "ended_at": utc_now(),
        "duration_s": round(monotonic_s() - began_s, 4),
        "outcome": outcome,
        "exit_code": code,
        "signal": number,
        "stopped_by": life.stopped,
        "error": "" if error is None else error[1],
        "left": life.left,
        "emptied": life.emptied,
        "stuck": list(life.stuck),
        "user_s": None if usage is None else round(usage.ru_utime, 4),
        "system_s": None if usage is None else round(usage.ru_stime, 4),
        "max_rss_bytes": None if usage is None else usage.ru_maxrss * 1024,
    }


def _read_status(life: _Life, error: tuple[int, str] | None) -> tuple[int | None, int | None]:
    """Exit code and signal; a command that could not be started has the code that shells give it."""
    if error is not None:
        return error[0], None
    if life.status is None:
        return None, None
    if os.WIFSIGNALED(life.status):
        return None, os.WTERMSIG(life.status)
    return os.WEXITSTATUS(life.status), None
