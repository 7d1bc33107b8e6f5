"""The keeper: the job's parent, which stays when everything else of holdfast is killed.

It owns the job's output pipe, writes ``status.json`` once the leader has ended, holds the lease's descriptors, and
leaves only when the whole tree is gone: its own exit *is* the proof that nothing is left, because every orphan of the
tree is re-parented to it (it is init of the job's PID namespace, or a child subreaper). It takes no decisions while a
supervisor lives, and only two when there is none: what the job asked for on its supervisor's death, and the end of
what outlives the leader.

The status is read without reaping (WNOWAIT), committed, and only then reaped: a keeper killed in between leaves the
zombie, and with it the status, to the supervisor.
"""

from __future__ import annotations

import errno
import os
import select
import signal
from collections.abc import Callable

from holdfast.host.clock import monotonic_s, utc_now
from holdfast.host.files import fallback, files
from holdfast.host.process import libc
from holdfast.host.process.signals import SURVIVED
from holdfast.model.identity import ABANDONED, WaitStatus
from holdfast.model.record import record
from holdfast.model.wire import to_bytes

from .output import OutputFile

ORPHAN_GRACE_S = 5.0
"""Without a supervisor: how long what outlives the leader gets between TERM and KILL."""
FATE_ABANDONED = b"a"
LOOK_AGAIN_S = 0.5
"""How often a keeper looks whether the supervisor that took over is still there."""
DRAIN_LIMIT_BYTES = 64 * 1024**2
"""What is still taken from the pipe after the tree is gone (the pipe itself holds far less)."""


@record
class KeeperOrders:
    """What a keeper was told: where to write, which process is the leader, and how to end the tree.

    `output_fd` is read (pipe or pty), `supervisor_fd` reports end of file when the supervisor dies, `fate_fd` holds
    `FATE_ABANDONED` when the job left without having run. `signal_rest(number)` signals every process of the tree
    except the keeper and says how many there were. Whoever supervises holds a lock on the file at `lock_path`.
    """

    run_id: str
    attempt: int
    status_path: str
    output_path: str
    output_max_bytes: int
    job_pid: int
    output_fd: int
    supervisor_fd: int
    kill_on_supervisor_death: bool
    signal_rest: Callable[[int], int]
    fate_fd: int = -1
    lock_path: str = ""


def describe_status(code: int, status: int) -> tuple[int | None, int | None, bool]:
    """Code, signal and core flag from the ``si_code`` and ``si_status`` of waitid(2)."""
    if code == os.CLD_EXITED:
        return status & 0xFF, None, False
    return None, status, code == os.CLD_DUMPED


def write_status(keeping_run: tuple[str, int], path: str, status: WaitStatus) -> None:
    """Commit a wait status; into the fallback place when the run directory cannot take it."""
    run_id, attempt = keeping_run
    fallback.commit(run_id, attempt, path, to_bytes(status))


