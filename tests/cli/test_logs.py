"""``holdfast logs``: the job's bytes as they are, of any attempt, live or ended."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from holdfast.model import wire
from holdfast.model.run import Outcome
from tests.cli.live import live_run, started
from tests.rundirs import ended, make_run, write, write_events
from tests.waiting import LIMIT_S

if TYPE_CHECKING:
    from tests.cli.conftest import Command

pytestmark = pytest.mark.cli


@pytest.fixture
def run_dir(isolated_environment: dict[str, str]) -> str:
    root = isolated_environment["HOLDFAST_RUNS"]
    make_run(root, state=ended(Outcome.FAILED, 1))
    run_dir = make_run(root, state=ended(), attempt=2)
    write(f"{wire.attempt_dir(run_dir, 1)}/{wire.OUTPUT}", "first\n")
    write(f"{wire.attempt_dir(run_dir, 2)}/{wire.OUTPUT}", "one\ntwo\nthree")
    write(f"{wire.attempt_dir(run_dir, 2)}/{wire.SUPERVISOR_LOG}", "2026-11-20 the supervisor speaks\n")
    write_events(run_dir, 2, "preflight", "running", "ended")
    return run_dir


@pytest.mark.slow
def test_the_newest_attempts_bytes_are_printed_untouched(holdfast: Command, run_dir: str) -> None:
    assert holdfast("logs", "digits").out == "one\ntwo\nthree"
    assert holdfast("logs", "-n", "2", "digits").out == "two\nthree"
    assert holdfast("logs", "-n", "0", "digits").out == ""


@pytest.mark.slow
def test_attempts_are_chosen(holdfast: Command, run_dir: str) -> None:
    assert holdfast("logs", "--attempt", "1", "digits").out == "first\n"
    done = holdfast("logs", "--attempt", "all", "digits")
    assert done.out == "first\none\ntwo\nthree"
    assert "attempt 1" in done.err
    for wrong in ("3", "x", "-1"):
        done = holdfast("logs", f"--attempt={wrong}", "digits")
        assert done.code == 64
        assert "it has 1, 2" in done.err


@pytest.mark.requirement("OBS-07")
def test_OBS_07_the_supervisors_words_and_the_events_are_apart(holdfast: Command, run_dir: str) -> None:
    assert holdfast("logs", "--supervisor", "digits").out == "2026-11-20 the supervisor speaks\n"
    lines = holdfast("logs", "--events", "digits").out.splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["preflight", "running", "ended"]
    assert holdfast("logs", "--events", "--supervisor", "digits").code == 64


def test_json_has_the_lines(holdfast: Command, run_dir: str) -> None:
    value = holdfast("logs", "--json", "-n", "1", "digits").json()
    assert value["attempts"][0]["lines"] == ["three"]
    assert value["attempts"][0]["exists"] is True
    assert holdfast("logs", "--json", "-f", "digits").code == 64


def test_a_run_without_output_says_so(holdfast: Command, run_dir: str) -> None:
    os.unlink(f"{wire.attempt_dir(run_dir, 2)}/{wire.OUTPUT}")
    done = holdfast("logs", "digits")
    assert (done.code, done.out) == (0, "")
    assert "has written no output.log" in done.err


def test_following_an_ended_run_ends(holdfast: Command, run_dir: str) -> None:
    done = holdfast("logs", "-f", "-n", "1", "digits")
    assert (done.code, done.out) == (0, "three")
    assert "succeeded" in done.err


@pytest.mark.requirement("OBS-09")
def test_OBS_09_following_a_live_run_prints_as_it_comes_until_it_ends(holdfast: Command) -> None:
    body = 'echo ready; until [ -e "$HOLDFAST_ARTIFACT_DIR/go" ]; do sleep 0.05; done; echo done; exit 5'
    with live_run(holdfast, job=("sh", "-c", body)) as run, started("logs", "-f", run.run_id) as follower:
        assert follower.stdout is not None
        assert follower.stdout.readline() == "ready\n"
        write(f"{run.run_dir}/artifacts/go", "")
        assert follower.stdout.readline() == "done\n"
        assert follower.wait(LIMIT_S) == 0


@pytest.mark.slow
def test_a_reader_that_leaves_ends_the_following(holdfast: Command) -> None:
    body = "echo ready; while :; do echo more; sleep 0.05; done"
    with live_run(holdfast, job=("sh", "-c", body)) as run, started("logs", "-f", run.run_id) as follower:
        assert follower.stdout is not None
        follower.stdout.readline()
        follower.stdout.close()
        follower.stdout = None
        assert follower.wait(LIMIT_S) == 141


@pytest.mark.slow
def test_capped_output_is_printed_with_its_cut(holdfast: Command) -> None:
    code = "print('first'); [print('x' * 60) for _ in range(20000)]; print('last')"
    done = holdfast("run", "--json", "--output-max", "256KiB", "--", "python3", "-c", code)
    assert done.code == 0
    printed = holdfast("logs", done.json()["run_dir"]).out
    assert printed.startswith("first\n")
    assert printed.endswith("last\n")
    assert "bytes were cut here" in printed
