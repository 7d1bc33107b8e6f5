"""Tunnels: what listens on a place's loopback, at a port of this machine's loopback, for as long as the command lives.

The connection is one of its own, so that nothing is left of it in a shared one. With it runs a command that reads a
pipe of this process: when this process is gone, however that came about, the connection ends. ssh listens before that
command begins, so its first word says that the ports are open here. Nothing but 127.0.0.1 is ever listened on.
"""

from __future__ import annotations

import os
import re
import select
import socket
import time
from collections.abc import Callable, Sequence

from holdfast.desk.terminal import ReceivedSignals, drain, listening, say
from holdfast.model.errors import PlaceError, ResourceBusy, UsageError
from holdfast.model.place import Place
from holdfast.model.record import record
from holdfast.transport.ssh.forward import LOOPBACK, Forward, ForwardingTransport

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
MOST_PORTS = 32
HIGHEST = 65535
FIRST_FREE = 1024
"""Below it only root listens. Source: ip(7), ip_unprivileged_port_start."""
_UP = b"up\n"
# Words: each port as /proc/net/tcp has it. Source: proc_net_tcp.txt; 0A is LISTEN.
_SCRIPT = (
    'echo up; for p; do test -r /proc/net/tcp || break; grep -qs ":$p [0-9A-F]*:0000 0A " /proc/net/tcp '
    '/proc/net/tcp6 || echo "none $p"; done; exec cat >/dev/null'
)
_NONE = re.compile(rb"none ([0-9A-F]{4})\n")
_FAILED = re.compile(rb"open failed: ([^\n]{0,200})")


@record
class Tunnel:
    """A tunnel that is open: each port there with the port here, and the addresses here for a browser."""

    place: str
    forwards: tuple[Forward, ...]
    urls: tuple[str, ...]


def parse_ports(words: Sequence[str]) -> tuple[Forward, ...]:
    """The ports of a command line: ``PORT`` or ``PORT:LOCAL``.

    Raises:
        UsageError: they are none, or two would be the same here.
    """
    found = []
    for word in words:
        port, colon, local = word.partition(":")
        numbers = [port, local if colon else port]
        if not all(text.isascii() and text.isdigit() and 1 <= int(text[:6]) <= HIGHEST for text in numbers):
            raise UsageError(f"{word!r} is no port", hint="write PORT, or PORT:LOCAL for another port here: 6006:7007")
        found.append(Forward(int(numbers[0]), int(numbers[1])))
    if len({forward.local for forward in found}) < len(found):
        raise UsageError("two ports there cannot be one port here", hint="write PORT:LOCAL for one of them")
    if len(found) > MOST_PORTS:
        raise UsageError(f"{len(found)} ports are more than {MOST_PORTS}", hint="open several tunnels")
    return tuple(found)


def hold_tunnel(place: Place, forwards: tuple[Forward, ...], opened: Callable[[Tunnel], None]) -> int:
    """Keep a tunnel until a signal ends it; the exit code. `opened` is called once, when the ports are open here.

    A link that is lost is tried again, with pauses that grow, for as long as the command lives.

    Raises:
        ResourceBusy: a port here is taken.
        PlaceError, Refused, Unsupported: there is no such connection, or no more.
    """
    refuse_busy(place, forwards)
    with listening() as (wake_fd, heard):
        return _Holding(place, forwards, opened, wake_fd, heard).run()


def refuse_busy(place: Place, forwards: Sequence[Forward]) -> None:
    """Refuse ports of this machine on which somebody listens.

    Raises:
        ResourceBusy: names it, and one that is free.
    """
    for forward in forwards:
        problem = _try_listening(forward.local)
        if problem is None:
            continue
        free = _find_free(forward.local, {one.local for one in forwards})
        words = " ".join(
            f"{one.port}:{free}"
            if one is forward
            else f"{one.port}:{one.local}"
            if one.port != one.local
            else f"{one.port}"
            for one in forwards
        )
        raise ResourceBusy(
            f"{LOOPBACK}:{forward.local} cannot be listened on here: {problem}",
            hint=f"take another port here: holdfast tunnel {place.name} {words}",
            details={"port": forward.local, "free": free},
        )


