"""The room of a container: the directory of the attempt by which the box and the first program inside talk.

It is mounted there as /run/holdfast. The gate and what is held open are FIFOs: the kernel's word, not a file's. All
else may have been written by whoever is inside: it is bounded, never followed, never waited for, and believed of that
job alone.
"""

from __future__ import annotations

import errno
import os
import re
import signal
import stat
from typing import TYPE_CHECKING

from holdfast.host.clock import epoch_s, format_utc, parse_utc, utc_now
from holdfast.host.files import files
from holdfast.host.files.inotify import CREATE, MODIFY, MOVED_TO, Inotify
from holdfast.model.container import ENTER_PY, ENTER_SH, GATE, HELD, INNER_STATUS, SAID, RuntimeName
from holdfast.model.record import replace

from .plan import CARDS, NODES

if TYPE_CHECKING:
    from holdfast.core.container.command import ContainerPlan
    from holdfast.model.identity import WaitStatus

LARGEST_SAID = 4096
INNER_END = re.compile(r"(?:exit (?P<code>\d{1,3})|signal (?P<signal>\d{1,2})(?P<core> core)?)\n?", re.ASCII)
"""What `in_job.enter` writes; whoever is inside can write something else."""
BEGUN = "begun"
"""A line of `SAID`: the gate was opened. As `in_job.enter` writes it."""
MEMORY_KILLS = "memory-kills"
"""A line of `SAID` begins so: the kernel killed inside for want of memory. As `in_job.enter` writes it."""
TOLD = "told"
"""A line of `SAID` begins so: TERM came to the first process, which holdfast leaves out. As `enter` writes it."""
TOLD_WITHIN_S = 300.0
"""Between that and an end that it brought about: who stops a container by hand may give it minutes."""
NO_PYTHON = "python none"
NEVER_RAN = (
    ("absent ", 127, "is not in the image", "name a program that the image has; its PATH counts, not this box's"),
    ("refused ", 126, "cannot be executed in the image", "chmod +x it, or name its interpreter"),
)
"""Words before a program's name in `SAID`, with the exit code, what that is for people, and what to do."""
IN_JOB = os.path.join(os.path.abspath(__file__).rpartition("/supervise/")[0], "in_job")


class GateLost(Exception):
    """The gate is not what we made; the message says what is there."""


