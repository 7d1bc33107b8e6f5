"""The file that the ranks of one host share: its layout, how it is made and met, and when a left one is swept.

Layout, in 8-byte words of this machine: a header of `HEADER` words, then one slot of `SLOT` words (a cache line) per
rank. Aligned words are stored and loaded as a whole, so a reader sees an old value or the new one, never a mixture
(memoryview of format "q": one 8-byte memcpy, which compilers turn into one move; `struct` writes byte by byte).

A board belongs to the launch whose rank 0 made it, named by pid and start time. It is made beside its name and renamed,
so it is complete when it is seen; a process is called dead only if it provably is.
"""

from __future__ import annotations

import mmap
import os
import stat
import time

from holdfast.host.files import files
from holdfast.model.record import record
from holdfast.training.errors import TrainingError

PREFIX = ".ranks-"
MAGIC = 0x484F4C4442524431
"""``HOLDBRD1``; the last character is the version of the layout."""

HEADER, SLOT, WORD = 32, 8, 8
MAGIC_AT, WORLD_AT, TOKEN_AT, BOOT_AT, CREATOR_AT = 0, 1, 2, 3, 4
# The creator takes three words (4..6). The decision: sequence, step, action, decider, length and bytes of the reason.
SEQUENCE_AT, STEP_AT, ACTION_AT, DECIDER_AT, LENGTH_AT, REASON_AT = 8, 9, 10, 11, 12, 13
# Within a slot: begun step, acknowledged sequence, state, then the three words of the rank's process.
BEGUN, ACKED, STATE, PROCESS = 0, 1, 2, 3
EMPTY, JOINED, FINISHED, CLOSED = 0, 1, 2, 3
NOT_YET = -1
"""Begun step of a rank that has not arrived for the first time: nobody knows where it is, so nothing is decided."""

LINGER_S = 15.0
"""How long the rank 0 of an earlier launch with the same key may take to end before that is an error."""

SHARED_MEMORY = "/dev/shm"  # noqa: S108 - only a private directory inside it is used


@record
class RankProcess:
    """A process of this boot: pid and start time (clock ticks), as seen in the PID namespace with this inode."""

    pid: int
    start: int
    namespace: int

    def is_gone(self) -> bool:
        """Whether it has provably ended: what another namespace holds, or cannot be read, counts as alive.

        Source: proc_pid_stat(5): fields 3 (state), 20 (threads), 22 (start). A zombie has ended, unless it is a leader
        whose other threads go on.
        """
        if self.namespace != _namespace():
            return False
        try:
            with open(f"/proc/{self.pid}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            return True
        except OSError:
            return False
        if len(fields) < 20:
            return False
        return int(fields[19]) != self.start or (fields[0] in (b"Z", b"X") and int(fields[17]) <= 1)


def _namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino


def identify_self() -> RankProcess:
    """This process."""
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    return RankProcess(os.getpid(), int(fields[19]), _namespace())


def _boot() -> int:
    """This boot of this machine, as a number that fits a word."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return int(file.read().replace("-", "")[:15], 16)


class MappedBoard:
    """An open, mapped board. The caller closes it."""

    def __init__(self, path: str, descriptor: int) -> None:
        """Take over a descriptor; the file must be at least one header long.

        Raises:
            OSError, ValueError: it cannot be mapped (some network file systems share no memory).
        """
        self.path, self.descriptor = path, descriptor
        self._map = mmap.mmap(descriptor, 0)
        self.words: memoryview[int] = memoryview(self._map).cast("q")

    def is_sound(self, world: int | None = None) -> bool:
        """Whether it is a board of this layout, this boot and (if given) this many ranks."""
        words = self.words
        ranks = words[WORLD_AT]
        return (
            words[MAGIC_AT] == MAGIC
            and words[BOOT_AT] == _boot()
            and len(words) == HEADER + SLOT * ranks
            and world in (None, ranks)
        )

    def creator(self) -> RankProcess:
        """Rank 0 of the launch."""
        return self._process(CREATOR_AT)

    def process(self, rank: int) -> RankProcess:
        """The process in a rank's slot; meaningless while the slot is empty."""
        return self._process(HEADER + SLOT * rank + PROCESS)

    def _process(self, at: int) -> RankProcess:
        return RankProcess(self.words[at], self.words[at + 1], self.words[at + 2])

    def claim(self, rank: int) -> None:
        """Enter our process into our slot; the state comes last, so a slot that is not empty is complete."""
        at, own = HEADER + SLOT * rank, identify_self()
        words = self.words
        words[at + BEGUN], words[at + ACKED] = NOT_YET, 0
        words[at + PROCESS], words[at + PROCESS + 1], words[at + PROCESS + 2] = own.pid, own.start, own.namespace
        words[at + STATE] = JOINED

    def state(self, rank: int) -> int:
        """EMPTY, JOINED, FINISHED or CLOSED."""
        return self.words[HEADER + SLOT * rank + STATE]

    @property
    def token(self) -> str:
        """The launch, in 8 hex digits."""
        return f"{self.words[TOKEN_AT]:08x}"

    def is_current(self) -> bool:
        """Whether the path still leads to this file."""
        ours = os.fstat(self.descriptor)
        try:
            there = os.stat(self.path, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino)

    def remove(self) -> None:
        """Remove what the launch published, then the board, if it is still at its path."""
        directory, name = os.path.split(self.path)
        for other in os.listdir(directory):
            if other.startswith(f"{name}.{self.token}."):
                files.remove_quietly(f"{directory}/{other}")
        if self.is_current():
            files.remove_quietly(self.path)

    def close(self) -> None:
        """Unmap and close; closing any descriptor of a file frees this process's record locks on it (fcntl(2))."""
        self.words.release()
        self._map.close()
        os.close(self.descriptor)


def create_board(path: str, world: int) -> MappedBoard:
    """Make the board of a launch, as its rank 0; an earlier launch of the same key is waited for and replaced.

    Raises:
        TrainingError: another launch uses it, or somebody else's file is at its place.
        OSError: it cannot be made or mapped.
    """
    _await_the_end_of_others(path)
    own = identify_self()
    data = memoryview(bytearray((HEADER + SLOT * world) * WORD)).cast("q")
    data[MAGIC_AT], data[WORLD_AT], data[BOOT_AT] = MAGIC, world, _boot()
    data[TOKEN_AT] = int.from_bytes(os.urandom(4), "big")
    data[CREATOR_AT], data[CREATOR_AT + 1], data[CREATOR_AT + 2] = own.pid, own.start, own.namespace
    temporary = f"{path}.{own.pid}.tmp"
    files.remove_quietly(temporary)
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, 0o600)
    try:
        # Written, not just sized: a hole that no block can be found for later would be a SIGBUS in the loop.
        files.write_all(descriptor, bytes(data))
        board = MappedBoard(path, descriptor)
        os.rename(temporary, path)
    except BaseException:
        files.remove_quietly(temporary)
        os.close(descriptor)
        raise
    return board


