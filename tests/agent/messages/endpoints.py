"""Whoever takes messages, for tests: a web server on loopback with moods, a mail server that keeps what it gets."""

from __future__ import annotations

import http.server
import os
import socketserver
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Endpoint:
    """A web server. `moods` are taken one by one, the last one stays: a status, ``hang``, ``close``, ``/elsewhere``."""

    def __init__(self, moods: tuple[int | str, ...]) -> None:
        self.moods = list(moods)
        self.got: list[tuple[str, dict[str, str], bytes]] = []
        self.headers: dict[str, str] = {}
        self.let_go = threading.Event()
        endpoint = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                endpoint.got.append((self.path, dict(self.headers), body))
                mood = endpoint.moods.pop(0) if len(endpoint.moods) > 1 else endpoint.moods[0]
                if mood == "hang":
                    endpoint.let_go.wait(20)
                elif isinstance(mood, int):
                    self.send_response(mood)
                    for name, value in endpoint.headers.items():
                        self.send_header(name, value)
                    self.end_headers()
                elif mood.startswith("/"):
                    self.send_response(302)
                    self.send_header("Location", mood)
                    self.end_headers()
                self.close_connection = True

            def log_message(self, *_: object) -> None:
                """Quiet."""

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = False


class MailSink:
    """A mail server (RFC 5321, as much as smtplib says). `refuse` is the verb that it answers with 550."""

    def __init__(self, refuse: str = "") -> None:
        self.mails: list[str] = []
        self.said: list[str] = []
        sink = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                self._say("220 sink")
                while line := self.rfile.readline().decode().strip():
                    verb = line.split(maxsplit=1)[0].upper()
                    sink.said.append(line)
                    if verb == refuse:
                        self._say("550 no")
                    elif verb == "EHLO":
                        self._say("250-sink\r\n250 AUTH PLAIN")
                    elif verb == "DATA":
                        self._say("354 go on")
                        lines = []
                        while (text := self.rfile.readline()) != b".\r\n":
                            lines.append(text.decode())
                        sink.mails.append("".join(lines))
                        self._say("250 taken")
                    elif verb == "QUIT":
                        self._say("221 bye")
                        return
                    else:
                        self._say("235 ok" if verb == "AUTH" else "250 ok")

            def _say(self, text: str) -> None:
                self.wfile.write(f"{text}\r\n".encode())

        self.server = _Server(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self.server.server_address[1]}"


@contextmanager
def serving(server: socketserver.BaseServer) -> Iterator[None]:
    """Let it answer until the end."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def make_program(path: Path, script: str) -> str:
    """A program in the shell's language."""
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="ascii")
    os.chmod(path, 0o700)
    return str(path)
