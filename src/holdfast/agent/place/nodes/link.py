"""The connection of a member to its leader: one JSON object a line, in both directions. Its end is the other's end.

Files of a network file system would tell of a node's end late, and of a stop late; this does within milliseconds.
"""

from __future__ import annotations

import contextlib
import json
import socket
from typing import Any

MOST_BYTES = 1 << 20
"""So much without the end of a line is nobody of ours."""
SEND_WITHIN_S = 20.0


class Link:
    """One end of a connection; `fileno` is readable when `receive` has something to say."""

    def __init__(self, connection: socket.socket) -> None:
        """Take the connection over."""
        connection.settimeout(SEND_WITHIN_S)
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = connection
        self._data = b""

    def fileno(self) -> int:
        """The descriptor."""
        return self._connection.fileno()

    def send(self, **message: object) -> None:
        """Send a message; a connection that is gone shows when it is read."""
        with contextlib.suppress(OSError):
            self._connection.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> list[dict[str, Any]] | None:
        """What has come, once something has; None when the other end is gone, or is none of ours."""
        try:
            data = self._connection.recv(1 << 16)
        except OSError:
            data = b""
        self._data += data
        *lines, self._data = self._data.split(b"\n")
        if len(self._data) > MOST_BYTES:
            return None
        try:
            found = [json.loads(line) for line in lines]
        except (ValueError, RecursionError):
            return None
        if not all(isinstance(one, dict) for one in found) or (not data and not found):
            return None
        return found

    def close(self) -> None:
        """Give it back."""
        self._connection.close()


def listen() -> socket.socket:
    """A socket that members on other machines reach, at a port that is free."""
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    return socket.create_server(("", 0), family=family, dualstack_ipv6=both)
