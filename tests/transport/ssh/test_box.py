"""The private sshd itself: what the tests rely on when they take its accounts for another machine's."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.model.place import Place
from holdfast.transport.ssh.transport import SshTransport
from tests.sshd import REPOSITORY, Sshd, end_masters, skip_without_rights
from tests.waiting import LIMIT_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    Connect = Callable[..., SshTransport]

pytestmark = pytest.mark.process


def test_an_account_has_nothing_of_the_desk(connect: Connect, sshd: Sshd) -> None:
    here = [Path(folder, f"desk-{os.getpid()}") for folder in ("/run/lock", "/dev/shm")]
    for file in here:
        file.touch()
    try:
        script = (
            "id -un; id -u; umask; echo $TZ; echo $LANG; pwd; env; ls /root $1 2>/dev/null; ls -A /run/lock /dev/shm"
        )
        lines = connect("box").run(script, [str(REPOSITORY)], limit_s=LIMIT_S).out.decode().splitlines()
    finally:
        for file in here:
            file.unlink()
    assert lines[:6] == ["box", str(sshd.users["box"]), "0077", "Asia/Kathmandu", "C", str(sshd.home("box"))]
    assert not [line for line in lines if line.startswith(("HOLDFAST_", "SSH_AUTH_SOCK", "DISPLAY"))]
    # What earlier tests of this box left there is the box's own.
    assert {"/dev/shm:", "/run/lock:"} <= set(lines)
    assert here[0].name not in lines


@pytest.mark.slow
def test_stopping_ends_every_process_and_restarting_serves_again(
    isolated_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    skip_without_rights()
    with Sshd.started() as box:
        monkeypatch.setenv("HOLDFAST_SSH", str(box.program))
        transport = SshTransport(Place("gpu1", host=box.alias("box")))
        transport.run("setsid sleep 1000 >/dev/null 2>&1 </dev/null &", limit_s=LIMIT_S)
        assert "sleep 1000" in str(box.processes("box"))
        box.restart()
        assert "sleep 1000" not in str(box.processes())
        assert transport.run("echo back", limit_s=LIMIT_S).out == b"back\n"
        end_masters()
        known = box.processes()
    assert known
    wait_until(lambda: not any(map(_is_alive, known)), what="the end of all that ran there")


@pytest.mark.slow
def test_a_new_host_key_leaves_what_runs_there_running(
    isolated_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    skip_without_rights()
    with Sshd.started() as box:
        monkeypatch.setenv("HOLDFAST_SSH", str(box.program))
        transport = SshTransport(Place("gpu1", host=box.alias("box")))
        transport.run("setsid sleep 1000 >/dev/null 2>&1 </dev/null &", limit_s=LIMIT_S)
        before = box.fingerprint()
        box.new_host_key()
        assert box.fingerprint() != before
        assert "sleep 1000" in str(box.processes("box"))
        for pid in box.processes("box"):
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not box.processes("box"), what="the end of its processes")
        end_masters()


def _is_alive(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")
