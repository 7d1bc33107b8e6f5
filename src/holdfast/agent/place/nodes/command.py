"""The command of one node, and all that descends from it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

from holdfast.host.contain.members import RunTree, empty_tree, find_members, signal_members
from holdfast.host.process import libc
from holdfast.host.process.processes import identify_self

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

EMPTY_WITHIN_S = 10.0
NOT_FOUND, NOT_EXECUTABLE = 127, 126
HEARD = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT, signal.SIGCHLD)


class Command:
    """At most one process, the children that it leaves behind, and how it ended; the kernel ends it with us.

    Orphans come to this process. All that descends from it counts, and nothing that only has the run's marker.
    """

    def __init__(self) -> None:
        """Nothing is started yet."""
        libc.set_child_subreaper()
        self._tree = RunTree("", 0, keeper=identify_self())
        self._process: subprocess.Popen[bytes] | None = None
        self.status: int | None = None
        """As `os.waitstatus_to_exitcode` has it: below 0 the signal that ended it; None before."""

    @property
    def lives(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and self.status is None

    def start(self, argv: Sequence[str], environ: Mapping[str, str], output: int | None = None) -> None:
        """Start it; `output` becomes its standard output and error. One that cannot be started has ended."""
        try:
            self._process = subprocess.Popen(
                argv,
                env=dict(environ),
                stdout=output,
                stderr=output,
                preexec_fn=lambda: libc.set_parent_death_signal(signal.SIGKILL),  # noqa: PLW1509 - one thread
            )
        except OSError as error:
            os.write(2 if output is None else output, f"holdfast: {argv[0]}: {error.strerror}\n".encode())
            self.status = NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE

    def reap(self) -> None:
        """Take notice of what has ended, orphans included."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if self._process is not None and pid == self._process.pid:
                self.status = self._process.returncode = os.waitstatus_to_exitcode(status)

    def terminate(self) -> None:
        """Ask all of it to leave, as a supervisor does on one node."""
        signal_members(find_members(self._tree), signal.SIGTERM)

    def kill(self) -> None:
        """End all of it."""
        empty_tree(self._tree, deadline_s=EMPTY_WITHIN_S)
        self.reap()


def as_code(status: int) -> int:
    """A status as a shell says it."""
    return 128 - status if status < 0 else status


def describe_status(status: int) -> str:
    """A status in words."""
    if status >= 0:
        return f"exit code {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"


def install_wakeup() -> int:
    """A descriptor on which the numbers of the signals that we hear come, each as one byte."""
    read_end, write_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    for number in HEARD:
        # A handler, for what is ignored stays ignored in a command.
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HEARD)
    return read_end


def read_wakeup(descriptor: int) -> bytes:
    """The signals that have come."""
    try:
        return os.read(descriptor, 4096)
    except BlockingIOError:
        return b""


def say(text: str) -> None:
    """A word of holdfast's own among the job's output."""
    sys.stdout.write(f"holdfast: {text}\n")
    sys.stdout.flush()
