"""Reading the files of a sweep: whole, once, bounded, as UTF-8 text; and saying all that is wrong in one.

A file is read once into what is handed in, so an edit afterwards changes nothing that is under way, and a reader in the
middle of it never sees the half of a line.
"""

from __future__ import annotations

import errno
import os
import select
import stat
import sys
from typing import TYPE_CHECKING

from holdfast.cli.job.documents import decode_text
from holdfast.model.errors import JobFileError
from holdfast.model.record import field, record

if TYPE_CHECKING:
    from holdfast.model.errors import HoldfastError

MAX_BYTES = 32 * 1024**2
SILENT_PIPE_S = 5
MAX_PROBLEMS = 10
"""So many mistakes are listed; more are only counted."""
STDIN = "-"


@record(frozen=False)
class FileProblems:
    """Mistakes of one file, in the order in which they were found."""

    found: list[tuple[int, str]] = field(default_factory=list)

    def add(self, where: str, message: str, line: int = 0) -> None:
        """Note one: `where` is ``file:line`` or an option."""
        self.found.append((line, f"{where}: {message}"))

    def __bool__(self) -> bool:
        """Whether there is one."""
        return bool(self.found)

    def raise_any(self, hint: str, kind: type[HoldfastError] = JobFileError) -> None:
        """End with all of them (the first ten in full), when there are any.

        Raises:
            HoldfastError: of `kind`; nothing was handed in.
        """
        if not self.found:
            return
        lines = [text for _, text in sorted(self.found, key=lambda problem: problem[0])]
        shown = lines[:MAX_PROBLEMS]
        if len(lines) > MAX_PROBLEMS:
            shown.append(f"and {len(lines) - MAX_PROBLEMS} more")
        raise kind("\n".join(shown), hint=hint, details={"problems": lines})


def read_text(path: str, what: str) -> str:
    """The text of a file, without a byte order mark; ``-`` is standard input. `what` names its kind in an error.

    Raises:
        JobFileError: it is missing, unreadable, too large, or no UTF-8 text.
    """
    try:
        data = sys.stdin.buffer.read(MAX_BYTES + 1) if path == STDIN else _read_data(path)
    except FileNotFoundError as error:
        raise JobFileError(f"{path}: there is no such {what}") from error
    except IsADirectoryError as error:
        raise JobFileError(f"{path}: is a directory, not a {what}") from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise JobFileError(f"{path}: cannot be read: {reason}") from error
    if len(data) > MAX_BYTES:
        raise JobFileError(f"{path}: is larger than {MAX_BYTES >> 20} MiB, which no {what} is")
    return decode_text(data, path)


def _read_data(path: str) -> bytes:
    """At most `MAX_BYTES` and one more; a pipe is read to its end.

    Raises:
        OSError: it cannot be read, is a device, or is a pipe in which nothing came.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        if stat.S_ISCHR(os.fstat(descriptor).st_mode) and os.path.realpath(path) != os.devnull:
            raise OSError(errno.ENODEV, "it is a device")
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        data = bytearray()
        while len(data) <= MAX_BYTES:
            if not poll.poll(SILENT_PIPE_S * 1000):
                raise TimeoutError(errno.ETIMEDOUT, f"it is a pipe into which nobody wrote for {SILENT_PIPE_S} s")
            piece = os.read(descriptor, MAX_BYTES + 1 - len(data))
            if not piece:
                break
            data += piece
        return bytes(data)
    finally:
        os.close(descriptor)
