"""A link that is lost while something is followed: every byte once, and the run is not told of it."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from holdfast.model.errors import CutOff
from tests.cli.conftest import ENTRY
from tests.cli.placed.following import Follower
from tests.desk.route.loop import add_place
from tests.proxy import Proxy
from tests.waiting import LONG_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.cli.conftest import Command
    from tests.sshd import Sshd

pytestmark = pytest.mark.process

LINES = 300
COUNT = "i=0; while [ $i -lt {lines} ]; do i=$((i+1)); echo line $i; sleep 0.02; done; exit {code}"
WHOLE = b"".join(b"line %d\n" % number for number in range(1, LINES + 1))


@pytest.fixture
def link(ssh_desk: Sshd, tmp_path: Path) -> Iterator[Proxy]:
    """The link to the place gpu1, an account of a real sshd."""
    root = ssh_desk.home("box") / f"runs-{tmp_path.name}"
    with Proxy(ssh_desk.port) as made:
        add_place("gpu1", root=str(root), host=ssh_desk.alias("box", via=made.port))
        yield made


def _wait_for_lines(file: Path, count: int) -> None:
    wait_until(lambda: file.read_bytes().count(b"\n") >= count, what=f"{count} lines")


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "words", [pytest.param(["logs", "-f"], id="logs", marks=pytest.mark.slow), pytest.param(["attach"], id="attach")]
)
def test_XPORT_06_every_byte_comes_once_though_the_link_is_cut(
    holdfast: Command, link: Proxy, tmp_path: Path, words: list[str]
) -> None:
    job = COUNT.format(lines=LINES, code=7)
    started = holdfast(
        "run", "--on", "gpu1", "--no-code", "-d", "--prove", "0", "--", "sh", "-c", job, timeout_s=LONG_S
    )
    assert started.code == 0, started
    run_id = started.out.split()[0].partition(":")[2]
    out = tmp_path / "out"
    with (
        out.open("wb") as file,
        subprocess.Popen([*ENTRY, *words, f"gpu1:{run_id}"], stdout=file, stderr=subprocess.PIPE) as following,
    ):
        for seen in (20, 90, 160):
            _wait_for_lines(out, seen)
            link.cut()
        _, said = following.communicate(timeout=LONG_S)
    assert out.read_bytes() == WHOLE
    assert following.returncode == (7 if words == ["attach"] else 0), said
    lost = said.count(b"link to gpu1 lost, trying again; the run goes on")
    assert 1 <= lost <= 3
    assert said.count(b"the link to gpu1 is back") == lost


@pytest.mark.slow
@pytest.mark.gotcha("U1", "U4")
@pytest.mark.requirement("XPORT-07")
@pytest.mark.timeout(240)
def test_XPORT_07_a_run_is_started_again_though_the_link_is_cut_after_its_stop(
    holdfast: Command, link: Proxy, ssh_desk: Sshd, tmp_path: Path
) -> None:
    go = ssh_desk.home("box") / f"go-{tmp_path.name}"
    waits = f"while ! [ -e {go} ]; do sleep 0.05; done"
    job = f"trap '{waits}; exit 0' TERM; while :; do sleep 0.05; done"
    words = ("run", "--on", "gpu1", "--no-code", "-d", "--grace", "90s", "--", "sh", "-c", job)
    ordered = holdfast(*words, timeout_s=LONG_S)
    assert ordered.code == 0, ordered
    run_id = ordered.out.split()[0].partition(":")[2]
    restart = Follower(tmp_path, "restart", f"gpu1:{run_id}")
    try:
        wait_until(lambda: "TERM sent" in restart.err, LONG_S, what="the stop")
        link.cut()
        assert restart.end(LONG_S) == CutOff.exit_code, restart.err
        assert f"looked at again: {run_id} is stopping (attempt 1)" in restart.err
        assert f"holdfast show gpu1:{run_id}" in restart.err
        go.touch()

        def look() -> tuple[int, str]:
            shown = holdfast("show", "--json", f"gpu1:{run_id}", timeout_s=LONG_S).json()
            return shown["attempt"], shown["condition"]

        wait_until(lambda: look() == (2, "running"), LONG_S, what="its second attempt")
    finally:
        restart.kill()
        holdfast("stop", "--now", f"gpu1:{run_id}", timeout_s=LONG_S)


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_host_that_is_down_is_told_at_once(holdfast: Command, ssh_desk: Sshd) -> None:
    with Proxy(ssh_desk.port) as link:
        port = link.port
    add_place("gone", root="/nonexistent", host=ssh_desk.alias("box", via=port))
    for words in (["logs", "-f", "gone:x"], ["show", "gone:x"], ["attach", "gone:x"]):
        done = holdfast(*words)
        assert done.code == 69, done
        assert "gone" in done.err
    error = holdfast("show", "gone:x", "--json").json()["error"]
    assert (error["code"], error["exit_code"], error["place"], bool(error["why"])) == ("unreachable", 69, "gone", True)