class Keeper:
    """The keeper's loop; `run` returns when the tree is empty."""

    def __init__(self, keeping: KeeperOrders) -> None:
        """Prepare to keep; must be called in the process that is the job's parent."""
        self._keeping = keeping
        attempt = (keeping.run_id, keeping.attempt)
        self._output = OutputFile(keeping.output_path, keeping.output_max_bytes, attempt)
        self._supervised = True
        self._leader_ended = False
        self._orphan_deadline: float | None = None
        self._orphan_signal = signal.SIGTERM
        self._asked = False

    def run(self) -> None:
        """Keep until nothing of the tree is left and its output is on file."""
        wake_read = _install_wakeup()
        poller = select.poll()
        for descriptor in (self._keeping.output_fd, self._keeping.supervisor_fd, wake_read):
            poller.register(descriptor, select.POLLIN)
        while not self._reap():
            for descriptor, events in poller.poll(self._timeout_ms()):
                if descriptor == wake_read:
                    _drain(wake_read)
                elif descriptor == self._keeping.output_fd:
                    if not self._pump(events):
                        poller.unregister(descriptor)
                elif descriptor == self._keeping.supervisor_fd and not self._hear():
                    poller.unregister(descriptor)
                    self._on_orphaned()
            self._press_on()
        self._pump_rest()
        self._output.close()

    def _timeout_ms(self) -> int | None:
        if self._orphan_deadline is None:
            return None
        return max(0, int((self._orphan_deadline - monotonic_s()) * 1000)) + 1

    def _hear(self) -> bool:
        """Whether the supervisor is still there."""
        try:
            return bool(os.read(self._keeping.supervisor_fd, 4096))
        except OSError as error:
            return error.errno in (errno.EAGAIN, errno.EINTR)

    def _on_orphaned(self) -> None:
        self._supervised = False
        if self._keeping.kill_on_supervisor_death or self._leader_ended:
            self._orphan_deadline = monotonic_s()

    def _press_on(self) -> None:
        """TERM, then KILL again and again, what is to be ended without a supervisor."""
        if self._orphan_deadline is None or monotonic_s() < self._orphan_deadline:
            return
        if not self._keeping.kill_on_supervisor_death and self._is_adopted():
            # Its stop ladder decides again, not ours.
            self._orphan_deadline = monotonic_s() + LOOK_AGAIN_S
            return
        self._asked = self._asked or not self._leader_ended
        self._keeping.signal_rest(self._orphan_signal)
        self._keeping.signal_rest(signal.SIGCONT)
        self._orphan_deadline = monotonic_s() + (ORPHAN_GRACE_S if self._orphan_signal == signal.SIGTERM else 0.5)
        self._orphan_signal = signal.SIGKILL

    def _is_adopted(self) -> bool:
        """Whether another supervisor has taken the run up: it holds the attempt's lock.

        A lock that cannot be looked at is no sign of one, and then the job's wish for this case is carried out.
        """
        return files.is_locked(self._keeping.lock_path) is True

    def _reap(self) -> bool:
        """Take the status of whatever has ended; True when no child is left at all."""
        while True:
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return True
            if found is None:
                return False
            if found.si_pid == self._keeping.job_pid:
                self._record(found)
            else:
                os.waitpid(found.si_pid, 0)

    def _record(self, found: os.waitid_result) -> None:
        code, number, dumped = describe_status(found.si_code, found.si_status)
        source = ABANDONED if self._was_abandoned() else "keeper"
        usage = libc.read_zombie_usage(found.si_pid) or libc.ProcessUsage(0.0, 0.0, 0)
        self._write(
            WaitStatus(
                code,
                number,
                dumped,
                ended_at=utc_now(),
                user_s=round(usage.user_s, 3),
                system_s=round(usage.system_s, 3),
                max_rss_bytes=usage.max_rss_bytes,
                source=source,
                asked=self._asked,
            )
        )
        os.waitpid(found.si_pid, 0)
        self._leader_ended = True
        if not self._supervised:
            self._orphan_deadline = monotonic_s()

    def _was_abandoned(self) -> bool:
        try:
            return os.read(self._keeping.fate_fd, 1) == FATE_ABANDONED
        except OSError:
            return False

    def _write(self, status: WaitStatus) -> None:
        write_status((self._keeping.run_id, self._keeping.attempt), self._keeping.status_path, status)

    def _pump(self, events: int) -> bool:
        """Move what the job wrote into its log; False when no writer is left."""
        try:
            data = os.read(self._keeping.output_fd, 1 << 16)
        except BlockingIOError:
            return True
        except OSError:
            return False
        if data:
            self._output.write(data)
        return bool(data) or not events & (select.POLLHUP | select.POLLERR)

    def _pump_rest(self) -> None:
        os.set_blocking(self._keeping.output_fd, False)
        taken = 0
        while taken < DRAIN_LIMIT_BYTES:
            try:
                data = os.read(self._keeping.output_fd, 1 << 16)
            except OSError:
                return
            if not data:
                return
            taken += len(data)
            self._output.write(data)


def settle_signals() -> None:
    """Ignore what is meant for the job or the supervisor, from the first moment on: a keeper ends by its tree's end.

    Nor is anything written to somebody else's wakeup descriptor any more.
    """
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number in SURVIVED:
        signal.signal(number, signal.SIG_IGN)


def _install_wakeup() -> int:
    """A descriptor that becomes readable when a child changes state."""
    read_end, write_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    return read_end


def _drain(descriptor: int) -> None:
    try:
        while os.read(descriptor, 512):
            pass
    except BlockingIOError:
        return
