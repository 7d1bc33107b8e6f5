"""inotify: being told that a file changed, so that nothing has to look at it again and again.

Owns one kernel queue per `Inotify`. A watch is on an inode: it goes on after a rename and ends (with `IGNORED`) when
the file is gone. Reads never block; an overflowing queue is reported as an event, because the caller must then look
for itself. It does not know what is watched or why.

Source: inotify(7), inotify_add_watch(2); constants from include/uapi/linux/inotify.h.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

MODIFY = 0x2
ATTRIB = 0x4
CLOSE_WRITE = 0x8
CLOSE_NOWRITE = 0x10
MOVED_FROM = 0x40
MOVED_TO = 0x80
CREATE = 0x100
DELETE = 0x200
DELETE_SELF = 0x400
MOVE_SELF = 0x800
OVERFLOW = 0x4000
IGNORED = 0x8000
ONLYDIR = 0x0100_0000
DONT_FOLLOW = 0x0200_0000
EXCL_UNLINK = 0x0400_0000

_HEADER_BYTES = 16
_READ_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Event:
    """One change: the watch it belongs to (-1 on overflow), what happened, and the name inside a watched directory."""

    watch: int
    mask: int
    name: str = ""


class Inotify:
    """One inotify queue. Its descriptor is readable when something happened; close it after use.

    Raises:
        OSError: the kernel gives no queue (EMFILE: fs.inotify.max_user_instances of this account is used up).
    """

    def __init__(self, descriptor: int | None = None) -> None:
        """Open a queue, or go on with one that is open already and has its watches (then nothing can be added)."""
        if descriptor is not None:
            self._fd: int = descriptor
            return
        import ctypes

        self._get_errno = ctypes.get_errno
        self._libc = ctypes.CDLL(None, use_errno=True)
        # Source: inotify_init1(2): the flags are those of open(2).
        self._fd = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
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

    def read(self) -> tuple[Event, ...]:
        """Every event that is there now, in order; empty when there is none."""
        events: list[Event] = []
        while True:
            try:
                data = os.read(self._fd, _READ_BYTES)
            except BlockingIOError:
                return tuple(events)
            offset = 0
            while offset < len(data):
                watch = int.from_bytes(data[offset : offset + 4], sys.byteorder, signed=True)
                mask = int.from_bytes(data[offset + 4 : offset + 8], sys.byteorder)
                length = int.from_bytes(data[offset + 12 : offset + 16], sys.byteorder)
                start = offset + _HEADER_BYTES
                name = data[start : start + length].rstrip(b"\0")
                events.append(Event(watch, mask, os.fsdecode(name)))
                offset = start + length

    def close(self) -> None:
        """Give the queue back; a second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
