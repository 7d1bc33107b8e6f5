"""``holdfast reconcile``: what it lists, and its exit codes."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from holdfast.agent.patrol.sentinel import records
from holdfast.host.clock import epoch_s, utc_now
from holdfast.model import wire
from tests.cli.live import live_run
from tests.rundirs import ended, living_process, make_run, write
from tests.waiting import LIMIT_S

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Command

pytestmark = pytest.mark.cli


@pytest.mark.slow
@pytest.mark.requirement("MON-11")
def test_a_supervisor_is_given_back_and_the_repair_is_listed(holdfast: Command) -> None:
    nothing = holdfast("reconcile")
    assert nothing.code == 0
    assert "nothing was out of line" in nothing.err
    with live_run(holdfast, "--name", "orphan") as run:
        run.kill_supervisor()
        shown = holdfast("reconcile", "--dry-run")
        assert shown.code == 1
        assert f"run {run.run_id}" in shown.out
        assert "would be: a new supervisor takes it up" in shown.out
        assert not run.look().supervised
        done = holdfast("reconcile", "--json")
        assert done.code == 0, done
        (repair,) = done.json()["repairs"]
        assert (repair["subject"], repair["done"]) == (run.run_id, True)
        assert run.look().supervised


@pytest.mark.slow
@pytest.mark.requirement("MON-11")
def test_five_sentinels_of_runs_that_are_over_are_ended(holdfast: Command) -> None:
    os.makedirs(records.directory(), mode=0o700)
    processes = []
    try:
        for number in range(5):
            run_dir = make_run(os.environ["HOLDFAST_RUNS"], f"20261120-10000{number}-over-0a1b", ended())
            processes.append(subprocess.Popen(["sleep", "600"], start_new_session=True))
            record = records.SentinelRecord(
                run_id=os.path.basename(run_dir),
                run_dir=run_dir,
                attempt=1,
                condition="ended",
                host=os.uname().nodename,
                process=living_process(processes[-1].pid),
                armed_at=utc_now(),
                until=epoch_s() + 600,
            )
            write(records.path_of(record.run_id, "ended"), wire.to_bytes(record))
        done = holdfast("reconcile")
        assert done.code == 0, done
        assert done.out.count("sentinel ") == 5
        assert [process.wait(timeout=LIMIT_S) for process in processes] == [-15] * 5
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert holdfast("reconcile", "--json").json()["sentinels"] == 0


def test_a_directory_that_is_none_is_an_error(holdfast: Command, tmp_path: Path) -> None:
    assert holdfast("reconcile", "--runs", str(tmp_path / "none")).code == 74
