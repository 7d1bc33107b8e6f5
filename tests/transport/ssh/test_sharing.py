"""Calls share a connection, where that can be had; and work where not. What stays is bounded, and ours alone."""

from __future__ import annotations

import os
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.model.errors import CutOff
from holdfast.model.place import Place
from holdfast.transport.ssh.command import Timing
from holdfast.transport.ssh.control import find_socket
from holdfast.transport.ssh.transport import SshTransport
from tests.proxy import Proxy
from tests.sshd import SECOND_FACTOR, Sshd, end_masters, skip_without_rights
from tests.waiting import LIMIT_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Connect = Callable[..., SshTransport]

pytestmark = pytest.mark.process


def find_control(transport: SshTransport) -> Path:
    """The socket of a transport's shared connection."""
    words = transport.build_argv("true")
    return Path(next(word.partition("=")[2] for word in words if word.startswith("ControlPath=")))


def test_calls_share_one_private_connection(connect: Connect, link: Proxy) -> None:
    transport = connect(via=link.port)
    transport.run("true", limit_s=LIMIT_S)
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(lambda _: transport.run("true", limit_s=LIMIT_S).code, range(16))) == {0}
    assert link.connections == 1
    control = find_control(transport)
    assert control.is_socket()
    assert control.parent.stat().st_mode & 0o777 == 0o700


def test_another_transport_of_the_same_place_shares_it_too(connect: Connect, ssh_desk: Sshd, link: Proxy) -> None:
    transport = connect(via=link.port)
    transport.run("true", limit_s=LIMIT_S)
    host = transport.build_argv("true")[-2]
    SshTransport(Place("another", host=host)).run("true", limit_s=LIMIT_S)
    assert link.connections == 1


def test_our_connection_can_be_ended_and_the_users_own_stays(connect: Connect, ssh_desk: Sshd, link: Proxy) -> None:
    transport = connect(via=link.port)
    transport.run("true", limit_s=LIMIT_S)
    control = find_control(transport)
    assert control.is_socket()
    transport.disconnect()
    wait_until(lambda: not control.exists(), what="the end of the shared connection")
    transport.disconnect()
    assert transport.run("echo again", limit_s=LIMIT_S).out == b"again\n"
    own = Path(os.environ["TMPDIR"]) / "own"
    other = connect(via=link.port, ControlPath=str(own), ControlMaster="auto", ControlPersist="60")
    other.run("true", limit_s=LIMIT_S)
    assert own.is_socket()
    other.disconnect()
    assert own.is_socket()


def test_a_shared_connection_whose_process_was_killed_is_replaced(connect: Connect, link: Proxy) -> None:
    transport = connect(via=link.port)
    transport.run("true", limit_s=LIMIT_S)
    control = find_control(transport)
    checked = subprocess.run(
        ["ssh", "-F", "/dev/null", "-o", f"ControlPath={control}", "-O", "check", "any"],
        capture_output=True,
        text=True,
        check=True,
    )
    os.kill(int(checked.stderr.partition("pid=")[2].partition(")")[0]), 9)
    assert control.is_socket()

    def shares() -> bool:
        before = link.connections
        assert transport.run("echo again", limit_s=LIMIT_S).out == b"again\n"
        return link.connections == before

    assert not shares()
    # On a busy box ssh may take longer to offer the new connection than the next call needs to ask for it.
    wait_until(shares)


def test_an_idle_connection_ends_by_itself(connect: Connect) -> None:
    transport = connect(timing=Timing(persist_s=1))
    transport.run("true", limit_s=LIMIT_S)
    control = find_control(transport)
    wait_until(lambda: not control.exists(), what="the end of the idle connection")


