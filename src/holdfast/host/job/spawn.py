"""Starting a job: supervisor -> (launcher ->) keeper -> job, with ids reported by the child itself before exec.

The channel is a SEQPACKET socketpair on which the kernel attaches each sender's pid, translated into our PID namespace
(SO_PASSCRED; Source: unix(7), pid_namespaces(7)): no ``ps``, no guess, no race (PROC-03, B-03). The job then waits for
one byte on the go pipe. End of file there means that the supervisor died before it had committed the ids: the job
leaves without having run. The error pipe is close-on-exec: end of file means that exec succeeded, a record says at
which step it failed.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import socket
import struct
import termios
from collections.abc import Callable

from holdfast.host.clock import monotonic_s
from holdfast.host.process import libc
from holdfast.host.process.offload import close_all_except
from holdfast.host.process.processes import identify
from holdfast.model.identity import JobProcess, ProcessId
from holdfast.model.record import record

from .keeper import FATE_ABANDONED, Keeper, KeeperOrders, settle_signals

HANDSHAKE_S = 60.0
"""Keeper and job report within milliseconds, and one that dies is seen at once. A box that swaps, or on which many
start at the same time, was seen to take more than ten seconds: no job is to be lost to that."""
EXIT_NOT_FOUND, EXIT_NOT_EXECUTABLE, EXIT_ABANDONED = 127, 126, 125
"""127 and 126 as shells use them; 125: the job was never told to go."""
_NO_SUCH_COMMAND = (2, 20)


@record
class JobLaunch:
    """All that a start needs, prepared before the fork.

    `enter` runs in the launcher before the keeper is forked (unshare) or is None; `settle` in the keeper (mounts inside
    the namespace); `prepare` in the job before it reports (cgroup, limits, priority); `signal_rest` as in
    `KeeperOrders`. `inherited_fds` (the lease's locks) stay open in keeper and job across exec, `keeper_fds` in the
    keeper alone. `lock_path` is the file that a supervisor of this attempt holds locked.
    """

    run_id: str
    attempt: int
    argv: tuple[str, ...]
    environ: dict[str, str]
    workdir: str
    status_path: str
    output_path: str
    output_max_bytes: int
    inherited_fds: tuple[int, ...]
    kill_on_supervisor_death: bool
    pty: bool
    signal_rest: Callable[[int], int]
    prepare: Callable[[], None]
    lock_path: str = ""
    keeper_fds: tuple[int, ...] = ()
    enter: Callable[[], None] | None = None
    settle: Callable[[], None] | None = None


@record
class StartError:
    """Why exec did not happen: at which step, the errno, and the words."""

    step: str
    number: int
    message: str

    @property
    def exit_code(self) -> int:
        """127 when the command does not exist, 126 for everything else, as shells do."""
        return EXIT_NOT_FOUND if self.step == "exec" and self.number in _NO_SUCH_COMMAND else EXIT_NOT_EXECUTABLE


@record(frozen=False)
class StartedJob:
    """Keeper and job exist and wait for `go`. Owns four descriptors; `close` gives them back."""

    keeper: ProcessId
    job: JobProcess
    channel: socket.socket
    go_fd: int
    error_fd: int
    output_fd: int

    def go(self) -> None:
        """Let the job exec. To be called once its ids are committed; harmless when it is gone.

        Raises:
            OSError: it could not be told; it leaves without having run.
        """
        if self.go_fd >= 0:
            try:
                os.write(self.go_fd, b"g")
            except BrokenPipeError:
                pass
            finally:
                os.close(self.go_fd)
                self.go_fd = -1

    def read_error(self) -> StartError | None:
        """What the job wrote before it gave up; None when exec succeeded. Call when `error_fd` is readable."""
        data = os.read(self.error_fd, 4096)
        os.close(self.error_fd)
        self.error_fd = -1
        if not data:
            return None
        step, number, message = data.decode("utf-8", "replace").split("\0", 2)
        return StartError(step, int(number), message)

    def close(self) -> None:
        """Close what is still open; to a job that was not let go this says: do not run."""
        for descriptor in (self.go_fd, self.error_fd, self.output_fd):
            if descriptor >= 0:
                os.close(descriptor)
        self.go_fd = self.error_fd = self.output_fd = -1
        self.channel.close()


class SpawnFailed(Exception):
    """Keeper or job did not come up; nothing of them is left to run. The message says at which step."""


def spawn_job(launch: JobLaunch) -> StartedJob:
    """Bring keeper and job up to the point before exec.

    Raises:
        SpawnFailed: a step failed or took longer than `HANDSHAKE_S`.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    go_read, go_write = os.pipe2(os.O_CLOEXEC)
    error_read, error_write = os.pipe2(os.O_CLOEXEC)
    output_read, output_write = os.openpty() if launch.pty else os.pipe2(os.O_CLOEXEC)
    if not launch.pty:
        _grow_pipe(output_read)
    child = os.fork()
    if child == 0:
        ours.detach()
        _become_keeper(launch, theirs, go_read, error_write, (output_read, output_write))
    theirs.close()
    for descriptor in (go_read, error_write, output_write):
        os.close(descriptor)
    try:
        keeper, job = _hear_reports(ours)
    except SpawnFailed:
        for descriptor in (go_write, error_read, output_read):
            os.close(descriptor)
        ours.close()
        raise
    os.set_blocking(error_read, False)
    return StartedJob(keeper, job, ours, go_write, error_read, output_read)


def _grow_pipe(descriptor: int) -> None:
    """A larger pipe lets a job run on through a short absence of its reader. Source: fcntl(2), F_SETPIPE_SZ = 1031."""
    try:
        fcntl.fcntl(descriptor, 1031, 1 << 20)
    except OSError:
        return


def _hear_reports(channel: socket.socket) -> tuple[ProcessId, JobProcess]:
    keeper: ProcessId | None = None
    deadline = monotonic_s() + HANDSHAKE_S
    poller = select.poll()
    poller.register(channel.fileno(), select.POLLIN)
    while True:
        left_ms = int((deadline - monotonic_s()) * 1000)
        if left_ms <= 0 or not poller.poll(left_ms):
            raise SpawnFailed(f"keeper and job did not report within {HANDSHAKE_S:.0f} s")
        data, pid = _receive(channel)
        if not data:
            raise SpawnFailed("the keeper went away before it reported")
        report = json.loads(data)
        if "error" in report:
            raise SpawnFailed(f"{report['step']}: {report['error']}")
        process = identify(pid)
        if process is None:
            raise SpawnFailed(f"{report['role']} (pid {pid}) was gone right after its report")
        if report["role"] == "keeper":
            keeper = process
            continue
        if keeper is None:
            raise SpawnFailed("the job reported before its keeper")
        inner = report["pid"]
        same = inner == pid
        return keeper, JobProcess(process, report["sid"] if same else pid, report["pgid"] if same else pid, inner)


def _receive(channel: socket.socket) -> tuple[bytes, int]:
    """One message and its sender's pid in our namespace. Source: unix(7), SCM_CREDENTIALS: struct ucred."""
    data, ancillary, _flags, _address = channel.recvmsg(4096, socket.CMSG_SPACE(struct.calcsize("iii")))
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
            return data, int(struct.unpack("iii", payload[:12])[0])
    return data, 0


def _report(channel: socket.socket, **fields: object) -> None:
    channel.send(json.dumps(fields).encode())


def _become_keeper(
    launch: JobLaunch,
    channel: socket.socket,
    go_read: int,
    error_write: int,
    output: tuple[int, int],
) -> None:
    """The forked child's whole life; never returns."""
    step = "fork"
    try:
        settle_signals()
        # Not only our own ends: a keeper that held the supervisor's lock would keep every later supervisor out.
        kept = (*launch.inherited_fds, *launch.keeper_fds)
        close_all_except({0, 1, 2, channel.fileno(), go_read, error_write, *output, *kept})
        os.setsid()
        if launch.enter is not None:
            step = "containment"
            launch.enter()
            if os.fork() != 0:
                os._exit(0)
        else:
            libc.set_child_subreaper()
        step = "containment"
        if launch.settle is not None:
            launch.settle()
        libc.set_name("holdfast-keeper")
        _report(channel, role="keeper", pid=os.getpid())
        step = "fork of the job"
        # Blocked until right before exec: what is sent to the job meanwhile waits for it, and is not ignored like ours.
        everything = signal.valid_signals()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, everything)
        fate_read, fate_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        keeper = os.getpid()
        job_pid = os.fork()
        if job_pid == 0:
            os.close(output[0])
            if launch.kill_on_supervisor_death:
                _die_with(keeper)
            _become_job(launch, channel, _JobEnds(go_read, error_write, output[1], fate_write))
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for descriptor in (go_read, error_write, output[1], fate_write):
            os.close(descriptor)
        Keeper(
            KeeperOrders(
                run_id=launch.run_id,
                attempt=launch.attempt,
                status_path=launch.status_path,
                output_path=launch.output_path,
                output_max_bytes=launch.output_max_bytes,
                job_pid=job_pid,
                output_fd=output[0],
                supervisor_fd=channel.fileno(),
                fate_fd=fate_read,
                lock_path=launch.lock_path,
                kill_on_supervisor_death=launch.kill_on_supervisor_death,
                signal_rest=launch.signal_rest,
            )
        ).run()
    except BaseException as error:  # noqa: BLE001 - the last barrier of a forked child: nothing unwinds into our caller
        _report_failure(channel, step, error)
        os._exit(EXIT_NOT_EXECUTABLE)
    os._exit(0)


