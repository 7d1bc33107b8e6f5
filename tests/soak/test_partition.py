"""Campaigns behind ``make soak``: a link that carries nothing for ten minutes while runs are followed through it.

``HOLDFAST_SOAK_PARTITION_S`` sets how long (600 s).
"""

from __future__ import annotations

import contextlib
import os
import threading
from typing import TYPE_CHECKING

import pytest

from tests.cli.conftest import holdfast
from tests.cli.placed.following import Follower
from tests.desk.route.loop import add_place
from tests.proxy import Proxy
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.cli.conftest import Command
    from tests.sshd import Sshd

__all__ = ["holdfast"]

PARTITION_S = float(os.environ.get("HOLDFAST_SOAK_PARTITION_S", "600"))
pytestmark = [pytest.mark.process, pytest.mark.soak, pytest.mark.timeout(PARTITION_S + 900)]

COUNT_UNTIL = "i=0; while ! [ -e {end} ]; do i=$((i+1)); echo line $i; sleep 0.05; done; echo over; exit {code}"
SOON_S = 120.0


@pytest.fixture
def link(ssh_desk: Sshd, tmp_path: Path) -> Iterator[Proxy]:
    """The link to the place gpu1, an account of a real sshd."""
    with Proxy(ssh_desk.port) as made:
        root = ssh_desk.home("box") / f"runs-{tmp_path.name}"
        add_place("gpu1", root=str(root), host=ssh_desk.alias("box", via=made.port))
        yield made


@pytest.mark.requirement("XPORT-06", "XPORT-09", "BSSH-04")
def test_after_ten_minutes_without_a_link_every_byte_comes_once_and_the_exit_codes_are_right(
    holdfast: Command, ssh_desk: Sshd, link: Proxy, tmp_path: Path
) -> None:
    """One run ends while nothing is carried, another one afterwards; nobody takes silence for an end."""
    root = ssh_desk.home("box") / f"runs-{tmp_path.name}"
    ends = {name: root / f"end-{name}" for name in ("early", "late")}
    options = ("--on", "gpu1", "--no-code", "--name")
    started = holdfast(
        *("run", *options, "late", "-d", "--", "sh", "-c", COUNT_UNTIL.format(end=ends["late"], code=5)),
        timeout_s=SOON_S,
    )
    assert started.code == 0, started
    followers: list[Follower] = []
    try:
        command = ("sh", "-c", COUNT_UNTIL.format(end=ends["early"], code=7))
        run = Follower(tmp_path, "run", *options, "early", "--", *command)
        followers.append(run)
        wait_until(lambda: run.out.count(b"\n") > 20, SOON_S, what="the output of the followed run")
        attach = Follower(tmp_path, "attach", "gpu1:late")
        logs = Follower(tmp_path, "logs", "-f", "gpu1:late")
        waits = [Follower(tmp_path, "wait", f"gpu1:{name}") for name in ends]
        followers += [attach, logs, *waits]
        for follower in (attach, logs):
            wait_until(lambda f=follower: f.out.count(b"\n") > 20, SOON_S, what=str(follower.words))  # type: ignore[misc]
        wait_until(
            lambda: sum("hf.py" in line for line in ssh_desk.processes("box").values()) >= len(followers),
            SOON_S,
            what="all of them ask the box",
        )
        assert holdfast("ls", timeout_s=SOON_S).out.count(" running ") == 2
        link.freeze()
        ends["early"].touch()  # the box goes on: this one ends while nobody can see it
        over = threading.Event()
        over.wait(PARTITION_S / 2)
        seen = holdfast("ls", timeout_s=SOON_S)
        assert (seen.code, seen.out.count(" running "), "gpu1 does not answer" in seen.err) == (0, 2, True), seen
        shown = holdfast("show", "gpu1:early", timeout_s=SOON_S)
        assert shown.code == 69, shown
        over.wait(PARTITION_S / 2)
        assert [follower.words for follower in followers if follower.is_over()] == []
        link.thaw()
        ends["late"].touch()
        codes = {" ".join(follower.words[:2]): follower.end(SOON_S) for follower in (run, attach, logs)}
        assert codes == {"run --on": 7, "attach gpu1:late": 5, "logs -f": 0}
        assert [follower.end(SOON_S) for follower in waits] == [7, 5]
        outputs = {path.parents[2].name: path.read_bytes() for path in root.glob("*/attempts/1/output.log")}
        (early,), (late,) = ([outputs[each] for each in outputs if name in each] for name in ends)
        assert early.endswith(b"over\n")
        assert (run.out, attach.out, logs.out) == (early, late, late)
        for follower in (run, attach, logs):
            assert follower.err.count("link to gpu1 lost, trying again; the run goes on") == 1, follower.err
            assert follower.err.count("the link to gpu1 is back") == 1, follower.err
        for follower in waits:
            assert "what is waited for goes on, and so does the wait" in follower.err
    finally:
        link.thaw()
        for end in ends.values():
            with contextlib.suppress(OSError):
                end.touch()
        for follower in followers:
            follower.kill()
        wait_until(
            lambda: not [line for line in ssh_desk.processes("box").values() if str(root) in line],
            SOON_S,
            what="nothing of the runs is left",
        )
