"""What run directories say about a queue's jobs when its database is gone."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.agent.view.runs import of_queue
from holdfast.agent.view.runs.of_queue import find_runs
from holdfast.host.clock import parse_utc
from holdfast.model import wire
from holdfast.model.queue import JobState, QueuedJob
from holdfast.model.run import Created, Outcome
from tests.rundirs import ended, living_process, make_run, running
from tests.store.queueing import states, submission

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process
S = JobState
QUEUE = "0123456789abcdef"


def run_of(root: Path, key: int, state: Any, *, queue: str = QUEUE, **options: Any) -> str:
    """A run of the job with that key; its directory."""
    run_dir = make_run(root, f"20261120-100000-digits-{key:04x}", state, **options)
    path = f"{run_dir}/{wire.RUN}"
    with open(path, encoding="utf-8") as file:
        facts = json.load(file)
    facts["queued"] = {"queue": queue, "key": str(key), "group": "g", "name": f"c{key}"}
    with open(path, "w", encoding="utf-8") as file:
        json.dump(facts, file, indent=1)
    return run_dir


def found(root: Path) -> dict[str, QueuedJob]:
    """By key."""
    return {job.key: job for job in find_runs([str(root)], QUEUE)}


@pytest.mark.requirement("QUEUE-01")
def test_where_a_job_stands_is_read_from_its_run(tmp_path: Path) -> None:
    me = living_process(os.getpid())
    run_of(tmp_path, 1, ended())
    run_of(tmp_path, 2, ended(Outcome.FAILED, 7))
    run_of(tmp_path, 3, ended(Outcome.STOPPED, 130))
    run_of(tmp_path, 4, ended(Outcome.PREEMPTED, 143))
    run_of(tmp_path, 5, running(job=me, keeper=me), supervisor=me)
    run_of(tmp_path, 6, running())
    run_of(tmp_path, 7, Created())
    run_of(tmp_path, 8, ended(), queue="another")
    make_run(tmp_path, "20261120-100000-digits-ffff", ended())
    jobs = found(tmp_path)
    assert {key: job.state for key, job in jobs.items()} == {
        "1": S.PRODUCED,
        "2": S.FAILED,
        "3": S.CANCELLED,
        "4": S.RUNNING,
        "5": S.RUNNING,
        "6": S.RUNNING,
        "7": S.CLAIMED,
    }
    failed = jobs["2"]
    assert (failed.outcome, failed.exit_code, failed.attempts, failed.run_id) == (
        *("failed", 7, 1),
        "20261120-100000-digits-0002",
    )
    assert (failed.started_at, failed.ended_at) == (1795168800.0, 1795168805.0)


def test_a_run_whose_record_is_damaged_is_still_known_by_what_is_left_of_it(tmp_path: Path) -> None:
    path = f"{run_of(tmp_path, 1, ended())}/{wire.RUN}"
    with open(path, "rb") as file:
        data = file.read()
    with open(path, "wb") as file:
        file.write(data.replace(b'"created_at"', b'"created_at', 1))
    assert found(tmp_path)["1"].state is S.PRODUCED


@pytest.mark.parametrize("content", [b"", b"{", b'{"run_id": "x", \0\0\0}', None])
def test_a_run_that_cannot_be_read_is_a_suspect_and_never_nothing(content: bytes | None, tmp_path: Path) -> None:
    path = f"{run_of(tmp_path, 1, ended())}/{wire.RUN}"
    os.unlink(path)
    if content is None:
        os.symlink("/nowhere", path)
    else:
        with open(path, "wb") as file:
            file.write(content)
    (suspect,) = find_runs([str(tmp_path)], QUEUE)
    assert (suspect.key, suspect.name, suspect.state) == ("", "digits", S.HELD)
    assert "cannot be told" in suspect.note


def test_a_run_whose_state_cannot_be_read_is_held(tmp_path: Path) -> None:
    run_dir = run_of(tmp_path, 1, running())
    with open(f"{wire.attempt_dir(run_dir, 1)}/{wire.STATE}", "wb") as file:
        file.write(b"{")
    job = found(tmp_path)["1"]
    assert (job.state, job.run_id) == (S.HELD, os.path.basename(run_dir))
    assert wire.STATE in job.note


def test_of_two_runs_of_one_job_the_one_that_lives_counts(tmp_path: Path) -> None:
    me = living_process(os.getpid())
    alive = run_of(tmp_path, 1, running(job=me, keeper=me), supervisor=me)
    os.rename(run_of(tmp_path / "other", 1, ended(Outcome.FAILED, 1)), tmp_path / "20261121-100000-digits-0001")
    assert found(tmp_path)["1"].run_id == os.path.basename(alive)


def test_only_runs_that_are_new_enough_are_read_where_that_is_asked(tmp_path: Path) -> None:
    run_of(tmp_path, 1, ended())
    made_at = parse_utc("2026-11-20T10:00:00.000Z")
    assert [len(find_runs([str(tmp_path)], QUEUE, since)) for since in (0.0, made_at, made_at + 1.0)] == [1, 1, 0]


def test_roots_that_are_not_there_hold_no_runs_and_others_hold_suspects(tmp_path: Path) -> None:
    assert find_runs([f"{tmp_path}/missing"], QUEUE) == []
    (tmp_path / "file").touch()
    (suspect,) = find_runs([f"{tmp_path}/file"], QUEUE)
    assert (suspect.key, suspect.name, suspect.state) == ("", "", S.HELD)


@pytest.mark.requirement("QUEUE-01")
def test_a_rebuilt_queue_has_what_its_runs_say(tmp_path: Path) -> None:
    path = str(tmp_path / "queue")
    root = tmp_path / "runs"
    with of_queue.open_queue(path) as queue:
        queue.submit(submission("c1", "c2", "c3", runs=str(root)))
        queue_id, database = queue.settings().queue_id, queue.path
    run_of(root, 1, ended(), queue=queue_id)
    run_of(root, 2, running(), queue=queue_id)
    os.unlink(database)
    with of_queue.open_queue(path) as queue:
        assert states(queue) == {"c1": S.PRODUCED, "c2": S.RUNNING, "c3": S.QUEUED}
        assert "made again" in str(queue.notice)
