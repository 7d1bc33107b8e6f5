"""A terminal multiplexer of somebody else beside a run: no verb of ours ends its sessions, nor its server."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.cli.conftest import ENTRY
from tests.cli.live import SLEEPER
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.cli.conftest import Command

    Tmux = Callable[..., str]

pytestmark = [
    pytest.mark.cli,
    pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux (scripts/system-packages.txt)"),
]


@pytest.fixture
def tmux(isolated_environment: dict[str, str]) -> Iterator[Tmux]:
    """A tmux with a server of the test's own; it is over in the end."""
    socket = f"{isolated_environment['TMPDIR']}/tmux"

    def call(*words: str) -> str:
        # Without a configuration, and none of a tmux in which the tests may run.
        environ = {name: value for name, value in os.environ.items() if not name.startswith("TMUX")}
        argv = ["tmux", "-S", socket, "-f", "/dev/null", *words]
        return subprocess.run(argv, env=environ, check=True, capture_output=True, text=True).stdout

    yield call
    pid = int(call("display-message", "-p", "#{pid}"))
    call("kill-server")
    wait_until(lambda: not os.path.exists(f"/proc/{pid}"), what="the end of the server")


@pytest.mark.requirement("BSSH-09")
def test_BSSH_09_a_stop_leaves_tmux_sessions_and_their_server_alone(
    holdfast: Command, tmux: Tmux, tmp_path: Path
) -> None:
    """The run is begun in a session that has its very name, beside one whose name begins with it."""
    begin = shlex.join([*ENTRY, "run", "-d", "--prove", "0", "--name", "digits", "--", *SLEEPER])
    tmux("new-session", "-d", "-s", "digits", "-c", str(tmp_path), f"{begin} > begun 2>&1; exec sleep 600")
    tmux("new-session", "-d", "-s", "digits2", "exec sleep 600")

    def list_panes() -> str:
        return tmux("list-panes", "-a", "-F", "#{pid} #{session_name} #{pane_pid} #{pane_current_command}")

    wait_until(lambda: "ready" in holdfast("logs", "digits").out, what="the output of the run")
    wait_until(lambda: list_panes().count(" sleep") == 2, what="the shell has gone on")
    before = list_panes()
    done = holdfast("stop", "--now", "digits")
    assert done.code == 0, done
    assert holdfast("ls", "--all", "--json").json()["runs"][0]["condition"] == "stopped"
    assert holdfast("rm", "--yes", "digits").code == 0
    assert list_panes() == before
