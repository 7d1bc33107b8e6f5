"""The entry ``poll``: many runs in one process, once or kept, and nothing changed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.agent.place.poll import take_most
from holdfast.agent.requests import write_request
from holdfast.agent.view.runs.roots import choose_root
from holdfast.desk.runs.answer import read_answer
from holdfast.host.clock import utc_now
from holdfast.host.process.processes import identify_self
from holdfast.model.run import RequestKind, RunRequest
from tests.rundirs import dead_process, ended, make_run, running
from tests.waiting import LIMIT_S

pytestmark = pytest.mark.process
MAIN = f"{os.path.dirname(os.path.abspath(holdfast.__file__))}/agent/__main__.py"


@pytest.fixture
def runs(isolated_environment: dict[str, str]) -> str:
    return isolated_environment["HOLDFAST_RUNS"]


def run_id(number: int) -> str:
    return f"20261120-1000{number:02d}-digits-0a1b"


def poll(*words: str) -> tuple[int, list[dict[str, Any]]]:
    done = subprocess.run(
        [sys.executable, "-I", "-S", MAIN, "poll", *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert not done.stderr, done.stderr
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


def ids(answer: dict[str, Any]) -> list[str]:
    return [row["run_id"] for row in answer["runs"]]


def test_unfinished_runs_always_and_the_newest_ended_ones(runs: str) -> None:
    make_run(runs, run_id(1), running(), supervisor=identify_self())
    for number in range(2, 6):
        make_run(runs, run_id(number), ended())
    code, (answer,) = poll("--limit", "2")
    assert (code, ids(answer)) == (0, [run_id(5), run_id(4), run_id(1)])
    assert (answer["schema"], answer["known"], answer["complete"]) == (1, 5, False)
    assert answer["runs"][2]["vanished"] is False
    (more,) = poll("--limit", "0", run_id(2), run_id(9))[1]
    assert (ids(more), more["absent"]) == ([run_id(1), run_id(2)], [run_id(9)])
    assert poll()[1][0]["complete"] is True


def test_more_rows_than_one_answer_holds_are_cut_and_not_refused() -> None:
    """Text that is not ASCII is six times as long in JSON."""
    rows = [{"run_id": run_id(1), "note": "\u00e4" * 300, "loss": "\u00e4" * 300}] * 5000
    taken = take_most(iter(rows))
    assert 1000 < len(taken) < len(rows)
    assert len(json.dumps({"runs": taken})) < 8 << 20


def test_only_the_runs_that_are_named(runs: str) -> None:
    make_run(runs, run_id(1), ended())
    make_run(runs, run_id(2), ended())
    (answer,) = poll(run_id(2), run_id(3))[1]
    assert (ids(answer), answer["absent"], answer["complete"]) == ([run_id(2)], [run_id(3)], False)


def test_a_runs_root_that_cannot_be_read_is_named(runs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(runs, run_id(1), ended())
    choose_root(runs)
    monkeypatch.setenv("HOLDFAST_RUNS", "/nowhere/runs")
    (answer,) = poll()[1]
    assert (ids(answer), answer["missing_roots"], answer["complete"]) == ([run_id(1)], ["/nowhere/runs"], True)
    assert not read_answer("gpu1", answer, at="2026-11-22T10:00:00.000Z").complete


@pytest.mark.parametrize("words", [["../../etc"], ["--limit", "x"], [run_id(1), ""], ["-x"]])
def test_words_that_it_does_not_take(words: list[str]) -> None:
    code, (answer,) = poll(*words)
    assert (code, answer["error"]["exit_code"]) == (64, 64)


def test_a_look_changes_nothing_and_a_desk_understands_it(runs: str) -> None:
    run_dir = make_run(runs, run_id(1), running(), supervisor=identify_self())
    write_request(run_dir, RunRequest(RequestKind.STOP, "anna", utc_now(), "", 1))
    before = {path: path.stat().st_mtime_ns for path in Path(runs).rglob("*")}
    (answer,) = poll()[1]
    assert {path: path.stat().st_mtime_ns for path in Path(runs).rglob("*")} == before
    found = read_answer("gpu1", answer, at="2026-11-22T10:00:00.000Z")
    assert found.notice == ""
    assert found.sightings[run_id(1)].desired == "stop"


@pytest.mark.requirement("BSSH-05")
def test_BSSH_05_a_run_that_a_reboot_took_is_lost_with_its_evidence(runs: str) -> None:
    make_run(runs, run_id(1), running(), supervisor=dead_process(), boot="the-boot-before")
    (answer,) = poll()[1]
    seen = read_answer("gpu1", answer, at="2026-11-22T10:00:00.000Z").sightings[run_id(1)]
    assert (seen.condition, seen.ended) == ("lost", False)
    assert seen.row is not None
    assert "rebooted" in str(seen.row["note"])
