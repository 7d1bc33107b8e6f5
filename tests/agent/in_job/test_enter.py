"""The first program inside of a container, as far as it can be asked without one."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import holdfast.agent.in_job
from tests.waiting import LIMIT_S, wait_until

pytestmark = pytest.mark.files
REAL_ROOM = "/run/holdfast"


@pytest.fixture
def enter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The program as a module, with a room of the test's own."""
    path = os.path.join(os.path.dirname(holdfast.agent.in_job.__file__), "enter.py")
    spec = importlib.util.spec_from_file_location("enter", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ROOM", str(tmp_path))
    return module


@pytest.mark.requirement("CTR-08", "LEASE-09")
@pytest.mark.gotcha("U31")
def test_CTR_08_other_cards_than_the_leased_ones_keep_the_command_from_running(
    enter: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cards").write_text("GPU-1\n")
    (tmp_path / "gate").write_text("go\n")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-2")
    assert enter.main(["/bin/true"]) == 78
    assert "mismatch CUDA_VISIBLE_DEVICES is 'GPU-2' in the container, leased is 'GPU-1'" in said(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-1")
    # A container that got no device: what was leased is not there.
    (tmp_path / "nodes").write_text("nvidia99\n")
    assert enter.find_mismatch() == "/dev/nvidia99 is not in the container"
    (tmp_path / "nodes").write_text("\n")
    assert not enter.find_mismatch()


@pytest.mark.requirement("CTR-09")
@pytest.mark.parametrize(
    ("command", "reading"),
    [
        (["bash", "-lc", "x"], ["bash", "-l"]),
        (["/bin/bash", "--login", "train.sh"], ["/bin/bash", "-l"]),
        (["bash", "-euo", "pipefail", "-l", "-c", "x"], ["bash", "-l"]),
        (["bash", "-l", "--noprofile", "-c", "x"], ["bash", "--noprofile", "-l"]),
        (["bash", "-ic", "x"], ["bash", "-i"]),
        (["bash", "--rcfile", "-l", "-c", "x"], []),
        (["bash", "-c", "x", "-l"], []),
        (["bash", "train.sh", "-l"], []),
        (["bash", "--", "-l"], []),
        (["zsh", "-c", "x"], ["zsh"]),
        (["python3", "-l"], []),
    ],
)
def test_CTR_09_shells_that_read_files_first_are_known(
    enter: Any, monkeypatch: pytest.MonkeyPatch, command: list[str], reading: list[str]
) -> None:
    monkeypatch.delenv("BASH_ENV", raising=False)
    assert enter.list_reading(command) == reading


@pytest.mark.requirement("CTR-09", "LEASE-09")
def test_CTR_09_what_bash_reads_for_a_script_may_not_change_the_cards(
    enter: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-1")
    monkeypatch.setenv("BASH_ENV", str(tmp_path / "read"))
    (tmp_path / "read").write_text("echo hello; A=b\n")
    assert not enter.find_overwritten(["bash", "train.sh"])
    (tmp_path / "read").write_text("export CUDA_VISIBLE_DEVICES=7\n")
    assert "is '7' behind bash" in enter.find_overwritten(["bash", "train.sh"])
    assert not enter.find_overwritten(["sh", "train.sh"])


def test_nothing_runs_when_the_gate_is_not_opened_for_it(enter: Any, tmp_path: Path) -> None:
    (tmp_path / "gate").write_text("")
    assert enter.main(["/bin/true"]) == 125
    assert enter.main(["no-such-program"]) == 127
    assert "absent no-such-program" in said(tmp_path)


def test_whoever_waits_at_the_gate_leaves_when_nobody_outside_is_left(enter: Any, tmp_path: Path) -> None:
    """By a handler of its own: process 1 of a container does not end of a signal's default action."""
    (tmp_path / "enter.py").write_text(Path(enter.__file__).read_text().replace(REAL_ROOM, str(tmp_path)))
    for name in ("gate", "held"):
        os.mkfifo(tmp_path / name)
    held = os.open(tmp_path / "held", os.O_RDWR)
    argv = [sys.executable, "-I", "-S", str(tmp_path / "enter.py"), "/bin/true"]
    with subprocess.Popen(argv) as program:
        try:
            wait_until(lambda: (tmp_path / "said").exists() and "ready" in said(tmp_path))
            os.close(held)
            assert program.wait(LIMIT_S) == enter.EXIT_NO_GO
        finally:
            program.kill()


def said(room: Path) -> str:
    return (room / "said").read_text()
