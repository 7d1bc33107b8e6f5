"""A TCP proxy on loopback between a client and a real server: a link that is slow, freezes, or is cut.

    with Proxy(sshd.port) as link:
        alias = sshd.alias("box", via=link.port)
        link.delay_s = 0.1      # each way
        link.freeze()           # nothing moves, nothing is closed: as when the network is gone
        link.cut()              # every connection is reset
        link.cut_after(1000)    # ... once this many more bytes came from the server

One thread serves all connections; it ends with the block.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import selectors
import socket
import struct
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType

CHUNK_BYTES = 1 << 16


@dataclass
class _End:
    """One side of a connection: what is to be written to it."""

    sock: socket.socket
    from_server: bool
    other: _End | None = None
    unsent: bytearray = field(default_factory=bytearray)
    closing: bool = False


class Proxy:
    """Listens on `port` and carries bytes to `target` on loopback. `connections` counts those accepted so far.

    `carried` are the bytes that came from the server, `cuts` how often a `cut_after` has cut.
    """

    def __init__(self, target: int) -> None:
        """Nothing is carried before the block begins."""
        self.delay_s = 0.0
        self.connections = self.carried = self.cuts = 0
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        self.port = int(self._listener.getsockname()[1])
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe()
        self._ends: list[_End] = []
        self._due: list[tuple[float, int, _End, bytes]] = []
        self._count = 0
        self._frozen = self._cutting = self._over = False
        self._left: int | None = None
        self._thread = threading.Thread(target=self._serve, name="proxy")

    def __enter__(self) -> Proxy:  # noqa: PYI034 - nothing is derived from it
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over = True
        self._wake()
        self._thread.join()
        self._selector.close()
        self._listener.close()
        for fd in (self._wake_read, self._wake_write):
            os.close(fd)

    def freeze(self) -> None:
        """Carry nothing more, and close nothing."""
        self._frozen = True
        self._wake()

    def thaw(self) -> None:
        """Go on, with what came meanwhile."""
        self._frozen = False
        self._wake()

    def cut(self) -> None:
        """Reset every connection; new ones are served."""
        self._cutting = True
        self._wake()

    def cut_after(self, count: int) -> None:
        """Carry `count` more bytes from the server, then reset."""
        self._left = count

    def _wake(self) -> None:
        os.write(self._wake_write, b"x")

    def _serve(self) -> None:
        while not self._over:
            if self._cutting:
                self._reset_all()
            pause = None
            if self._due and not self._frozen:
                pause = max(0.0, self._due[0][0] - time.monotonic())
            for key, events in self._selector.select(pause):
                if key.fd == self._wake_read:
                    os.read(self._wake_read, CHUNK_BYTES)
                elif self._frozen:
                    self._selector.unregister(key.fileobj)  # asked for again when it thaws
                elif key.fileobj is self._listener:
                    self._accept()
                else:
                    self._move(key.data, events)
            if not self._frozen:
                self._deliver()
                self._ask_again()
        self._reset_all()

    def _accept(self) -> None:
        accepted, _ = self._listener.accept()
        try:
            server = socket.create_connection(("127.0.0.1", self._target), timeout=5)
        except OSError:
            accepted.close()
            return
        self.connections += 1
        client_end, server_end = _End(accepted, from_server=False), _End(server, from_server=True)
        client_end.other, server_end.other = server_end, client_end
        for end in (client_end, server_end):
            end.sock.setblocking(False)
            end.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._ends.append(end)
            self._selector.register(end.sock, selectors.EVENT_READ, end)

    def _move(self, end: _End, events: int) -> None:
        if end not in self._ends:
            return
        try:
            if events & selectors.EVENT_WRITE and end.unsent:
                del end.unsent[: end.sock.send(end.unsent)]
            if events & selectors.EVENT_READ:
                data = end.sock.recv(CHUNK_BYTES)
                if end.from_server and self._left is not None:
                    data, self._left = data[: self._left], self._left - len(data)
                    if self._left <= 0:
                        self._cutting, self._left = True, None
                        self.cuts += 1
                self.carried += len(data) if end.from_server else 0
                self._queue(end, data)
        except OSError:
            self._reset(end)

    def _queue(self, end: _End, data: bytes) -> None:
        if not data and not self._cutting:
            self._selector.unregister(end.sock)
            end.closing = True
        self._count += 1
        assert end.other is not None
        heapq.heappush(self._due, (time.monotonic() + self.delay_s, self._count, end.other, data))
        if self._cutting:
            self._deliver()

    def _deliver(self) -> None:
        while self._due and self._due[0][0] <= time.monotonic():
            _, _, end, data = heapq.heappop(self._due)
            if end not in self._ends:
                continue
            if data:
                end.unsent += data
            else:
                self._close(end)
        for end in list(self._ends):
            with contextlib.suppress(BlockingIOError):
                try:
                    while end.unsent:
                        del end.unsent[: end.sock.send(end.unsent)]
                except BlockingIOError:
                    raise
                except OSError:
                    self._reset(end)

    def _close(self, end: _End) -> None:
        """The other side has closed: so does this one, with what is still to be sent."""
        with contextlib.suppress(OSError):
            end.sock.setblocking(True)
            end.sock.settimeout(5)
            end.sock.sendall(end.unsent)
        for one in (end, end.other):
            if one in self._ends:
                self._drop(one)

    def _reset(self, end: _End) -> None:
        for one in (end, end.other):
            if one is not None and one in self._ends:
                with contextlib.suppress(OSError):
                    one.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self._drop(one)

    def _drop(self, end: _End | None) -> None:
        if end is not None:
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(end.sock)
            end.sock.close()
            self._ends.remove(end)

    def _reset_all(self) -> None:
        self._cutting = False
        for end in list(self._ends):
            self._reset(end)

    def _ask_again(self) -> None:
        """Register what a freeze has taken out, and ask for room where something waits to be written."""
        known = self._selector.get_map()
        if self._listener.fileno() not in known:
            self._selector.register(self._listener, selectors.EVENT_READ)
        for end in self._ends:
            wanted = (0 if end.closing else selectors.EVENT_READ) | (selectors.EVENT_WRITE if end.unsent else 0)
            if end.sock.fileno() in known:
                if wanted:
                    self._selector.modify(end.sock, wanted, end)
                else:
                    self._selector.unregister(end.sock)
            elif wanted:
                self._selector.register(end.sock, wanted, end)