def _try_listening(port: int) -> str | None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as ssh does
        try:
            probe.bind((LOOPBACK, port))
            probe.listen(1)
        except OSError as error:
            return error.strerror or str(error)
    return None


def _find_free(port: int, taken: set[int]) -> int:
    for candidate in range(max(port + 1, FIRST_FREE), min(port + 200, HIGHEST + 1)):
        if candidate not in taken and _try_listening(candidate) is None:
            return candidate
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


class _Holding:
    """One tunnel over as many connections as it takes."""

    def __init__(
        self,
        place: Place,
        forwards: tuple[Forward, ...],
        opened: Callable[[Tunnel], None],
        wake_fd: int,
        heard: ReceivedSignals,
    ) -> None:
        self._place, self._forwards, self._opened = place, forwards, opened
        self._wake_fd, self._heard = wake_fd, heard
        self._transport = ForwardingTransport(place, forwards)
        self._out = b""
        self._up = False
        self._ever_up = False
        self._told: set[bytes] = set()

    def run(self) -> int:
        pause_s = FIRST_PAUSE_S
        while not self._heard:
            try:
                self._connect()
            except PlaceError:
                if not self._up:
                    refuse_busy(self._place, self._forwards)
                if not self._ever_up:
                    raise
            if self._up and not self._heard:
                say(f"link to {self._place.name} lost, trying again; Ctrl-C ends the tunnel")
                pause_s = FIRST_PAUSE_S
            self._rest(pause_s)
            pause_s = min(LONGEST_PAUSE_S, pause_s * 2)
        return 128 + self._heard[0]

    def _connect(self) -> None:
        self._out, self._up = b"", False
        self._told.clear()
        read_fd, write_fd = os.pipe()
        try:
            self._transport.follow(
                _SCRIPT,
                [f"{forward.port:04X}" for forward in self._forwards],
                out=self._hear_out,
                err=self._hear_err,
                stdin_fd=read_fd,
                wake_fd=self._wake_fd,
                woken=self._woken,
            )
        finally:
            os.close(read_fd)
            os.close(write_fd)

    def _hear_out(self, data: bytes) -> None:
        self._out = (self._out + data)[-4096:]
        if not self._up and self._out.startswith(_UP):
            self._up = True
            if self._ever_up:
                say(f"the link to {self._place.name} is back")
            else:
                self._ever_up = True
                urls = tuple(f"http://{LOOPBACK}:{forward.local}" for forward in self._forwards)
                self._opened(Tunnel(self._place.name, self._forwards, urls))
        for found in _NONE.finditer(self._out):
            self._tell(found[1], f"nothing listens on port {int(found[1], 16)} at {self._place.name} yet")
        self._out = self._out[self._out.rfind(b"\n") + 1 :] if self._up else self._out

    def _hear_err(self, data: bytes) -> None:
        for found in _FAILED.finditer(data):
            why = found[1].decode(errors="replace").strip()
            ports = ", ".join(str(forward.port) for forward in self._forwards)
            one = "port" if len(self._forwards) == 1 else "one of the ports"
            hint = "; its sshd does not allow tunnels" if "prohibited" in why else ""
            self._tell(found[1], f"{self._place.name} could not connect to {one} {ports}: {why}{hint}")

    def _tell(self, key: bytes, text: str) -> None:
        """Once for each connection: a browser asks often."""
        if key not in self._told:
            self._told.add(key)
            say(text)

    def _woken(self) -> bool:
        drain(self._wake_fd)
        return bool(self._heard)

    def _rest(self, pause_s: float) -> None:
        deadline = time.monotonic() + pause_s
        while not self._heard and (left := deadline - time.monotonic()) > 0:
            select.select([self._wake_fd], [], [], left)
            drain(self._wake_fd)
