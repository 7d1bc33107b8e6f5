"""``holdfast tunnel``: a service on the loopback of a box behind a real sshd, reached from here."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cli.conftest import ENTRY
from tests.ports import find_free_port
from tests.proxy import Proxy
from tests.waiting import LIMIT_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.cli.conftest import Command
    from tests.sshd import Sshd

pytestmark = [pytest.mark.cli, pytest.mark.timeout(300)]
PAGE = b"a page from the box"


class _Page(BaseHTTPRequestHandler):
    """Answers every request alike."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(PAGE)))
        self.end_headers()
        self.wfile.write(PAGE)

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


@pytest.fixture
def service() -> Iterator[int]:
    """The port of a web server on loopback; the box of the tests has the loopback of this machine."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Page) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def add_place(isolated_environment: dict[str, str]) -> Callable[[str], None]:
    """Write places.toml: `gpu1` is this host of ssh."""

    def add(host: str) -> None:
        config = Path(isolated_environment["XDG_CONFIG_HOME"]) / "holdfast"
        config.mkdir(mode=0o700, exist_ok=True)
        (config / "places.toml").write_text(f'[gpu1]\nhost = "{host}"\n[near]\nkind = "local"\n')

    return add


@contextlib.contextmanager
def tunnel(tmp_path: Path, *words: str) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """``holdfast tunnel WORDS`` while it runs, with the file of its standard error."""
    errors = tmp_path / "errors"
    with errors.open("w") as file:
        process = subprocess.Popen([*ENTRY, "tunnel", *words], stdout=subprocess.PIPE, stderr=file, text=True)
    try:
        yield process, errors
    finally:
        process.kill()
        process.communicate()


def fetch(port: int) -> bytes:
    """The page at a port here; empty while there is none."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
    try:
        connection.request("GET", "/")
        return connection.getresponse().read()
    except (OSError, http.client.HTTPException):
        return b""
    finally:
        connection.close()


def listeners(port: int) -> set[str]:
    """The addresses on which somebody listens at a port, as the kernel writes them."""
    found = set()
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            _, local, _, state = line.split()[:4]
            address, _, number = local.partition(":")
            if state == "0A" and int(number, 16) == port:
                found.add(address)
    return found


def is_tunnelled(port: int) -> bool:
    """Whether an ssh of a tunnel to this port runs."""
    mark = f"127.0.0.1:{port}:127.0.0.1:".encode()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if mark in Path(f"/proc/{pid}/cmdline").read_bytes():
                return True
    return False


@pytest.mark.requirement("XPORT-19")
@pytest.mark.requirement("ETIQ-06")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_XPORT_19_a_service_on_loopback_is_reached_on_loopback_and_nothing_is_left(
    ssh_desk: Sshd, service: int, add_place: Callable[[str], None], tmp_path: Path, number: signal.Signals
) -> None:
    add_place(ssh_desk.alias("box"))
    local = find_free_port()
    with tunnel(tmp_path, "gpu1:digits", f"{service}:{local}") as (process, errors):
        assert process.stdout is not None
        assert process.stdout.readline() == f"http://127.0.0.1:{local} is port {service} of gpu1\n"
        assert fetch(local) == PAGE
        assert listeners(local) == {"0100007F"}
        assert errors.read_text() == ""
        process.send_signal(number)
        assert process.wait(LIMIT_S) == {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}[number]
        wait_until(lambda: not listeners(local) and not is_tunnelled(local), what="the end of the tunnel")


@pytest.mark.slow
def test_ports_that_are_taken_or_no_ports_are_refused_with_what_would_do(
    ssh_desk: Sshd, service: int, add_place: Callable[[str], None], holdfast: Command
) -> None:
    add_place(ssh_desk.alias("box"))
    done = holdfast("tunnel", "gpu1", "22", str(service))
    assert done.code == 75, done
    assert f"127.0.0.1:{service} cannot be listened on here: Address already in use" in done.err
    assert f"holdfast tunnel gpu1 22 {service}:" in done.err
    for words in (("0",), ("65536",), ("x",), ("1:2:3",), ("6006:",), ("6006", "6007:6006")):
        assert holdfast("tunnel", "gpu1", *words).code == 64, words
    here = holdfast("tunnel", "near", "6006")
    assert (here.code, "here already" in here.err, "http://127.0.0.1:6006" in here.err) == (64, True, True)
    assert holdfast("tunnel", "nowhere", "6006").code == 66


def test_a_port_on_which_nothing_listens_there_is_told_and_waited_for(
    ssh_desk: Sshd, add_place: Callable[[str], None], tmp_path: Path
) -> None:
    add_place(ssh_desk.alias("box"))
    remote, local = find_free_port(), find_free_port()
    with tunnel(tmp_path, "--json", "gpu1", f"{remote}:{local}") as (process, errors):
        wait_until(lambda: f"nothing listens on port {remote} at gpu1 yet" in errors.read_text())
        assert fetch(local) == b""
        wait_until(lambda: f"could not connect to port {remote}: connect failed" in errors.read_text())
        with ThreadingHTTPServer(("127.0.0.1", remote), _Page) as server:
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
            thread.start()
            assert fetch(local) == PAGE
            server.shutdown()
            thread.join()
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=LIMIT_S)
        told = json.loads(out)
        assert (told["urls"], told["forwards"]) == (
            [f"http://127.0.0.1:{local}"],
            [{"port": remote, "local": local}],
        )


def test_a_lost_link_is_tried_again(
    ssh_desk: Sshd, service: int, add_place: Callable[[str], None], tmp_path: Path
) -> None:
    with Proxy(ssh_desk.port) as link:
        alias = ssh_desk.alias("box", via=link.port)
        add_place(alias)
        local = find_free_port()
        with tunnel(tmp_path, "gpu1", f"{service}:{local}") as (process, errors):
            assert process.stdout is not None
            process.stdout.readline()
            link.cut()
            wait_until(lambda: "the link to gpu1 is back" in errors.read_text())
            assert "link to gpu1 lost, trying again" in errors.read_text()
            assert fetch(local) == PAGE
            process.send_signal(signal.SIGINT)
            assert process.wait(LIMIT_S) == 130
        ssh_desk.forget(alias)


def test_a_box_that_does_not_answer_or_has_ports_of_its_own_is_no_tunnel(
    ssh_desk: Sshd, add_place: Callable[[str], None], holdfast: Command
) -> None:
    local = find_free_port()
    add_place(ssh_desk.alias("box", via=find_free_port()))
    done = holdfast("tunnel", "gpu1", f"22:{local}")
    assert (done.code, "nothing listens on its port" in done.err) == (69, True)
    alias = ssh_desk.alias("box", LocalForward=f"0.0.0.0:{local} 127.0.0.1:22")
    add_place(alias)
    done = holdfast("tunnel", "gpu1", f"22:{local}")
    assert (done.code, "opens ports of its own" in done.err) == (64, True)
    assert listeners(local) == set()
    ssh_desk.forget(alias)
