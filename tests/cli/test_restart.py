"""``holdfast restart``: stop, verified empty, the same command again; never two trees."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from holdfast.agent import acting
from holdfast.agent.observe import list_attempts
from tests.cli.conftest import ENTRY
from tests.cli.live import live_run
from tests.rundirs import ended, make_run
from tests.waiting import LIMIT_S

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Command

pytestmark = pytest.mark.cli


@pytest.mark.requirement("PROC-27", "POST-10")
def test_PROC_27_a_live_run_is_stopped_and_started_again_never_both(holdfast: Command, tmp_path: Path) -> None:
    # A directory is a lock that two trees cannot hold; a second one would say so and end.
    body = f"mkdir {tmp_path}/only || exit 9; trap 'rmdir {tmp_path}/only; exit 0' TERM; echo ready; "
    with live_run(holdfast, job=("sh", "-c", body + "while :; do sleep 0.05; done")) as run:
        done = holdfast("restart", "--json", run.run_id)
        assert done.code == 0, done
        assert done.json()["attempt"] == 2
        run.wait_condition("running")
        run.wait_output("ready")
        assert list_attempts(run.run_dir) == (1, 2)
        assert holdfast("stop", run.run_id).code == 0
        assert run.look().attempt == 2
        shown = holdfast("show", "--json", run.run_id).json()
        assert [item["condition"] for item in shown["attempts"]] == ["stopped", "stopped"]


def test_an_ended_run_is_started_again_with_its_artifacts(holdfast: Command) -> None:
    first = holdfast("run", "--json", "--", "sh", "-c", "date >> $HOLDFAST_ARTIFACT_DIR/log; exit 4")
    run_dir = first.json()["run_dir"]
    assert first.code == 4
    again = holdfast("restart", "-f", run_dir)
    assert again.code == 4
    assert "attempt 2" in again.err
    with open(f"{run_dir}/artifacts/log") as file:
        assert len(file.readlines()) == 2


def test_two_restarts_at_once_give_one_tree(holdfast: Command) -> None:
    with live_run(holdfast) as run:
        command = [*ENTRY, "restart", run.run_id]
        quiet = subprocess.DEVNULL
        both = [subprocess.Popen(command, stdout=quiet, stderr=quiet) for _ in range(2)]
        codes = sorted(process.wait(LIMIT_S) for process in both)
        # Either the second came while the first was at it (busy), or after it, and restarted the second attempt.
        assert codes in ([0, 75], [0, 0])
        expected = 2 if codes == [0, 75] else 3
        assert list_attempts(run.run_dir)[-1] == expected


def test_a_restart_under_way_is_not_disturbed(holdfast: Command) -> None:
    run_dir = make_run(os.environ["HOLDFAST_RUNS"], state=ended())
    with acting.hold(run_dir, what="restart"):
        for verb in ("restart", "adopt"):
            done = holdfast(verb, run_dir)
            assert done.code == 75
            assert "another holdfast" in done.err
    assert list_attempts(run_dir) == (1,)
