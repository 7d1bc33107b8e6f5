"""A file system in user space that fails as it is told: the exact error, or no answer at all, to reads or writes.

It speaks the kernel's protocol over /dev/fuse itself, so nothing has to be installed. One directory, one file to read
(`data.bin`), and whatever the job creates; nothing is stored. The mount ends with the process that holds the
descriptor: the kernel aborts the connection, and everybody who waits in it is freed.

Source: the kernel header uapi/linux/fuse.h (protocol 7.31), Documentation/filesystems/fuse.rst.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
import time
from enum import Enum, IntEnum

from holdfast.model.record import record

READ_BYTES = (1 << 17) + 4096
"""The kernel refuses a read buffer smaller than the largest write with its headers."""
MAX_WRITE = 1 << 17
IN_HEADER = struct.Struct("=IIQQIIIHH")
OUT_HEADER = struct.Struct("=IiQ")
ATTRIBUTES = struct.Struct("=6Q10I")
ENTRY = struct.Struct("=4Q2I")
ROOT, DATA, FIRST_NEW = 1, 2, 3
DATA_NAME = b"data.bin"
DATA_BYTES = 1 << 20
DIRECT_IO = 1
BLOCK = 4096


class Opcode(IntEnum):
    """Requests that are answered with more than "not implemented"."""

    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    SETATTR = 4
    OPEN = 14
    READ = 15
    WRITE = 16
    STATFS = 17
    RELEASE = 18
    FSYNC = 20
    FLUSH = 25
    INIT = 26
    OPENDIR = 27
    READDIR = 28
    RELEASEDIR = 29
    CREATE = 35
    INTERRUPT = 36
    DESTROY = 38
    BATCH_FORGET = 42


class FailingRequests(str, Enum):
    """Which requests fail."""

    READ = "read"
    WRITE = "write"


@record
class InjectedError:
    """What goes wrong: `error` is an errno, 0 is no answer ever."""

    on: FailingRequests
    error: int

    @classmethod
    def parse(cls, text: str) -> InjectedError:
        """From ``read:ESTALE`` or ``read:hang``."""
        on, _, what = text.partition(":")
        return cls(FailingRequests(on), 0 if what == "hang" else int(getattr(errno, what)))


class RefusedRequest(Exception):
    """Answer this request with an error."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class FuseServer:
    """Answers requests from one descriptor of /dev/fuse until the mount is gone."""

    def __init__(self, descriptor: int, trouble: InjectedError) -> None:
        self._descriptor, self._trouble = descriptor, trouble
        self._nodes: dict[bytes, int] = {DATA_NAME: DATA}
        self._sizes: dict[int, int] = {DATA: DATA_BYTES}

    def serve(self) -> None:
        """Until the kernel says that the mount is gone (ENODEV)."""
        while True:
            try:
                request = os.read(self._descriptor, READ_BYTES)
            except OSError as error:
                if error.errno == errno.ENODEV:
                    return
                if error.errno in (errno.ENOENT, errno.EINTR, errno.EAGAIN):
                    # The request was interrupted before it was read.
                    continue
                raise
            self._answer(request)

    def _answer(self, request: bytes) -> None:
        _, opcode, unique, node = IN_HEADER.unpack_from(request)[:4]
        try:
            body = self._reply(opcode, node, request[IN_HEADER.size :])
            code = 0
        except RefusedRequest as refusal:
            body, code = b"", refusal.code
        if body is None:
            return
        try:
            os.write(self._descriptor, OUT_HEADER.pack(OUT_HEADER.size + len(body), -code, unique) + body)
        except OSError as error:
            # ENOENT: whoever asked has been killed meanwhile.
            if error.errno not in (errno.ENOENT, errno.ENODEV):
                raise

    def _reply(self, opcode: int, node: int, body: bytes) -> bytes | None:
        """The answer's body; None for no answer.

        Raises:
            Refuse: the answer is an error.
        """
        if opcode in (Opcode.FORGET, Opcode.BATCH_FORGET, Opcode.INTERRUPT):
            return None
        if opcode in (Opcode.READ, Opcode.WRITE):
            return self._transfer(opcode, node, body)
        if opcode == Opcode.INIT:
            return struct.pack("=4I2H2I2HI28x", 7, 31, MAX_WRITE, 0, 16, 12, MAX_WRITE, 1, 32, 0, 0)
        if opcode == Opcode.LOOKUP:
            return self._entry(self._find(body.rstrip(b"\0")))
        if opcode in (Opcode.GETATTR, Opcode.SETATTR):
            return struct.pack("=QII", 1, 0, 0) + self._attributes(node)
        if opcode in (Opcode.OPEN, Opcode.OPENDIR):
            return struct.pack("=QII", node, DIRECT_IO, 0)
        if opcode == Opcode.CREATE:
            return self._create(body[16:].rstrip(b"\0"))
        if opcode == Opcode.READDIR:
            return self._list(struct.unpack_from("=QQI", body)[1])
        if opcode == Opcode.STATFS:
            return struct.pack("=5Q4I24x", 1 << 20, 1 << 19, 1 << 19, 1 << 16, 1 << 15, BLOCK, 255, BLOCK, 0)
        if opcode in (Opcode.RELEASE, Opcode.RELEASEDIR, Opcode.FLUSH, Opcode.FSYNC, Opcode.DESTROY):
            return b""
        raise RefusedRequest(errno.ENOSYS)

    def _transfer(self, opcode: int, node: int, body: bytes) -> bytes | None:
        on = FailingRequests.READ if opcode == Opcode.READ else FailingRequests.WRITE
        if on is self._trouble.on:
            if self._trouble.error:
                raise RefusedRequest(self._trouble.error)
            return None
        _, offset, size = struct.unpack_from("=QQI", body)
        if on is FailingRequests.READ:
            return bytes(max(0, min(size, self._sizes.get(node, 0) - offset)))
        self._sizes[node] = max(self._sizes.get(node, 0), offset + size)
        return struct.pack("=II", size, 0)

    def _find(self, name: bytes) -> int:
        node = self._nodes.get(name)
        if node is None:
            raise RefusedRequest(errno.ENOENT)
        return node

    def _create(self, name: bytes) -> bytes:
        node = self._nodes.setdefault(name, FIRST_NEW + len(self._nodes))
        self._sizes.setdefault(node, 0)
        return self._entry(node) + struct.pack("=QII", node, DIRECT_IO, 0)

    def _entry(self, node: int) -> bytes:
        return ENTRY.pack(node, 0, 1, 1, 0, 0) + self._attributes(node)

    def _attributes(self, node: int) -> bytes:
        mode = stat.S_IFDIR | 0o700 if node == ROOT else stat.S_IFREG | 0o600
        size, now = self._sizes.get(node, 0), int(time.time())
        blocks = -(-size // 512)
        owner = (os.getuid(), os.getgid())
        return ATTRIBUTES.pack(node, size, blocks, now, now, now, 0, 0, 0, mode, 1, *owner, 0, BLOCK, 0)

    def _list(self, offset: int) -> bytes:
        rows = b""
        for index, (name, node) in enumerate(self._nodes.items()):
            if index >= offset:
                row = struct.pack("=QQII", node, index + 1, len(name), stat.S_IFREG >> 12) + name
                rows += row + bytes(-len(row) % 8)
        return rows