def test_the_users_own_control_path_is_used_and_stays_open(connect: Connect, ssh_desk: Sshd, link: Proxy) -> None:
    own = Path(os.environ["TMPDIR"]) / "own-100%"
    transport = connect(via=link.port, ControlPath=str(own).replace("%", "%%"))
    host = transport.build_argv("true")[-2]
    master = ["-o", "ControlMaster=yes", "-o", "ControlPersist=60", "-n", host, "true"]
    subprocess.run([ssh_desk.program, *master], check=True, stderr=subprocess.DEVNULL)
    assert transport.run("echo through", limit_s=LIMIT_S).out == b"through\n"
    assert own.is_socket()
    assert link.connections == 1
    subprocess.run([ssh_desk.program, "-O", "exit", host], check=True, capture_output=True)
    # Without it, ours neither make one nor fail.
    assert transport.run("echo direct", limit_s=LIMIT_S).out == b"direct\n"
    assert not own.exists()


@pytest.fixture
def own_master(connect: Connect, ssh_desk: Sshd, link: Proxy) -> Iterator[SshTransport]:
    """A transport that uses a connection of the user's own, opened without `ServerAliveInterval`.

    With `alive_count=0` ssh gives a connection up at each change of a whole second at which nothing has just come.
    """
    transport = connect(
        via=link.port,
        timing=Timing(alive_s=1, alive_count=1, answer_s=2),
        ControlPath=str(Path(os.environ["TMPDIR"]) / "own"),
    )
    host = transport.build_argv("true")[-2]
    master = ["-o", "ControlMaster=yes", "-o", "ControlPersist=60", "-n", host, "true"]
    subprocess.run([ssh_desk.program, *master], check=True, stderr=subprocess.DEVNULL)
    yield transport
    subprocess.run([ssh_desk.program, "-O", "exit", host], check=False, capture_output=True)


@pytest.mark.requirement("XPORT-06")
def test_a_frozen_connection_of_the_users_own_is_noticed_and_gone_round(own_master: SshTransport, link: Proxy) -> None:
    """ssh does not watch it: what follows over it waited for as long as TCP does."""
    with pytest.raises(CutOff, match="your own ssh connection") as caught:
        own_master.follow("echo some; exec sleep 100", out=lambda _: link.freeze(), err=_drop)
    assert "ssh -O exit" in caught.value.hint
    link.thaw()
    assert own_master.run("echo again", limit_s=LIMIT_S).out == b"again\n"
    assert link.connections == 2, "another connection than the one that was found dead"


@pytest.mark.parametrize(("port", "words"), [(2222, "`ssh -O exit -p 2222 box`"), (None, "`ssh -O exit box`")])
def test_the_command_that_ends_a_frozen_connection_names_the_port(port: int | None, words: str) -> None:
    """Without it ssh would look for another connection, where ControlPath has a %p."""
    assert words in SshTransport(Place("gpu1", host="box", port=port))._explain_silence().hint


def test_a_login_does_not_wait_for_a_frozen_connection_of_the_users_own(own_master: SshTransport, link: Proxy) -> None:
    link.freeze()
    with pytest.raises(CutOff, match="your own ssh connection"):
        own_master.login()
    link.thaw()


def test_a_quiet_command_without_a_connection_of_the_users_own_opens_no_other(connect: Connect, link: Proxy) -> None:
    """ssh watches a connection of the call's own."""
    timing = Timing(alive_s=1, alive_count=1, answer_s=1)
    transport = connect(via=link.port, timing=timing, ControlPath=str(Path(os.environ["TMPDIR"]) / "own"))
    assert transport.follow("sleep 4", out=_drop, err=_drop) == 0
    assert link.connections == 1


def test_a_quiet_command_over_the_users_own_connection_goes_on(own_master: SshTransport, link: Proxy) -> None:
    out = bytearray()
    assert own_master.follow("echo some; sleep 4; echo more", out=out.extend, err=_drop) == 0
    assert (bytes(out), link.connections) == (b"some\nmore\n", 1)


