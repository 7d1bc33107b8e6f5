"""The fabric manager on boxes with NVSwitch: there, missing, or out of sight."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from holdfast.diagnosis.cards.fabric import judge_fabric, read_fabric
from holdfast.model.finding import Level

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.files, pytest.mark.requirement("GPUH-10")]


def make_box(root: Path, *, switches: int, daemon: bool) -> dict[str, str]:
    dev, proc = root / "dev", root / "proc"
    dev.mkdir()
    proc.mkdir()
    names = ["nvidia0", "nvidiactl", *(f"nvidia-nvswitch{number}" for number in range(switches))]
    for name in [*names, "nvidia-nvswitchctl"] if switches else names:
        (dev / name).touch()
    for pid, comm in (("12", "sshd"), ("34", "nv-fabricmanage" if daemon else "bash")):
        (proc / pid).mkdir()
        (proc / pid / "comm").write_text(f"{comm}\n")
    (proc / "self").mkdir()
    return {"dev": str(dev), "proc": str(proc)}


def test_a_box_without_switches_is_not_judged(tmp_path: Path) -> None:
    assert judge_fabric(read_fabric(**make_box(tmp_path, switches=0, daemon=False), sees_everyone=True)) is None
    assert judge_fabric(read_fabric(dev=str(tmp_path / "none"), sees_everyone=True)) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's process counts as the daemon")
def test_a_manager_that_runs_is_a_pass(tmp_path: Path) -> None:
    found = judge_fabric(read_fabric(**make_box(tmp_path, switches=4, daemon=True), sees_everyone=False))
    assert found is not None
    assert (found.level, found.subject) == (Level.PASS, "4 NVSwitch")


def test_a_missing_manager_fails_where_it_would_be_seen(tmp_path: Path) -> None:
    box = make_box(tmp_path, switches=4, daemon=False)
    seen = judge_fabric(read_fabric(**box, sees_everyone=True))
    hidden = judge_fabric(read_fabric(**box, sees_everyone=False))
    assert seen is not None
    assert hidden is not None
    assert (seen.level, hidden.level) == (Level.FAIL, Level.UNKNOWN)
    assert "systemctl start nvidia-fabricmanager" in seen.remedy
