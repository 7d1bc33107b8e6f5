"""``holdfast limit``: other limits for a live job, by what holds them here, or a reason why not."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.cli.conftest import ENTRY
from tests.cli.live import live_run
from tests.rundirs import ended, living_process, make_run, running
from tests.waiting import wait_until

if TYPE_CHECKING:
    from tests.cli.conftest import Command
    from tests.cli.live import LiveRun

pytestmark = pytest.mark.cli

MIB = 1024**2


def manifest_of(run: LiveRun) -> dict[str, Any]:
    value = json.loads(Path(run.run_dir, "attempts/1/manifest.json").read_text())
    assert isinstance(value, dict)
    return value


def memory_of(run: LiveRun) -> int | None:
    """The memory limit that the kernel has for the run's group; None where no group can hold one."""
    group = manifest_of(run)["cgroup"] or {}
    place = group.get("v1", {}).get("memory")
    path = f"{place}/memory.limit_in_bytes" if place else f"{group.get('unified')}/memory.max"
    return int(Path(path).read_text()) if os.path.exists(path) else None


@pytest.mark.slow
@pytest.mark.requirement("LIM-11")
def test_LIM_11_memory_and_deadline_of_a_live_job_are_changed_and_recorded(holdfast: Command) -> None:
    with live_run(holdfast, "--limit-memory", "200MiB", "--timeout", "1h") as run:
        done = holdfast("limit", run.run_id, "--memory", "300MiB", "--timeout", "+2h", "--tasks", "50")
        assert done.code == 0, done
        assert "limits.memory 200 MiB -> 300 MiB" in done.out
        assert "timeout 1h00m -> 3h00m" in done.out
        assert re.search(r"asked to stop at \d{4}-\d\d-\d\d \d\d:\d\d:\d\d at the latest", done.out)
        assert memory_of(run) in (300 * MIB, None)
        asked = {item["name"]: item["asked"] for item in manifest_of(run)["limits"]}
        assert asked == {"memory": str(300 * MIB), "tasks": "50"}
        events = [event["event"] for event in holdfast("show", "--json", run.run_id).json()["events"]]
        assert events.count("limits_changed") == 1
        shown = holdfast("show", run.run_id).out
        assert "timeout 3h00m, until " in shown
        assert "limits.memory 200 MiB -> 300 MiB" in shown
        # A limit can be taken away, too.
        assert holdfast("limit", run.run_id, "--memory", "none").code == 0
        assert "memory" not in {item["name"] for item in manifest_of(run)["limits"]}
        assert (memory_of(run) or 1 << 60) > 1 << 50


@pytest.mark.slow
@pytest.mark.requirement("LIM-11")
def test_LIM_11_a_supervisor_that_takes_over_keeps_the_changed_limits(holdfast: Command) -> None:
    with live_run(holdfast, "--limit-memory", "200MiB") as run:
        assert holdfast("limit", run.run_id, "--memory", "300MiB", "--timeout", "3h").code == 0
        run.kill_supervisor()
        # Nobody supervises it: the verb gives it a supervisor, which does what is wanted.
        done = holdfast("limit", run.run_id, "--tasks", "77")
        assert done.code == 0, done
        assert {item["name"]: item["asked"] for item in manifest_of(run)["limits"]} == {
            "memory": str(300 * MIB),
            "tasks": "77",
        }
        assert manifest_of(run)["plan"]["total_s"] == 3 * 3600
        assert memory_of(run) in (300 * MIB, None)
        again = holdfast("restart", run.run_id)
        assert again.code == 0, again
        run.wait_condition("running")
        assert json.loads(Path(run.run_dir, "attempts/2/manifest.json").read_text())["plan"]["total_s"] == 3 * 3600


@pytest.mark.slow
@pytest.mark.requirement("LIM-11")
def test_LIM_11_a_deadline_that_was_moved_ends_the_job(holdfast: Command) -> None:
    with live_run(holdfast, "--timeout", "1h", "--grace", "1s") as run:
        began = run.look().state
        assert began is not None
        # So soon that the test need not wait, and late enough to be taken on a busy box.
        for seconds in (3, 6, 12, 24):
            if holdfast("limit", run.run_id, "--timeout", f"{seconds}s").code == 0:
                break
        run.wait_condition("timed_out")


REFUSED = (
    (("--memory", "4KiB"), 64, "the least is 1 MiB"),
    (("--tasks", "4194305"), 64, "the most is 4194304"),
    (("--memory", "1MiB"), 78, "would kill it"),
    (("--timeout", "1ms"), 78, "would end at once"),
    (("--affinity", "4095"), 78, "not available here"),
    (("--timeout", "+soon"), 64, "timeout"),
    (("--timeout", "-3h"), 64, "--timeout: '-3h' is not a duration"),
    (("--timeout-run", "+1h"), 64, "no limit to add to"),
    (("--open-files", "100"), 64, "--open-files"),
)


