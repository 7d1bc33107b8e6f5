"""The queue's verbs with a worker at work: handing in, looking, stopping, waiting, from end to end."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.model.queue import JobState
from tests.cli.live import live_run, started
from tests.cli.queues import end_worker, find, states, worked
from tests.kernel_calls import list_open_files
from tests.waiting import LIMIT_S, wait_until

if TYPE_CHECKING:
    from tests.cli.conftest import Command

pytestmark = pytest.mark.cli

__all__ = ["worked"]


@pytest.fixture(autouse=True)
def _ends_its_worker(worked: str) -> None:
    """No worker outlives its test."""


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


@pytest.mark.slow
def test_what_was_handed_in_runs_and_is_proven(holdfast: Command, tmp_path: Path) -> None:
    script = write(tmp_path / "job.sh", '#!/bin/sh\necho ok > "$HOLDFAST_ARTIFACT_DIR/r.txt"\n')
    os.chmod(script, 0o755)
    job = tmp_path / "job.yaml"
    job.write_text("command: [./job.sh]\nname: job\nartifacts: [artifacts/r.txt]\n")
    assert holdfast("submit", "--paused", "job.yaml").out == "job\n"
    # The file is read once; what was handed in is what runs.
    job.unlink()
    assert holdfast("queue", "resume", "default").code == 0
    done = holdfast("wait", "job")
    assert done.code == 0, done
    assert "1 of 1 done" in done.out
    taken = find("job")
    assert taken.state is JobState.DONE
    assert taken.run_dir is not None
    assert os.path.exists(f"{taken.run_dir}/artifacts/r.txt")


@pytest.mark.slow
@pytest.mark.requirement("QUEUE-05", "QUEUE-06", "QUEUE-09")
def test_a_failure_in_the_middle_stops_nobody_and_is_not_done(holdfast: Command, tmp_path: Path) -> None:
    lines = write(tmp_path / "three.txt", "name=one true\nname=two sh -c 'exit 3'\nname=three true\n")
    done = holdfast("submit", "--lines", lines, "--wait")
    assert done.code == 1, done
    assert "2 of 3 done, 1 failed" in done.out
    assert "holdfast queue retry three/two" in done.err
    assert find("three/two").exit_code == 3
    write(tmp_path / "three.txt", "name=one true\nname=two sh -c 'exit 3'\nname=four true\n")
    holdfast("submit", "--lines", lines)
    wait_until(lambda: states()["three/four"] == "done")
    assert states()["three/three"] == "done"


@pytest.mark.slow
@pytest.mark.requirement("QUEUE-20")
def test_jobs_at_work_are_stopped_and_the_rest_drained(holdfast: Command) -> None:
    job = ("sh", "-c", "for i in $(seq 300); do sleep 0.1; done")
    holdfast("queue", "set", "--cpu-slots", "1")
    holdfast("submit", "--name", "a", "--", *job)
    holdfast("submit", "--name", "b", "--", "true")
    wait_until(lambda: states()["a"] == "running")
    # Where its run stands: it may still be being checked.
    wait_until(lambda: "running" in holdfast("queue").out)
    assert "1 of 1 in use by a" in holdfast("queue", "show", "b").out
    assert holdfast("queue", "cancel", "a", "--running").code == 64
    assert holdfast("queue", "drain").code == 0
    assert holdfast("queue", "cancel", "a", "--running", "--now", "--yes").code == 0
    assert holdfast("queue", "drain", "--wait").code == 0
    assert states() == {"a": "cancelled", "b": "queued"}
    assert holdfast("queue", "resume").code == 0
    assert holdfast("wait", "b").code == 0


@pytest.mark.slow
def test_it_ends_when_the_last_job_is_done(
    holdfast: Command, worked: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    gate = tmp_path_factory.mktemp("gate") / "open"
    holdfast(
        "submit", "--name", "a", "--", "sh", "-c", f"for i in $(seq 300); do [ -e {gate} ] && exit; sleep 0.05; done"
    )
    holdfast("submit", "--name", "b", "--after", "a", "--", "true")
    with started("wait", "b", "--timeout", "30s") as process:
        wait_until(lambda: states()["a"] == "running")
        assert process.poll() is None
        # Whoever waits starts another worker.
        end_worker(worked)
        gate.touch()
        out, _ = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, out) == (0, "done: 1 of 1 done\n")


@pytest.mark.slow
def test_ctrl_c_ends_the_wait_and_nothing_else(holdfast: Command) -> None:
    with live_run(holdfast) as run:
        with started("wait", run.run_id) as process:
            wait_until(lambda: any("inotify" in path for path in list_open_files(process.pid)))
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=LIMIT_S)
        assert process.returncode == 130
        assert run.look().condition == "running"


@pytest.mark.slow
def test_a_single_runs_exit_code_passes_through(holdfast: Command) -> None:
    started_run = holdfast("run", "-d", "--prove", "0", "--json", "--", "sh", "-c", "exit 5")
    run_id = started_run.json()["run_id"]
    done = holdfast("wait", run_id)
    assert done.code == 5
    assert holdfast("wait", run_id, "--json").json()["runs"][0]["exit_code"] == 5


@pytest.mark.slow
@pytest.mark.requirement("POST-09", "B-50")
def test_a_success_in_doubt_starts_nothing_that_needs_it_until_a_person_accepts_it(holdfast: Command) -> None:
    doubtful = ("sh", "-c", "for i in 1 2 3; do echo loss nan; done")
    holdfast("submit", "--name", "up", "--", *doubtful)
    holdfast("submit", "--name", "down", "--after", "up", "--", "true")
    waited = holdfast("wait", "up")
    assert waited.code == 1, waited
    assert "ended with 0, and something speaks against that" in waited.out
    assert "holdfast queue accept up" in waited.err
    assert states() == {"up": "failed", "down": "blocked"}
    assert "holdfast queue accept up" in holdfast("queue", "show", "up").out
    assert holdfast("queue", "accept", "down").code == 64
    assert holdfast("queue", "accept", "up", "--reason", "the last epoch is not used").code == 0
    assert holdfast("wait", "up", "down").code == 0
    taken = find("up")
    assert (taken.state, taken.attempts) == (JobState.DONE, 1)
    assert "the last epoch is not used" in Path(str(taken.run_dir), "attempts/1/accepted.json").read_text()


@pytest.mark.slow
@pytest.mark.requirement("QUEUE-22")
def test_QUEUE_22_a_list_begins_again_at_one_of_its_jobs(holdfast: Command, tmp_path: Path) -> None:
    lines = write(tmp_path / "night.txt", "".join(f"name=c{number} true\n" for number in range(1, 7)))
    assert holdfast("submit", "--lines", lines, "--wait").code == 0
    again = holdfast("queue", "retry", "--from", "night/c4")
    assert again.code == 0, again
    assert again.out.strip() == "queued again: night/c4, night/c5, night/c6"
    assert holdfast("wait", "night/").code == 0
    assert [find(f"night/c{number}").attempts for number in range(1, 7)] == [1, 1, 1, 2, 2, 2]
    assert holdfast("queue", "retry", "--from", "night/").code == 64
    assert holdfast("queue", "retry", "--from", "night/c4", "--failed").code == 64
