"""The worker on real processes: what it starts, in what order, how it takes the ends, when it leaves."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from holdfast.agent.queue import environment
from holdfast.core.queue.choose import AHEAD
from holdfast.host.files import fallback
from holdfast.host.process import processes
from holdfast.model.gpu import GpuRequest
from holdfast.model.job import DiskNeeds, GpuOptions
from holdfast.model.queue import IfChanged, JobState, OrderVerb
from holdfast.model.run import Running
from tests.agent.queue.working import payload
from tests.kernel_calls import list_open_files
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.agent.queue.working import Work

pytestmark = pytest.mark.process

DONE, FAILED, QUEUED, HELD = JobState.DONE, JobState.FAILED, JobState.QUEUED, JobState.HELD


def lines(path: Path) -> int:
    return len(path.read_text().splitlines()) if path.exists() else 0


@pytest.mark.requirement("QUEUE-06")
@pytest.mark.requirement("QUEUE-16")
def test_QUEUE_06_the_queue_goes_on_past_a_failed_job_and_the_worker_leaves(work: Work, tmp_path: Path) -> None:
    files = {name: tmp_path / name for name in "abc"}
    codes = {"a": 0, "b": 3, "c": 0}
    work.submit({name: payload(files[name], codes[name]) for name in "abc"})
    work.wait_left()
    jobs = work.jobs()
    assert {name: job.state for name, job in jobs.items()} == {"a": DONE, "b": FAILED, "c": DONE}
    assert {name: job.exit_code for name, job in jobs.items()} == codes
    assert [lines(files[name]) for name in "abc"] == [1, 1, 1]
    # What the job was told, and that it read nothing from the queue (it leaves with 99 then).
    _, name, run_id = files["b"].read_text().split()
    assert (name, run_id) == ("b", jobs["b"].run_id)
    assert work.view("b").record["queued"]["name"] == "b"


@pytest.mark.requirement("QUEUE-01")
def test_QUEUE_01_no_more_jobs_run_at_once_than_there_are_slots(work: Work, tmp_path: Path) -> None:
    stamps, go = tmp_path / "stamps", tmp_path / "go"
    work.submit({f"c{n}": payload(stamps, 0, "--until", go) for n in range(4)}, start=False)
    work.order(OrderVerb.EDIT, values={"cpu_slots": 2})
    work.ensure()
    wait_until(lambda: lines(stamps) == 2, what="two run")
    for name in ("c0", "c1"):
        work.wait_state(name, JobState.RUNNING)
    assert [work.states()[name] for name in ("c2", "c3")] == [QUEUED, QUEUED]
    assert lines(stamps) == 2
    go.touch()
    work.wait_left()
    assert lines(stamps) == 4
    assert set(work.states().values()) == {DONE}


@pytest.mark.requirement("QUEUE-10", "POST-11")
def test_QUEUE_10_what_needs_a_failed_job_stays_blocked_and_keeps_no_worker(work: Work, tmp_path: Path) -> None:
    done, never = tmp_path / "done", tmp_path / "never"
    jobs = {"a": payload(done, 0), "b": payload(done, 3), "after_a": payload(done, 0), "after_b": payload(never, 0)}
    work.submit(jobs, each={"after_a": {"needs": ("a",)}, "after_b": {"needs": ("b",)}})
    work.wait_left()
    assert work.states() == {"a": DONE, "b": FAILED, "after_a": DONE, "after_b": JobState.BLOCKED}
    assert not never.exists()


@pytest.mark.requirement("QUEUE-09")
def test_QUEUE_09_a_job_that_is_handed_in_while_others_run_is_run_by_the_same_worker(
    work: Work, tmp_path: Path
) -> None:
    stamps, go = tmp_path / "stamps", tmp_path / "go"
    work.submit({"a": payload(stamps, 0, "--until", go)})
    worker = work.wait_worker()
    work.wait_state("a", JobState.RUNNING)
    work.submit({"b": payload(stamps, 0)})
    assert work.wait_worker() == worker
    go.touch()
    work.wait_left()
    assert set(work.states().values()) == {DONE}
    assert lines(stamps) == 2


@pytest.mark.slow
@pytest.mark.requirement("QUEUE-20")
def test_QUEUE_20_drain_ends_what_runs_and_starts_nothing_more_until_resume(work: Work, tmp_path: Path) -> None:
    stamps, go = tmp_path / "stamps", tmp_path / "go"
    work.submit({name: payload(stamps, 0, "--until", go) for name in "ab"}, max_parallel=1)
    work.wait_state("a", JobState.RUNNING)
    work.order(OrderVerb.DRAIN)
    go.touch()
    work.wait_left()
    assert work.states() == {"a": DONE, "b": QUEUED}
    work.order(OrderVerb.RESUME)
    work.ensure()
    work.wait_left()
    assert work.states() == {"a": DONE, "b": DONE}


@pytest.mark.slow
def test_failures_in_a_row_hold_the_group_where_that_was_asked_for(work: Work, tmp_path: Path) -> None:
    stamps = tmp_path / "stamps"
    jobs = {f"c{n}": payload(stamps, 1) for n in range(4)}
    work.submit(jobs, max_parallel=1, hold_after=2)
    work.wait_left()
    assert list(work.states().values()) == [FAILED, FAILED, QUEUED, QUEUED]
    with work.open() as queue:
        assert "2 jobs in a row failed" in queue.groups()["g"].held


@pytest.mark.slow
def test_a_job_that_waits_for_a_time_starts_then(work: Work, tmp_path: Path) -> None:
    stamps, when = tmp_path / "stamps", time.time() + 1.0
    work.submit({"a": payload(stamps, 0)}, each={"a": {"not_before": when}})
    work.wait_left()
    assert work.states() == {"a": DONE}
    assert float(stamps.read_text().split()[0]) >= when


@pytest.mark.slow
@pytest.mark.requirement("QUEUE-13")
def test_QUEUE_13_a_job_without_room_on_the_disk_is_refused_before_its_process_starts(
    work: Work, tmp_path: Path
) -> None:
    stamps = tmp_path / "stamps"
    work.submit({"a": payload(stamps, 0)}, disk=DiskNeeds(min_free_bytes=1 << 60))
    work.wait_left()
    job = work.jobs()["a"]
    assert (job.state, job.exit_code) == (FAILED, 78)
    assert "disk" in job.note
    assert not stamps.exists()


@pytest.mark.slow
def test_a_file_that_changed_since_submit_holds_the_job_or_is_noted(work: Work, tmp_path: Path) -> None:
    stamps, script = tmp_path / "stamps", tmp_path / "train.py"
    script.write_text("new")
    known = {str(script): "0" * 64}
    work.submit({"held": payload(stamps, 0)}, files=known, if_changed=IfChanged.HOLD, start=False)
    work.submit({"run": payload(stamps, 0)}, group="other", files=known)
    work.wait_left()
    jobs = work.jobs()
    assert (jobs["held"].state, jobs["run"].state) == (HELD, DONE)
    assert "changed since submit: train.py" in jobs["held"].note
    assert lines(stamps) == 1


@pytest.mark.slow
def test_a_job_whose_secrets_are_gone_is_held_and_names_them(work: Work, tmp_path: Path) -> None:
    stamps = tmp_path / "stamps"
    secret = {**work.environ, "HF_TOKEN": "hf_" + "a1B2" * 9}
    name = environment.store_environment(secret, directory=work.directory)
    base = fallback.private_directory(fallback.MEMORY_ROOTS)
    os.unlink(f"{base}/queue/{name}.json")
    work.submit({"a": payload(stamps, 0)}, environment=name)
    work.wait_left()
    job = work.jobs()["a"]
    assert job.state is HELD
    assert "HF_TOKEN" in job.note
    assert "--with-environment" in job.note
    assert environment.refresh_secrets(name, secret, directory=work.directory) == ()
    work.order(OrderVerb.RESUME, jobs=(job.key,))
    work.ensure()
    work.wait_left()
    assert work.states() == {"a": DONE}


@pytest.mark.slow
def test_a_job_that_no_run_can_be_made_of_is_held(work: Work, tmp_path: Path) -> None:
    work.submit({"a": payload(tmp_path / "stamps", 0, "--token=hf_" + "a1B2" * 9)})
    work.wait_left()
    job = work.jobs()["a"]
    assert job.state is HELD
    assert "secret" in job.note


@pytest.mark.slow
def test_a_supervisor_keeps_nothing_of_the_worker_that_forked_it(work: Work, tmp_path: Path) -> None:
    go = tmp_path / "go"
    work.submit({"a": payload(tmp_path / "stamps", 0, "--until", go)})
    work.wait_state("a", JobState.RUNNING)
    found = wait_until(lambda: work.view("a").state, what="it has a state")
    assert found is not None
    state = wait_until(lambda: s if isinstance((s := work.view("a").state.state), Running) else None, what="it runs")  # type: ignore[union-attr]
    assert state is not None
    supervisor = work.view("a").state.supervisor  # type: ignore[union-attr]
    assert supervisor is not None
    worker = work.wait_worker()
    stat = processes.read_stat(supervisor.pid)
    assert stat is not None
    assert stat.comm == "holdfast-superv", "its arguments are the worker's"
    held = list_open_files(supervisor.pid)
    assert not [path for path in held if path.startswith(work.directory)]
    # One inotify queue of its own, on its own attempt.
    assert sum("inotify" in path for path in held) <= 1
    work.kill_worker()
    assert work.worker() is None, "a fork of the worker holds its lock"
    assert processes.is_alive(supervisor)
    assert not processes.is_alive(worker)
    go.touch()
    # The run itself sees to it that somebody takes its end.
    work.wait_state("a", DONE)
    work.wait_left()


@pytest.mark.requirement("QUEUE-11")
def test_QUEUE_11_no_card_has_two_jobs_and_at_most_two_stand_in_line(work: Work, tmp_path: Path) -> None:
    go = tmp_path / "go"
    work.environ["HOLDFAST_SIMULATED_GPUS"] = "2"
    jobs = {f"c{n}": payload(tmp_path / f"c{n}", 0, "--until", go) for n in range(5)}
    work.submit(jobs, gpus=GpuRequest(count=1), gpu=GpuOptions(idle_window_s=0.0, verify=False))
    wait_until(lambda: sum((tmp_path / name).exists() for name in jobs) == 2, what="two have cards")
    third = wait_until(
        lambda: [n for n, c in work.jobs().items() if c.run_dir and "waiting" in work.view(n).condition],
        what="somebody stands in line",
    )
    cards = [work.view(name).state.state.devices[0].uuid for name in jobs if (tmp_path / name).exists()]  # type: ignore[union-attr]
    assert len(set(cards)) == 2
    assert 1 <= len(third) <= AHEAD
    assert QUEUED in work.states().values()
    go.touch()
    work.wait_left()
    assert set(work.states().values()) == {DONE}


@pytest.mark.slow
def test_in_quiet_hours_a_job_for_cards_waits_and_the_others_run(work: Work, tmp_path: Path) -> None:
    work.environ["HOLDFAST_SIMULATED_GPUS"] = "1"
    hour = time.localtime().tm_hour
    opens, closes = (hour + 2) % 24, (hour + 3) % 24
    with open(work.environ["HOLDFAST_RULES"], "w", encoding="utf-8") as file:
        file.write(f'allowed_hours = ["{opens:02d}:00-{closes:02d}:00"]\n')
    work.submit({"card": payload(tmp_path / "card", 0)}, gpus=GpuRequest(count=1), start=False)
    work.submit({"cpu": payload(tmp_path / "cpu", 0)}, group="other")
    work.wait_state("cpu", DONE)
    assert work.states()["card"] is QUEUED
    # Somebody has to be there when they are over.
    assert work.worker() is not None
    assert not (tmp_path / "card").exists()


@pytest.mark.slow
def test_a_job_that_is_cancelled_while_the_worker_chooses_costs_the_others_nothing(work: Work, tmp_path: Path) -> None:
    go = tmp_path / "go"
    work.submit({name: payload(tmp_path / name, 0, "--until", go) for name in "abc"}, max_parallel=1)
    work.wait_state("a", JobState.RUNNING)
    work.order(OrderVerb.CANCEL, jobs=(work.jobs()["b"].key,))
    go.touch()
    work.wait_left()
    assert work.states() == {"a": DONE, "b": JobState.CANCELLED, "c": DONE}
    assert not (tmp_path / "b").exists()
