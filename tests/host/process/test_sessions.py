"""What ends a session is read from the files of the login manager, on a box made of fixtures."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from holdfast.host.process.sessions import (
    is_lingering,
    leaves_no_session,
    read_login_manager,
    read_session_ends,
    read_shutdown,
)

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process


@pytest.fixture
def box(tmp_path: Path) -> Path:
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    (tmp_path / "etc/systemd/logind.conf.d").mkdir(parents=True)
    return tmp_path


@pytest.mark.requirement("PROC-24")
@pytest.mark.parametrize(
    ("text", "kills"),
    [
        ("[Login]\nKillUserProcesses=yes\n", True),
        ("[Login]\n#KillUserProcesses=yes\n", False),
        ("[Login]\nKillUserProcesses=no\n", False),
        ("[Login]\nKillUserProcesses=yes\nKillExcludeUsers=root anna\n", False),
        ("[Login]\nKillUserProcesses=yes\nKillOnlyUsers=ben\n", False),
        ("[Login]\nKillUserProcesses=yes\nKillOnlyUsers=anna\n", True),
        ("", False),
    ],
)
def test_PROC_24_the_login_managers_settings(box: Path, text: str, kills: bool) -> None:
    (box / "etc/systemd/logind.conf").write_text(text)
    manager = read_login_manager("anna", root=str(box))
    assert manager is not None
    assert manager.kills is kills


@pytest.mark.requirement("PROC-24")
def test_PROC_24_a_drop_in_wins(box: Path) -> None:
    (box / "etc/systemd/logind.conf").write_text("[Login]\nKillUserProcesses=no\n")
    (box / "etc/systemd/logind.conf.d/50-kill.conf").write_text("[Login]\nKillUserProcesses=yes\n")
    manager = read_login_manager("anna", root=str(box))
    assert manager is not None
    assert manager.kills
    assert manager.source.endswith("50-kill.conf")


def test_no_systemd_is_no_login_manager(tmp_path: Path) -> None:
    assert read_login_manager("anna", root=str(tmp_path)) is None


def test_lingering_and_sessions(box: Path) -> None:
    assert not is_lingering("anna", root=str(box))
    (box / "var/lib/systemd/linger").mkdir(parents=True)
    (box / "var/lib/systemd/linger/anna").touch()
    assert is_lingering("anna", root=str(box))
    assert not leaves_no_session("0::/user.slice/user-1000.slice/session-4.scope\n")
    assert leaves_no_session("0::/user.slice/user-1000.slice/user@1000.service/app.slice/x.scope\n")


@pytest.mark.requirement("PRE-24")
def test_PRE_24_ends_are_sorted(box: Path) -> None:
    assert read_shutdown(root=str(box)) is None
    (box / "run/systemd/shutdown").mkdir(parents=True)
    (box / "run/systemd/shutdown/scheduled").write_text("USEC=1700000100000000\nWARN_WALL=1\nMODE=poweroff\n")
    ends = read_session_ends({"SLURM_JOB_END_TIME": "1700000050"}, root=str(box))
    assert [end.at_epoch_s for end in ends] == [1700000050.0, 1700000100.0]
    assert "poweroff" in ends[1].source