@pytest.mark.slow
@pytest.mark.requirement("LIM-11")
def test_LIM_11_what_cannot_be_held_is_refused_with_the_reason(holdfast: Command) -> None:
    job = (sys.executable, "-c", "import time; kept = bytearray(8 << 20); print('ready', flush=True); time.sleep(600)")
    with live_run(holdfast, "--limit-memory", "200MiB", "--timeout", "1h", job=job) as run:
        before = manifest_of(run)
        for words, code, why in REFUSED:
            done = holdfast("limit", run.run_id, *words)
            assert (done.code, why in done.err) == (code, True), done
        assert manifest_of(run)["limits"] == before["limits"]
        assert memory_of(run) in (200 * MIB, None)
        assert not os.path.exists(f"{run.run_dir}/attempts/1/job.json")
        planned = holdfast("limit", run.run_id, "--dry-run", "--memory", "300MiB")
        assert planned.code == 0
        assert planned.out.startswith(
            "would change: limits.memory 200 MiB -> 300 MiB\nin force now:\n  memory: 200 MiB by "
        )
        assert "it will be asked to stop at" in planned.out
        assert "nothing was changed (dry run)" in planned.err
        for options in (("--memory=200MiB",), ("--dry-run",), ()):
            same = holdfast("limit", run.run_id, *options)
            assert (same.code, "nothing to change" in same.err) == (0, True), same
            assert "in force now:\n  memory: 200 MiB by " in same.out
        assert memory_of(run) in (200 * MIB, None)


@pytest.mark.slow
def test_a_request_that_is_not_answered_in_time_stays_and_says_so(holdfast: Command) -> None:
    with live_run(holdfast, "--timeout", "1h") as run:
        state = run.look().state
        assert state is not None
        assert state.supervisor is not None
        os.kill(state.supervisor.pid, signal.SIGSTOP)
        try:
            late = holdfast("limit", run.run_id, "--timeout", "+1h", "--wait", "0.2s")
        finally:
            os.kill(state.supervisor.pid, signal.SIGCONT)
        assert (late.code, "nothing was changed yet" in late.err, "stays" in late.err) == (75, True, True), late
        wait_until(
            lambda: "limits_changed" in Path(run.run_dir, "attempts/1/events.jsonl").read_text(), what="it is done"
        )


@pytest.mark.slow
def test_two_who_add_an_hour_at_once_add_two(holdfast: Command) -> None:
    with live_run(holdfast, "--timeout", "1h") as run:
        command = [*ENTRY, "limit", run.run_id, "--timeout", "+1h", "--wait", "60s"]
        both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
        said = [process.communicate() for process in both]
        added = sum(process.returncode == 0 for process in both)
        # One of them may be told that the other is at it: then it has changed nothing.
        assert {process.returncode for process in both} <= {0, 75}, said
        assert added, said
        assert f"timeout {1 + added}h00m, until " in holdfast("show", run.run_id).out, said


@pytest.mark.slow
def test_a_mistake_names_the_option_and_the_verb_as_they_were_typed(holdfast: Command) -> None:
    run_dir = make_run(os.environ["HOLDFAST_RUNS"], state=running(), supervisor=living_process(os.getpid()))
    for value in ("nan", "0", "-5"):
        done = holdfast("limit", run_dir, f"--memory={value}")
        assert (done.code, "--memory: " in done.err, "`holdfast limit --help`" in done.err) == (64, True, True), done
        assert "--limit-memory" not in done.err


def test_a_run_that_does_not_run_is_refused_with_the_verb_that_does_it(holdfast: Command) -> None:
    run_dir = make_run(os.environ["HOLDFAST_RUNS"], state=ended())
    for words in (("--memory", "1GB"), ("--timeout", "+1h")):
        done = holdfast("limit", run_dir, *words)
        assert done.code == 64
        assert "holdfast restart" in done.err
        assert f"{os.path.basename(run_dir)} has succeeded: only a running job" in done.err


@pytest.mark.slow
def test_priority_and_cpus_of_every_thread_are_changed(holdfast: Command) -> None:
    with live_run(holdfast, "--priority", "normal") as run:
        job = run.look().state
        assert job is not None
        pid = job.state.job.process.pid  # type: ignore[union-attr]  # it runs
        before = os.getpriority(os.PRIO_PROCESS, pid)
        cpu = min(os.sched_getaffinity(0))
        assert holdfast("limit", run.run_id, "--priority", "low", "--affinity", str(cpu)).code == 0
        assert os.getpriority(os.PRIO_PROCESS, pid) == max(before, 10)
        assert os.sched_getaffinity(pid) == {cpu}


@pytest.mark.slow
@pytest.mark.requirement("LIM-12")
def test_LIM_12_swap_beside_the_memory_limit(holdfast: Command) -> None:
    done = holdfast("run", "--limit-swap", "100MiB", "--", "true")
    assert done.code == 64
    assert "limits.swap: stands beside limits.memory" in done.err
    job = ("--limit-memory", "200MiB", "--limit-swap", "100MiB", "--limit-unenforced", "warn")
    with live_run(holdfast, *job) as run:
        found = {item["name"]: item for item in manifest_of(run)["limits"]}
        assert found["swap"]["asked"] == str(100 * MIB)
        group = manifest_of(run)["cgroup"] or {}
        place = group.get("v1", {}).get("memory")
        path = f"{place}/memory.memsw.limit_in_bytes" if place else f"{group.get('unified')}/memory.swap.max"
        if os.path.exists(path):
            together = 300 * MIB if place else 100 * MIB
            assert int(Path(path).read_text()) == together
            assert found["swap"]["mechanism"] == found["memory"]["mechanism"]
        else:
            assert found["swap"]["mechanism"] == "none"
