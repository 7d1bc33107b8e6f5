"""Each way in which a box can fail to answer, for real: what class it is told as, and with which words."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import holdfast
from holdfast.model.errors import CutOff, HoldfastError, PlaceError, Refused, Unreachable
from holdfast.model.place import Place
from holdfast.transport.child import Ending
from holdfast.transport.ssh.classify import explain
from holdfast.transport.ssh.command import Timing
from holdfast.transport.ssh.transport import SshTransport
from tests.proxy import Proxy
from tests.waiting import LIMIT_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.sshd import Sshd

    Connect = Callable[..., SshTransport]

pytestmark = [pytest.mark.process, pytest.mark.requirement("XPORT-09")]

SOON = Timing(connect_s=1, alive_s=1, alive_count=1)


def fail(transport: SshTransport, kind: type[HoldfastError], why: str) -> HoldfastError:
    """Call, and answer the error, which is of a kind and says why; its words name the place and steer no terminal."""
    with pytest.raises(kind) as caught:
        transport.run("echo never", limit_s=LIMIT_S)
    error = caught.value
    assert type(error) is kind
    assert error.details["place"] == "gpu1"
    assert error.details["why"] == why, str(error)
    assert str(error).startswith("gpu1")
    assert (str(error) + error.hint).isprintable()
    assert error.hint
    return error


def test_a_name_that_is_not_known(connect: Connect) -> None:
    fail(connect(HostName="no-such-host.invalid"), Unreachable, "name")


def test_a_port_where_nothing_listens(connect: Connect, sshd: Sshd) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        error = fail(connect(via=closed.getsockname()[1]), Unreachable, "refused")
    assert "nothing was sent" in error.hint
    assert error.exit_code == 69


@pytest.mark.requirement("XPORT-01")
def test_a_black_hole_ends_within_the_limit_of_connecting(connect: Connect) -> None:
    with socket.create_server(("127.0.0.1", 0)) as hole:
        fail(connect(via=hole.getsockname()[1], timing=SOON), Unreachable, "banner")


def test_an_address_that_does_not_answer(connect: Connect) -> None:
    with socket.socket() as full, socket.socket() as first, socket.socket() as second:
        full.bind(("127.0.0.1", 0))
        full.listen(0)  # with its queue full the kernel drops whoever else comes
        for one in (first, second):
            one.setblocking(False)
            one.connect_ex(full.getsockname())
        fail(connect(via=full.getsockname()[1], timing=SOON), Unreachable, "timeout")


def test_something_else_than_ssh_listens(connect: Connect) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:

        def answer() -> None:
            client, _ = other.accept()
            with client:
                client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            fail(connect(via=other.getsockname()[1]), Unreachable, "dropped")
        finally:
            thread.join()


def test_a_key_that_is_not_taken(connect: Connect, tmp_path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "other")], check=True)
    error = fail(connect(IdentityFile=tmp_path / "other"), Refused, "authentication")
    assert "none of our keys" in str(error)
    assert "holdfast place login gpu1" in error.hint
    assert error.exit_code == 77


@pytest.mark.parametrize("user", ["passwordonly", "twofactor"])
def test_more_than_a_key_is_wanted(connect: Connect, user: str) -> None:
    error = fail(connect(user), Refused, "authentication")
    assert "more than a key (password)" in str(error)
    assert "holdfast place login gpu1" in error.hint


@pytest.mark.requirement("XPORT-10")
def test_an_unknown_host_key_is_not_taken(connect: Connect, tmp_path: Path) -> None:
    empty = tmp_path / "known_hosts"
    error = fail(connect(UserKnownHostsFile=empty), Refused, "host_key_unknown")
    assert "holdfast place trust gpu1" in error.hint
    assert not empty.exists()


@pytest.mark.requirement("XPORT-10")
def test_a_changed_host_key_is_refused_with_both_fingerprints(connect: Connect, sshd: Sshd, tmp_path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "old")], check=True)
    listing = subprocess.run(
        ["ssh-keygen", "-l", "-f", str(tmp_path / "old")], capture_output=True, text=True, check=True
    ).stdout
    known = tmp_path / "known_hosts"
    key = " ".join((tmp_path / "old.pub").read_text().split()[:2])
    known.write_text(f"# mine\n[127.0.0.1]:{sshd.port} {key}\n")
    error = fail(connect(UserKnownHostsFile=known), Refused, "host_key_changed")
    assert f"known is {listing.split()[1]}, offered is {sshd.fingerprint()}" in str(error)
    assert f"{known} line 2" in str(error)
    assert "holdfast place trust gpu1" in error.hint


@pytest.mark.requirement("XPORT-10")
def test_a_configuration_that_takes_any_host_key_does_not_count(connect: Connect, tmp_path: Path) -> None:
    loose = connect(UserKnownHostsFile=tmp_path / "empty", StrictHostKeyChecking="no")
    fail(loose, Refused, "host_key_unknown")


@pytest.mark.requirement("XPORT-10")
def test_a_revoked_host_key(connect: Connect, sshd: Sshd, tmp_path: Path) -> None:
    known = tmp_path / "known_hosts"
    known.write_text("@revoked * " + (sshd.root / "host_key.pub").read_text())
    fail(connect(UserKnownHostsFile=known), Refused, "host_key_revoked")


def test_client_and_server_that_cannot_agree(connect: Connect) -> None:
    fail(connect(KexAlgorithms="diffie-hellman-group1-sha1"), Refused, "settings")


def test_a_configuration_that_ssh_does_not_take(connect: Connect) -> None:
    error = fail(connect(NoSuchOption="yes"), Refused, "configuration")
    assert "nosuchoption" in str(error)


def test_a_jump_host_that_is_not_there(connect: Connect, ssh_desk: Sshd) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        jump = ssh_desk.alias("other", via=closed.getsockname()[1])
        fail(connect(ProxyCommand=f"/usr/bin/ssh -F {ssh_desk.config} -W %h:%p {jump}"), Unreachable, "refused")
    ssh_desk.forget(jump)


def test_a_jump_host_that_does_not_let_us_in(connect: Connect, ssh_desk: Sshd) -> None:
    jump = ssh_desk.alias("other", UserKnownHostsFile="/dev/null", StrictHostKeyChecking="ask")
    command = f"/usr/bin/ssh -F {ssh_desk.config} -W %h:%p {jump}"
    error = fail(connect(ProxyCommand=command), Refused, "host_key_on_the_way")
    # It would ask on the same way, and be refused there with the same words.
    assert "place trust" not in error.hint
    ssh_desk.forget(jump)


def test_a_jump_host_that_is_there(connect: Connect, ssh_desk: Sshd) -> None:
    command = f"/usr/bin/ssh -F {ssh_desk.config} -W %h:%p {ssh_desk.alias('other')}"
    assert connect(ProxyCommand=command).run("id -un", limit_s=LIMIT_S).out == b"box\n"


def test_no_ssh_client(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_SSH", "/no/such/ssh")
    error = fail(connect(), Unreachable, "configuration")
    assert "HOLDFAST_SSH" in error.hint


def test_a_place_without_a_host() -> None:
    with pytest.raises(Unreachable, match="gpu1 has no host"):
        SshTransport(Place("gpu1")).run("true", limit_s=1)


@pytest.mark.requirement("XPORT-15")
@pytest.mark.parametrize(
    ("user", "printed"),
    [("nologin", "This account is currently not available"), ("falsy", "nothing"), ("menu", "1) pay")],
)
def test_a_login_shell_that_runs_no_commands(connect: Connect, user: str, printed: str) -> None:
    error = fail(connect(user), Refused, "shell")
    assert f"it printed: {printed}" in str(error)
    assert "take the box's direct address" in error.hint
    assert "--replace" in error.hint


def test_a_box_whose_dev_null_cannot_be_used_is_not_said_to_have_a_wrong_shell() -> None:
    said = b"sh: 1: cannot create /dev/null: Permission denied\n"
    error = explain(Place("gpu1", host="gpu1"), Ending(begun=False, returncode=2, err=said))
    assert "its /dev/null cannot be used" in str(error)
    assert "mknod -m 666 /dev/null c 1 3" in error.hint


def test_a_login_that_prints_too_much(connect: Connect) -> None:
    error = fail(connect("loud"), Refused, "noise")
    assert "64 KiB" in str(error)


def test_the_noise_is_named_also_when_the_command_has_begun_on_the_other_stream() -> None:
    """Standard error has its own way: its first line may come before the end of a long login on standard output."""
    error = explain(Place("loud", host="loud"), Ending(begun=True, returncode=None, too_noisy=True))
    assert (type(error), error.details["why"]) == (Refused, "noise")


SHELLS = {"box": "dash", "chatty": "bash", "cshell": "tcsh", "bsdcsh": "bsd-csh", "fisher": "fish", "zshell": "zsh"}


@pytest.mark.parametrize("user", SHELLS)
def test_every_login_shell_reads_the_line_alike_and_may_print(connect: Connect, user: str) -> None:
    if shutil.which(SHELLS[user]) is None:
        pytest.skip(f"{SHELLS[user]} is not installed")
    transport = connect(user)
    word = "aZ09._/+=@:-" * (600 if user == "bsdcsh" else 8000)  # it takes 8 KiB a word
    done = transport.run(
        "cat; echo $2 $(id -un); printf %s $1 >&2; exit 255", [word, "b"], stdin=b"\0\xff", limit_s=LIMIT_S
    )
    assert (done.code, done.out, done.err) == (255, b"\0\xffb " + user.encode() + b"\n", word.encode())


def test_a_link_that_is_cut_in_the_middle(connect: Connect, link: Proxy) -> None:
    transport = connect(via=link.port)
    with pytest.raises(CutOff) as caught:
        transport.follow("echo some; exec sleep 5", out=lambda _: link.cut(), err=_drop)
    assert "not known" in caught.value.hint
    assert caught.value.exit_code == 69
    assert transport.run("echo again", limit_s=LIMIT_S).out == b"again\n"


@pytest.mark.slow
@pytest.mark.parametrize("shared", [True, False])
def test_XPORT_06_a_link_that_freezes_ends_by_itself(connect: Connect, link: Proxy, shared: bool) -> None:
    transport = connect(
        via=link.port, timing=Timing(alive_s=1, alive_count=1), **({} if shared else {"ControlPath": "/dev/null/none"})
    )
    with pytest.raises(CutOff):
        transport.follow("echo some; exec sleep 5", out=lambda _: link.freeze(), err=_drop)
    link.thaw()


def test_a_link_that_is_cut_at_any_byte_is_never_an_answer(connect: Connect, link: Proxy) -> None:
    transport = connect(via=link.port)
    for count in (0, 30, 900, 2300, 2900, 3300):
        link.cut_after(count)
        with pytest.raises(PlaceError) as caught:
            transport.run("echo $1; exec sleep 1", ["x" * 2000], limit_s=LIMIT_S)
        assert isinstance(caught.value, (Unreachable, CutOff))


def test_an_sshd_that_went_away_between_two_calls(connect: Connect, link: Proxy) -> None:
    transport = connect(via=link.port)
    assert transport.run("true", limit_s=LIMIT_S).code == 0
    link.cut()
    assert transport.run("true", limit_s=LIMIT_S).code == 0
    assert link.connections == 2


@pytest.mark.requirement("XPORT-08", "B-20")
def test_nothing_of_ours_looks_for_processes_by_name() -> None:
    """Outside of the texts that explain why."""
    source = Path(holdfast.__file__).parent
    words = re.compile(rb"\b(pkill|pgrep|killall)\b")
    files = [path for path in source.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    named = {path.relative_to(source) for path in files if words.search(path.read_bytes())}
    assert named, "the texts of the catalogue have the words"
    assert {path.parts[:2] for path in named} == {("diagnosis", "catalogue")}


def _drop(data: bytes) -> None:
    pass


def test_what_may_be_said_after_the_command_was_sent_is_not_taken_for_nothing_sent() -> None:
    for said, kind in (
        ("Received disconnect from 10.0.0.1 port 22:11: shutting down\r\n", CutOff),
        ("ssh_dispatch_run_fatal: Connection to 10.0.0.1 port 22: message authentication code incorrect\n", CutOff),
        ("kex_exchange_identification: Connection closed by remote host\n", Unreachable),
        ("Received disconnect from 10.0.0.1 port 22:2: Too many authentication failures\n", Refused),
    ):
        error = explain(Place("gpu1", host="gpu1"), Ending(begun=False, returncode=255, err=said.encode()))
        assert type(error) is kind, said
