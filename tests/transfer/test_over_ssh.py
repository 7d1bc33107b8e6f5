"""Through a real sshd: accounts without any right, whatever their login shell is or prints."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING

import pytest

from holdfast.model.place import Place
from holdfast.transfer.box import Box
from holdfast.transport.open import open_transport
from tests.waiting import LIMIT_S, LONG_S, wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.sshd import Sshd

pytestmark = pytest.mark.process

ODD = "ü\n'\"!$HOME `x` \\ \udcff"


@pytest.fixture
def ssh_box(ssh_desk: Sshd) -> Box:
    return open_box("box")


def open_box(user: str, root: Path | None = None) -> Box:
    place = Place(user, host=user, root=None if root is None else str(root))
    return Box(place, open_transport(place), facts=None, remember=lambda _: None)


@pytest.mark.requirement("BSSH-01")
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "user",
    [
        "nosftp",
        "cshell",
        *(pytest.param(user, marks=pytest.mark.slow) for user in ("chatty", "bsdcsh", "fisher", "zshell")),
    ],
)
def test_a_box_is_met_whatever_its_login_shell(ssh_desk: Sshd, user: str) -> None:
    box = open_box(user)
    facts = box.ensure()
    assert (facts.user, facts.uid) == (user, ssh_desk.users[user])
    assert facts.root == f"{ssh_desk.home(user)}/.local/share/holdfast/runs"
    done = box.run(("show", ODD), limit_s=LONG_S)
    assert done.code == 66
    assert "ü\\n'\"!$HOME `x`".replace("'", "\\'").encode() in done.err


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_two_accounts_share_a_sticky_root(ssh_desk: Sshd) -> None:
    """Nobody prepares anything there for the second one."""
    root = ssh_desk.root / "scratch"
    root.mkdir(mode=0o1777)
    root.chmod(0o1777)
    for user in ("box", "other"):
        box = open_box(user, root)
        assert box.ensure().root == str(root)
        assert box.run(("run", "--gpus", "0", "--name", user, "--", "true"), limit_s=LONG_S).code == 0
        listed = json.loads(box.run(("ls", "--json"), limit_s=LONG_S).out)
        assert user in {run["name"] for run in listed["runs"]}
    owners = {path.name.rpartition("-")[2]: path.stat().st_uid for path in root.glob(".agent-*")}
    assert owners == {str(ssh_desk.users[user]): ssh_desk.users[user] for user in ("box", "other")}


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_who_follows_there_ends_with_the_connection_and_the_run_does_not(ssh_box: Box, ssh_desk: Sshd) -> None:
    """The command that waits is hung up; what stays on the box is the run with its supervisor."""
    ssh_box.ensure()
    heard: list[BaseException] = []

    def follow() -> None:
        try:
            ssh_box.follow(("run", "--gpus", "0", "--", "sleep", "987"), out=lambda _: None, err=lambda _: None)
        except Exception as error:  # noqa: BLE001 - the link was cut, in one of its ways
            heard.append(error)

    def ours() -> list[str]:
        return [text for text in ssh_desk.processes("box").values() if "/hf.py" in text]

    def lives(command: str) -> bool:
        return any(text.startswith(command) for text in ssh_desk.processes("box").values())

    follower = threading.Thread(target=follow)
    follower.start()
    try:
        wait_until(lambda: ours() and lives("sleep 987"), what="the job")
    finally:
        ssh_desk.cut()
        follower.join(LIMIT_S)
    wait_until(lambda: not ours(), what="its end")
    assert heard
    assert lives("sleep 987")
    assert ssh_box.run(("stop", "--now", "--wait", "20s", "sleep"), limit_s=LONG_S).code == 0
    assert not lives("sleep 987")
