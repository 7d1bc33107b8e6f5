"""Runs on a disk that is full: what is lost is said by every command that shows the run, and goes with the run."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from holdfast.host.files import fallback
from tests.cli.live import live_run
from tests.host.small_disk import mount_small_disk
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.cli.conftest import Command

pytestmark = [pytest.mark.cli, pytest.mark.requirement("OBS-11")]

NO_ROOM = ("--disk-min-free", "0", "--disk-min-free-inodes", "0")
FLOOD = "echo ready; head -c 3000000 /dev/zero | tr '\\0' 'x'; echo; echo the last line"
LOST = "bytes of output were lost, from byte"


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[str]:
    with mount_small_disk(tmp_path / "runs", 1 << 20) as disk:
        yield str(disk)


def test_a_run_that_lost_output_says_so_wherever_it_is_shown(holdfast: Command, runs: str) -> None:
    with live_run(holdfast, "--runs", runs, *NO_ROOM, job=("sh", "-c", FLOOD)) as run:
        waited = holdfast("wait", run.run_dir)
        assert waited.code == 0
        assert f"{run.run_id}: warning: output.lost: " in waited.err
        for command in (("logs",), ("logs", "--grep", "ready"), ("logs", "-f")):
            shown = holdfast(*command, run.run_dir)
            assert "the last line" not in shown.out
            assert LOST in shown.err.splitlines()[-1], command
        (attempt,) = holdfast("logs", "--json", run.run_dir).json()["attempts"]
        assert attempt["lost"]["error"] == "No space left on device"
        shown = holdfast("show", run.run_dir)
        assert "postflight: 1 warn" in shown.out
        assert f"do: see `df {run.run_dir}`" in shown.out
        assert LOST in holdfast("diagnose", run.run_dir).out
        assert f"{run.run_id}.1" in os.listdir(fallback.private_directory() or "")
        assert holdfast("rm", "--yes", "--runs", runs, run.run_id).code == 0
        assert not os.path.exists(run.run_dir)
        assert not [name for name in os.listdir(fallback.private_directory() or "") if name.startswith(run.run_id)]


def test_a_live_run_says_it_too(holdfast: Command, runs: str) -> None:
    job = ("sh", "-c", f"{FLOOD}; sleep 600")
    with live_run(holdfast, "--runs", runs, *NO_ROOM, job=job) as run:
        wait_until(lambda: LOST in holdfast("show", run.run_dir).out, what="the loss in show")
        assert LOST in holdfast("logs", run.run_dir).err
        holdfast("stop", "--now", run.run_dir)
        holdfast("wait", run.run_dir)
        holdfast("rm", "--yes", "--runs", runs, run.run_id)


def test_a_start_on_a_full_disk_is_proven_by_what_lies_in_memory(holdfast: Command, runs: str) -> None:
    """The disk keeps an older state, whose supervisor has left: no supervisor died while it started the run."""
    done = holdfast("run", "-d", "--json", "--runs", runs, *NO_ROOM, "--prove", "600", "--", "sh", "-c", FLOOD)
    assert (done.code, done.json()["condition"]) == (0, "succeeded"), done
    holdfast("rm", "--yes", "--runs", runs, done.json()["run_id"])
