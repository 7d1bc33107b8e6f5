"""Ports for servers that are told theirs: free now, and given to nobody by chance until they are bound."""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path

LOWEST, FEW = 10_000, 10_000


def find_free_ports(count: int) -> list[int]:
    """Ports of loopback, below those that the kernel gives to whoever asks for any. Source: ip(7)."""
    given = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()[0])
    found: list[int] = []
    while len(found) < count:
        port = random.SystemRandom().randrange(LOWEST, max(given, LOWEST + FEW))
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            found += [] if port in found else [port]
    return found


def find_free_port() -> int:
    """One of them."""
    return find_free_ports(1)[0]
