"""``holdfast doctor``: what it prints, its exit codes, and the reaper's manners."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.cli.live import live_run
from tests.rundirs import ended, make_run, own_run_id
from tests.waiting import LIMIT_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cli.conftest import Command

pytestmark = pytest.mark.cli

RUN = own_run_id()
SLEEPER = "import signal; print('up', flush=True); signal.pause()"


@contextmanager
def marked(run_dir: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that carries a run's marker."""
    marker = {"HOLDFAST_RUN_ID": os.path.basename(run_dir), "HOLDFAST_RUN_DIR": run_dir, "HOLDFAST_ATTEMPT": "1"}
    command = [sys.executable, "-c", SLEEPER]
    with subprocess.Popen(command, env={**os.environ, **marker}, stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            child.stdout.readline()
            yield child
        finally:
            child.kill()


def test_findings_come_in_sections_with_a_summary_and_an_exit_code(holdfast: Command) -> None:
    done = holdfast("doctor")
    assert done.code in (0, 1)
    assert ("fail" in done.out.splitlines()[-1]) == bool(done.code)
    assert [
        title for title in ("Program", "Cards", "Limits", "Disks", "Diagnosis") if f"\n{title}\n" in f"\n{done.out}"
    ]
    value = holdfast("doctor", "--json").json()
    assert value["exit_code"] == done.code
    assert {finding["level"] for finding in value["findings"]} <= {"pass", "unknown", "warn", "fail"}


@pytest.mark.slow
def test_an_interpreter_that_is_none_fails(holdfast: Command) -> None:
    done = holdfast("doctor", "--python", "/no/such/python")
    assert done.code == 1
    assert "/no/such/python" in done.out


@pytest.mark.requirement("PRE-22", "RAIL-16")
def test_PRE_22_the_reaper_lists_asks_and_ends_only_what_was_left(
    holdfast: Command, isolated_environment: dict[str, str]
) -> None:
    # Only under this root: other tests on this box have leftovers of their own, and this command means it.
    root = isolated_environment["HOLDFAST_RUNS"]
    run_dir = make_run(root, RUN, ended())
    with marked(run_dir) as left, live_run(holdfast, "--name", "busy") as live:
        refused = holdfast("doctor", "--reap", "--runs", root)
        assert refused.code == 64
        assert "--yes" in refused.err
        assert str(left.pid) in refused.out
        assert left.poll() is None
        value = holdfast("doctor", "--reap", "--yes", "--json", "--runs", root).json()
        ends = {end["leftover"]["process"]["pid"]: end["outcome"] for end in value["done"]}
        assert ends[left.pid] == "ended"
        assert left.wait(LIMIT_S) == -signal.SIGTERM
        assert live.look().condition == "running"
    state = isolated_environment.get("XDG_STATE_HOME") or f"{isolated_environment['HOME']}/.local/state"
    with open(f"{state}/holdfast/reaper.jsonl", encoding="utf-8") as file:
        events = [json.loads(line)["event"] for line in file]
    assert events[0] == "begin"
    assert "ended" in events


def test_options_of_the_reaper_alone_are_refused(holdfast: Command) -> None:
    assert holdfast("doctor", "--yes").code == 64
    assert holdfast("doctor", "--reap", "--grace", "soon").code == 64