class Room:
    """One attempt's room. Owns the descriptor by which this process holds `HELD`."""

    def __init__(self, path: str) -> None:
        """It may be there already, of an earlier supervisor."""
        self.path = path
        self._held = -1

    def make(self, plan: ContainerPlan) -> None:
        """Make it anew, for one start."""
        if self._held >= 0:
            os.close(self._held)
            self._held = -1
        files.remove_tree(self.path)
        os.makedirs(self.path, mode=0o755)
        os.chmod(self.path, 0o755)  # noqa: S103 - within a run directory that is this account's alone
        for name in (ENTER_SH, ENTER_PY):
            self.put(name, files.read_bytes(f"{IN_JOB}/{name}"))
        leased = [os.path.basename(node) for node in plan.cards.nodes if node.rpartition("nvidia")[2].isdigit()]
        how = plan.cards.how.value
        listed = "" if how in ("simulated", "variable", "gpus", "cdi") else " ".join(leased) or "none"
        self.put(CARDS, f"{plan.environment.get('CUDA_VISIBLE_DEVICES', '')}\n".encode())
        self.put(NODES, f"{listed}\n".encode())
        for name in (SAID, INNER_STATUS):
            self.put(name, of_both=True)
        os.mkfifo(f"{self.path}/{GATE}")
        os.chmod(f"{self.path}/{GATE}", 0o666)  # noqa: S103 - as above
        if plan.runtime in (RuntimeName.PODMAN, RuntimeName.DOCKER):
            # Of the others all is below our keeper.
            os.mkfifo(f"{self.path}/{HELD}")
            os.chmod(f"{self.path}/{HELD}", 0o644)

    def put(self, name: str, data: bytes = b"", *, of_both: bool = False) -> None:
        """Put a new file there; with `of_both` the image's own user, who may be another one, writes it, too."""
        descriptor = os.open(f"{self.path}/{name}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            files.write_all(descriptor, data)
            os.fchmod(descriptor, 0o666 if of_both else 0o644)
        finally:
            os.close(descriptor)

    def hold(self) -> tuple[int, ...]:
        """Hold `HELD` open: the descriptor for whoever else is to. The command ends when nobody does any more.

        Whoever takes over holds it, too. Where there is none (an earlier version's room), nobody watches it.
        """
        if self._held < 0:
            try:
                self._held = _open_fifo(f"{self.path}/{HELD}", os.O_RDWR)
            except (OSError, GateLost):
                return ()
        return (self._held,)

    def watch(self) -> Inotify | None:
        """Told of what is written or made in it; None where the account's watches are used up."""
        queue = None
        try:
            queue = Inotify()
            queue.add(self.path, MODIFY | CREATE | MOVED_TO)
        except OSError:
            if queue is not None:
                queue.close()
            return None
        return queue

    def open_gate(self, word: str = "go") -> bool:
        """Let the command go, or say another word, and it never runs; False while nobody waits at the gate.

        Raises:
            GateLost: there is none.
        """
        try:
            gate = _open_fifo(f"{self.path}/{GATE}", os.O_WRONLY)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return False
            raise GateLost(f"its gate is gone: {error.strerror}") from None
        try:
            os.write(gate, f"{word}\n".encode())
        except OSError:
            return False
        finally:
            os.close(gate)
        return True

    # --- what was said inside --------------------------------------------------------------------------------------

    def read(self, name: str, most: int = LARGEST_SAID, *, end: bool = False) -> str:
        """The first bytes of a file, or the last; empty where that is no plain file."""
        try:
            descriptor = os.open(f"{self.path}/{name}", os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return ""
        try:
            facts = os.fstat(descriptor)
            if not stat.S_ISREG(facts.st_mode):
                return ""
            return os.pread(descriptor, most, max(0, facts.st_size - most) if end else 0).decode("utf-8", "replace")
        except OSError:
            return ""
        finally:
            os.close(descriptor)

    def read_said(self) -> str:
        """What the first program has said; of very much its beginning and its end."""
        text = self.read(SAID)
        return text if len(text) < LARGEST_SAID else f"{text}\n{self.read(SAID, end=True)}"

    def has_begun(self) -> bool:
        """Whether it is behind the gate."""
        return BEGUN in self.read_said().splitlines()

    def has_python(self) -> bool:
        """Whether the image has one: then it reaps, watches `HELD`, and leaves the exact end."""
        return NO_PYTHON not in self.read_said()

    def read_word(self, word: str) -> str:
        """What stands behind a word at the beginning of a line; empty when nobody said it."""
        lines = (line for line in self.read_said().splitlines() if line.startswith(word))
        return next(lines, "").removeprefix(word)

    def tells_memory_kills(self) -> bool:
        """Whether the kernel killed inside for want of memory, as the container's own counters said before its end."""
        return bool(self.read_word(f"{MEMORY_KILLS} "))

    def was_told_to_end(self, status: WaitStatus) -> bool:
        """Whether somebody told the container to end, and it ended of that."""
        word = self.read_word(f"{TOLD} ")
        try:
            return 0 <= parse_utc(status.ended_at) - float(word) + 1.0 <= TOLD_WITHIN_S
        except ValueError:
            return False

    def read_end(self, status: WaitStatus) -> WaitStatus | None:
        """`status` with the exact end of the command; None where none was written."""
        return read_inner_end(self.read(INNER_STATUS), status)

    def read_end_time(self, *, after: str) -> str:
        """When the exact end was written, as ISO 8601 UTC; not before `after`, and not later than now."""
        try:
            written = os.lstat(f"{self.path}/{INNER_STATUS}").st_mtime
        except OSError:
            return utc_now()
        return max(after, format_utc(min(written, epoch_s())))

    def read_convention(self, status: WaitStatus, *, opened: bool) -> WaitStatus:
        """`status` by the shell's convention, 128 + the signal's number, of a command that ran without a Python."""
        code = status.code or 0
        if not opened or self.has_python() or not 128 < code <= 128 + int(signal.SIGRTMAX):
            return status
        return replace(status, code=None, signal=code - 128)


def read_inner_end(text: str, status: WaitStatus) -> WaitStatus | None:
    """`status` with the end that is written inside; None where nothing is, or somebody wrote something else there."""
    said = INNER_END.fullmatch(text)
    if said is None:
        return None
    if said["code"]:
        return replace(status, code=int(said["code"]) & 0xFF, signal=None)
    number = int(said["signal"])
    if not 0 < number <= signal.SIGRTMAX:
        return None
    return replace(status, code=None, signal=number, core_dumped=bool(said["core"]))


def _open_fifo(path: str, how: int) -> int:
    descriptor = os.open(path, how | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise GateLost("something else is in place of its gate")
    return descriptor
