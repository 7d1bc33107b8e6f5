"""``holdfast queue install``: the entry that has the queue go on after a restart of the box, and its removal."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from holdfast.agent.queue.change import boot_entry
from tests.cli.clocks import make_clocks, with_clocks
from tests.waiting import LIMIT_S

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Command

pytestmark = pytest.mark.cli


@pytest.fixture
def clocks(tmp_path: Path) -> Path:
    """The commands of a box's clocks, to be put on PATH."""
    return make_clocks(tmp_path / "clocks")


@pytest.mark.slow
@pytest.mark.requirement("PROC-26")
def test_a_line_of_cron_is_shown_made_only_with_consent_and_removed_without_a_trace(
    holdfast: Command, clocks: Path
) -> None:
    own = "MAILTO=anna\n@reboot backup %d\n"
    (clocks / "table").write_text(own)
    env = with_clocks(clocks, "crontab")
    asked = holdfast("queue", "install", env=env)
    assert asked.code == 64
    assert "@reboot" in asked.out
    assert "no terminal to ask on" in asked.err
    assert (clocks / "table").read_text() == own
    assert holdfast("patrol", "install", "--yes", env=env).code == 0
    with_patrol = (clocks / "table").read_text()
    for _ in range(2):
        done = holdfast("queue", "install", "--yes", env=env)
        assert done.code == 0, done
        assert (clocks / "table").read_text() == with_patrol + done.out
    assert "held after a reboot" in done.err
    assert holdfast("queue", "uninstall", env=env).code == 64
    assert holdfast("queue", "uninstall", "--yes", env=env).code == 0
    assert (clocks / "table").read_text() == with_patrol
    assert "there is no entry" in holdfast("queue", "uninstall", env=env).err


def test_the_line_of_cron_can_be_run_as_it_stands(holdfast: Command, clocks: Path, tmp_path: Path) -> None:
    queue = str(tmp_path / "a queue")
    done = holdfast("queue", "install", "--yes", env={**with_clocks(clocks, "crontab"), "HOLDFAST_QUEUE": queue})
    line = next(line for line in done.out.splitlines() if line.startswith("@reboot "))
    bare = {"PATH": "/usr/bin:/bin", "HOME": os.environ["HOME"]}
    command = line.removeprefix("@reboot ").replace(r"\%", "%")
    ran = subprocess.run(["sh", "-c", command], env=bare, cwd="/", timeout=LIMIT_S, check=False)
    with open(boot_entry.last_words(), encoding="utf-8") as file:
        said = file.read()
    assert ran.returncode == 0, said
    assert "0 jobs not over; no worker was needed" in said
    assert os.path.isdir(queue)


@pytest.mark.requirement("SYSD-09")
def test_a_unit_leaves_running_jobs_alone_and_says_what_lingering_is_for(
    holdfast: Command, clocks: Path, isolated_environment: dict[str, str]
) -> None:
    env = with_clocks(clocks, "systemctl")
    done = holdfast("queue", "install", "--yes", env=env)
    assert done.code == 0, done
    path = f"{isolated_environment['XDG_CONFIG_HOME']}/systemd/user/{boot_entry.UNIT}"
    with open(path, encoding="utf-8") as file:
        text = file.read()
    assert text in done.out
    assert f'ExecStart="{sys.executable}" "-m" "holdfast" "queue" "work" "--boot"' in text
    assert {"KillMode=process", "RemainAfterExit=yes", "WantedBy=default.target"} <= {*text.splitlines()}
    assert "enable-linger" in done.err
    assert holdfast("queue", "uninstall", "--yes", "--json", env=env).json()["removed"] == [path]
    assert not os.path.exists(path)
    calls = (clocks / "calls").read_text().splitlines()
    assert f"--user enable {boot_entry.UNIT}" in calls
    assert f"--user disable {boot_entry.UNIT}" in calls
    assert not any("--now" in call for call in calls)


def test_a_box_without_any_clock_says_what_to_call(holdfast: Command, clocks: Path) -> None:
    done = holdfast("queue", "install", env={"PATH": str(clocks / "none")})
    assert done.code == 64
    assert "holdfast queue work --boot" in done.err