def _await_the_end_of_others(path: str) -> None:
    """Return when nobody alive uses the board at the path; what is no sound board is nobody's."""
    end = time.monotonic() + LINGER_S
    while True:
        board = attach_board(path)
        if board is None:
            return
        owner = board.creator() if board.is_sound() else None
        board.close()
        if owner is None or owner == identify_self() or owner.is_gone():
            return
        if time.monotonic() >= end:
            raise TrainingError(
                f"{path} is in use by another launch of the same key (its rank 0 has pid {owner.pid})",
                "wait for it to end, or start the ranks with torchrun, which gives each launch its own key",
            )
        time.sleep(0.02)


def attach_board(path: str) -> MappedBoard | None:
    """Open and map what is at the path; None when there is nothing, or nothing that could be a board (too short).

    Raises:
        TrainingError: it is not a plain file of this account.
        OSError: it cannot be opened or mapped.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    try:
        seen = os.fstat(descriptor)
        if not stat.S_ISREG(seen.st_mode) or seen.st_uid != os.geteuid():
            raise TrainingError(f"{path} is not a file of this account", "somebody put it there: ask for its removal")
        if seen.st_size < HEADER * WORD or seen.st_size % WORD:
            os.close(descriptor)
            return None
        return MappedBoard(path, descriptor)
    except BaseException:
        os.close(descriptor)
        raise


def remove_ended_boards(directory: str) -> None:
    """Remove the boards of launches of this boot whose processes have all ended; what is unclear stays."""
    for name in os.listdir(directory):
        if not name.startswith(PREFIX) or "." in name[1:]:
            continue
        try:
            board = attach_board(f"{directory}/{name}")
        except (OSError, ValueError, TrainingError):
            continue
        if board is None:
            continue
        try:
            if board.is_sound() and board.creator().is_gone() and all(_is_over(board, rank) for rank in _ranks(board)):
                board.remove()
        finally:
            board.close()


def _ranks(board: MappedBoard) -> range:
    return range(board.words[WORLD_AT])


def _is_over(board: MappedBoard, rank: int) -> bool:
    return board.state(rank) in (EMPTY, CLOSED) or board.process(rank).is_gone()


def find_directory(fallback: str) -> str:
    """A private directory in shared memory, or `fallback` where there is none to be had.

    On a disk file system a store into a mapped page can wait for the journal while a checkpoint is being synced; in
    memory it cannot. All ranks must see the same /dev/shm: true for ranks that one torchrun started.
    """
    path = f"{SHARED_MEMORY}/holdfast-ranks-{os.geteuid()}"
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass
    except OSError:
        return fallback
    seen = os.lstat(path)
    private = stat.S_ISDIR(seen.st_mode) and seen.st_uid == os.geteuid() and not seen.st_mode & 0o077
    return path if private else fallback