@pytest.mark.parametrize("obstacle", ["long", "open to others", "a file"])
def test_calls_work_where_no_connection_can_be_shared(
    connect: Connect, link: Proxy, monkeypatch: pytest.MonkeyPatch, obstacle: str
) -> None:
    base = Path(os.environ["TMPDIR"]) / ("x" * 90 if obstacle == "long" else "t")
    base.mkdir()
    taken = base / f"holdfast-ssh-{os.getuid()}"
    if obstacle == "open to others":
        taken.mkdir()
        taken.chmod(0o755)
    elif obstacle == "a file":
        taken.touch()
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setenv("TMPDIR", str(base))
    transport = connect(via=link.port)
    assert [transport.run("echo yes", limit_s=LIMIT_S).out for _ in range(2)] == [b"yes\n"] * 2
    assert link.connections == 2
    assert str(find_control(transport)) == "none"


def test_a_socket_is_never_too_long_for_what_ssh_makes_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    top, longest = Path(os.environ["TMPDIR"]), ""
    for length in range(1, 100):
        base = top / ("n" * length)
        base.mkdir()
        monkeypatch.setenv("TMPDIR", str(base))
        longest = max(longest, find_socket("any") or "", key=len)
    assert longest
    assert "n" * 99 not in longest
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(f"{longest}.{'x' * 16}")  # as ssh names it at first


@pytest.mark.slow
def test_a_server_that_allows_one_session_serves_many_calls(
    isolated_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    skip_without_rights()
    with Sshd.started(options="MaxSessions 1") as box:
        monkeypatch.setenv("HOLDFAST_SSH", str(box.program))
        transport = SshTransport(Place("gpu1", host=box.alias("box")))
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda n: transport.run("sleep 0.3; echo $1", [str(n)], limit_s=LIMIT_S), range(8)))
        assert [done.out for done in answers] == [b"%d\n" % n for n in range(8)]
        end_masters()


def test_after_a_login_with_a_second_factor_no_call_asks(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    answer = tmp_path / "answer"
    answer.write_text(f"#!/bin/sh\necho '{SECOND_FACTOR}'\n")
    answer.chmod(0o700)
    monkeypatch.setenv("SSH_ASKPASS", str(answer))
    monkeypatch.setenv("SSH_ASKPASS_REQUIRE", "force")  # stands in for the person at the terminal
    transport = connect("twofactor")
    assert transport.login() == 0
    assert transport.run("id -un", limit_s=LIMIT_S).out == b"twofactor\n"


def test_XPORT_01_every_call_is_bounded_and_never_asks(
    ssh_desk: Sshd, connect: Connect, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    record = tmp_path / "calls"
    program = tmp_path / "ssh"
    program.write_text(f'#!/bin/sh\necho "$*" >>{record}\nexec {ssh_desk.program} "$@"\n')
    program.chmod(0o700)
    monkeypatch.setenv("HOLDFAST_SSH", str(program))
    transport = connect()
    transport.run("true", limit_s=LIMIT_S)
    transport.follow("true", out=_drop, err=_drop)
    calls = [line for line in record.read_text().splitlines() if " -G " not in line]
    assert len(calls) == 2
    for option in (
        *("BatchMode=yes", "ConnectTimeout=15", "ServerAliveInterval=10", "ServerAliveCountMax=2"),
        *("StrictHostKeyChecking=yes", "ControlPersist=600", "-T -a -x "),
    ):
        assert [option in call for call in calls] == [True] * 2, option


def test_settings_that_would_take_the_session_from_us_do_not(connect: Connect) -> None:
    transport = connect(RemoteCommand="echo mine", RequestTTY="force", LocalForward="1 127.0.0.1:1", LogLevel="QUIET")
    assert transport.run("exec cat; tty", stdin=b"ours", limit_s=LIMIT_S).out == b"ours"
    with pytest.raises(AssertionError):
        transport.follow("echo $1", ["x"], out=_refuse, err=_refuse)


def test_a_call_that_is_given_up_leaves_the_shared_connection_to_others(connect: Connect, link: Proxy) -> None:
    transport = connect(via=link.port)
    with pytest.raises(AssertionError):
        transport.follow("echo first; exec sleep 100", out=_refuse, err=_refuse)
    assert transport.run("echo second", limit_s=LIMIT_S).out == b"second\n"
    assert link.connections == 1


def _drop(data: bytes) -> None:
    pass


def _refuse(data: bytes) -> None:
    raise AssertionError(data)