def _report_failure(channel: socket.socket, step: str, error: BaseException) -> None:
    try:
        _report(channel, error=f"{type(error).__name__}: {error}", step=step)
    except OSError:
        return


@record
class _JobEnds:
    """The job's ends of its pipes: the word to go, what failed, the output, and whether it was abandoned."""

    go: int
    error: int
    output: int
    fate: int


def _become_job(launch: JobLaunch, channel: socket.socket, ends: _JobEnds) -> None:
    """From fork to exec in the job's own process; never returns."""
    step = "session"
    try:
        _restore_dispositions()
        os.setsid()
        step = "standard streams"
        _connect_streams(ends.output, pty=launch.pty)
        step = "limits"
        launch.prepare()
        step = "workdir"
        os.chdir(launch.workdir)
        _report(channel, role="job", pid=os.getpid(), sid=os.getsid(0), pgid=os.getpgid(0))
        channel.close()
        if os.read(ends.go, 1) != b"g":
            os.write(ends.fate, FATE_ABANDONED)
            os._exit(EXIT_ABANDONED)
        step = "exec"
        for descriptor in launch.inherited_fds:
            os.set_inheritable(descriptor, True)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.execvpe(launch.argv[0], launch.argv, launch.environ)
    except BaseException as error:  # noqa: BLE001 - as above
        number = error.errno if isinstance(error, OSError) and error.errno else 0
        words = error.strerror if isinstance(error, OSError) and error.strerror else f"{type(error).__name__}: {error}"
        os.write(ends.error, f"{step}\0{number}\0{words}".encode())
        _report_failure(channel, step, error)
        os._exit(EXIT_NOT_FOUND if number in _NO_SUCH_COMMAND and step == "exec" else EXIT_NOT_EXECUTABLE)


def _die_with(keeper: int) -> None:
    """Where a job is not to outlive its supervisor, the kernel ends its leader should the keeper be killed, too."""
    libc.set_parent_death_signal(signal.SIGKILL)
    if os.getppid() != keeper:
        os._exit(EXIT_ABANDONED)


def _connect_streams(output_write: int, *, pty: bool) -> None:
    """Input from /dev/null, output and errors into the output pipe, opened for reading too: no SIGPIPE, ever."""
    if pty:
        fcntl.ioctl(output_write, termios.TIOCSCTTY, 0)
        for number in (0, 1, 2):
            os.dup2(output_write, number)
        return
    null = os.open("/dev/null", os.O_RDONLY)
    both_ways = os.open(f"/proc/self/fd/{output_write}", os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(both_ways, 1)
    os.dup2(both_ways, 2)
    for descriptor in {null, both_ways, output_write} - {0, 1, 2}:
        os.close(descriptor)


def _restore_dispositions() -> None:
    """The job starts with default dispositions, whatever we ignore ourselves. Signals are blocked meanwhile."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            try:
                signal.signal(number, signal.SIG_DFL)
            except (OSError, ValueError):
                continue
