"""inotify: being told that a file changed, so that nothing has to look at it again and again.

Owns one kernel queue per `Inotify`. A watch is on an inode: it goes on after a rename and ends (with `IGNORED`) when
the file is gone. Reads never block; an overflowing queue is reported as an event, because the caller must then look
for itself. It does not know what is watched or why.

Source: inotify(7), inotify_add_watch(2); constants from include/uapi/linux/inotify.h.
"""

from __future__ import annotations

import os
import sys

from holdfast.model.record import record

MODIFY = 0x2
ATTRIB = 0x4
CLOSE_WRITE = 0x8
CLOSE_NOWRITE = 0x10
MOVED_TO = 0x80
CREATE = 0x100
DELETE = 0x200
DELETE_SELF = 0x400
MOVE_SELF = 0x800
OVERFLOW = 0x4000
IGNORED = 0x8000
DONT_FOLLOW = 0x0200_0000

_HEADER_BYTES = 16
_READ_BYTES = 64 * 1024
_MOST_READS = 16
"""More than a full queue (16,384 events): whoever makes events faster than they are read keeps nobody here."""


@record
class FileEvent:
    """One change: the watch it belongs to (-1 on overflow), what happened, and the name inside a watched directory."""

    watch: int
    mask: int
    name: str = ""


class Inotify:
    """One inotify queue. Its descriptor is readable when something happened; close it after use.

    Raises:
        OSError: the kernel gives no queue (EMFILE: fs.inotify.max_user_instances of this account is used up).
    """

    def __init__(self) -> None:
        """Open a queue that watches nothing yet."""
        import ctypes

        self._get_errno = ctypes.get_errno
        self._libc = ctypes.CDLL(None, use_errno=True)
        # Source: inotify_init1(2): the flags are those of open(2).
        self._fd: int = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise self._error("inotify_init1")

    def _error(self, what: str) -> OSError:
        number = self._get_errno()
        return OSError(number, os.strerror(number), what)

    def fileno(self) -> int:
        """The descriptor to poll for reading."""
        return self._fd

    def add(self, path: str, mask: int) -> int:
        """Watch `path` for the events in `mask`; answers the watch. The same inode gives the same watch again.

        Raises:
            OSError: it does not exist, may not be read, or the account's watches are used up (ENOSPC).
        """
        watch: int = self._libc.inotify_add_watch(self._fd, os.fsencode(path), mask)
        if watch < 0:
            raise self._error(path)
        return watch

    def remove(self, watch: int) -> None:
        """End a watch; one that ended by itself is fine. Events already queued for it still arrive."""
        self._libc.inotify_rm_watch(self._fd, watch)

    def read(self) -> tuple[FileEvent, ...]:
        """The events that are there now, in order; empty when there is none."""
        events: list[FileEvent] = []
        for _ in range(_MOST_READS):
            try:
                data = os.read(self._fd, _READ_BYTES)
            except BlockingIOError:
                break
            offset = 0
            while offset < len(data):
                watch = int.from_bytes(data[offset : offset + 4], sys.byteorder, signed=True)
                mask = int.from_bytes(data[offset + 4 : offset + 8], sys.byteorder)
                length = int.from_bytes(data[offset + 12 : offset + 16], sys.byteorder)
                start = offset + _HEADER_BYTES
                name = data[start : start + length].rstrip(b"\0")
                events.append(FileEvent(watch, mask, os.fsdecode(name)))
                offset = start + length
        return tuple(events)

    def close(self) -> None:
        """Give the queue back; a second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
