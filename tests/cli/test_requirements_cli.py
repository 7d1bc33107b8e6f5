"""Requirements seen from the command line: what is said about a job, what is asked of an administrator, what ends."""

from __future__ import annotations

import json
import os
import re
import stat
import time
from typing import TYPE_CHECKING

import pytest

from holdfast.host.processes import read_stat
from holdfast.model import wire
from holdfast.model.run import Running
from tests.cli.live import STUBBORN, live_run
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Command
    from tests.cli.live import LiveRun
    from tests.fakes.nvml.driver import FakeNvml

pytestmark = pytest.mark.cli

ASLEEP = ("sh", "-c", "echo ready; sleep 600")
BUSY = ("sh", "-c", "echo ready; while :; do :; done")
JUDGEMENT = re.compile(r"\b(hung|hang(s|ing)?|stuck|stalled|frozen|dead)\b", re.IGNORECASE)


def job_ticks(run: LiveRun) -> int:
    """CPU time of the job's leader so far, in clock ticks."""
    state = run.look().state
    assert state is not None
    assert isinstance(state.state, Running)
    with open(f"/proc/{state.state.job.process.pid}/stat", encoding="ascii") as file:
        fields = file.read().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


@pytest.mark.slow
@pytest.mark.requirement("B-42")
def test_B_42_neither_a_job_at_0_nor_one_at_100_percent_is_called_hung(holdfast: Command) -> None:
    options = ("--health-every", "0.2s")
    with live_run(holdfast, *options, job=ASLEEP) as asleep, live_run(holdfast, *options, job=BUSY) as busy:
        wait_until(lambda: job_ticks(busy) > 50, what="half a second of CPU time")
        assert job_ticks(asleep) < 10
        for run in (asleep, busy):
            wait_until(lambda run=run: os.path.exists(f"{run.look().attempt_dir}/{wire.HEALTH}"))  # type: ignore[misc]
            shown = holdfast("show", run.run_id)
            assert shown.code == 0
            assert shown.out.startswith(f"{run.run_id}: running")
            assert not JUDGEMENT.search(shown.out), shown.out
            assert holdfast("show", "--json", run.run_id).json()["condition"] == "running"
        listed = {item["run_id"]: item["condition"] for item in holdfast("ls", "--json").json()["runs"]}
        assert (listed[asleep.run_id], listed[busy.run_id]) == ("running", "running")
        assert not JUDGEMENT.search(holdfast("ls").out)


@pytest.mark.requirement("B-20a")
def test_B_20a_a_reset_is_asked_for_in_words_and_never_done(
    holdfast: Command, fake_nvml: FakeNvml, tmp_path: Path
) -> None:
    fake_nvml.add_cards(2)
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/called\n')
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    path = {"PATH": f"{tool.parent}:{os.environ['PATH']}"}
    asked = holdfast("gpus", "reset-request", "1", env=path)
    assert asked.code == 0
    assert "not local to this card" in asked.out
    assert "NVLink" in asked.out
    assert "together with it" in asked.out
    assert "not local to this card" in holdfast("gpus", "reset-request", "1", "--json", env=path).json()["text"]
    assert holdfast("gpus", env=path).code == 0
    assert not (tmp_path / "called").exists()


@pytest.mark.slow
@pytest.mark.requirement("LIM-09")
def test_LIM_09_use_against_the_limit_is_shown_while_it_runs(holdfast: Command) -> None:
    with live_run(holdfast, "--limit-memory", "200MiB", "--health-every", "0.2s", job=ASLEEP) as run:
        wait_until(lambda: os.path.exists(f"{run.look().attempt_dir}/{wire.HEALTH}"), what="a sample")
        shown = holdfast("show", run.run_id)
        assert re.search(r"memory +\d[\d.]* (B|KiB|MiB) of 200 MiB \(\d+ %\)", shown.out), shown.out


@pytest.mark.slow
@pytest.mark.requirement("PRE-05")
def test_PRE_05_log_and_manifest_are_there_before_the_job(holdfast: Command) -> None:
    look = 'cd "$HOLDFAST_RUN_DIR/attempts/1" && stat -c %Y manifest.json && test -e output.log && echo both'
    done = holdfast("run", "--json", "--", "sh", "-c", look)
    assert done.code == 0, done
    (run,) = holdfast("ls", "--all", "--json").json()["runs"]
    where = f"{run['run_dir']}/attempts/1"
    with open(f"{where}/output.log", encoding="utf-8") as file:
        assert file.read().splitlines()[-1] == "both"
    with open(f"{where}/manifest.json", encoding="utf-8") as file:
        written = json.load(file)["written_at"]
    with open(f"{where}/events.jsonl", encoding="utf-8") as file:
        (started,) = [event["utc"] for line in file if (event := json.loads(line))["event"] == "exec"]
    assert written <= started


@pytest.mark.slow
@pytest.mark.requirement("PRE-05")
@pytest.mark.parametrize("verb", ["preflight", "run"])
def test_PRE_05_a_place_where_no_run_directory_can_be_made_is_said_before_anything(
    holdfast: Command, tmp_path: Path, verb: str
) -> None:
    (tmp_path / "file").write_text("in the way")
    runs = str(tmp_path / "file" / "runs")
    done = holdfast(verb, "--", "touch", str(tmp_path / "ran"), env={"HOLDFAST_RUNS": runs})
    assert done.code == (78 if verb == "preflight" else 74), done
    said = done.out + done.err
    assert runs in said
    assert "--runs" in said
    assert not (tmp_path / "ran").exists()
    assert (tmp_path / "file").read_text() == "in the way"


@pytest.mark.slow
@pytest.mark.requirement("RAIL-15")
def test_RAIL_15_waiting_for_a_card_that_never_comes_ends_at_its_limit_with_the_reason(holdfast: Command) -> None:
    cards = {"HOLDFAST_SIMULATED_GPUS": "1"}
    held = holdfast("run", "-d", "--prove", "0", "--json", "--gpus", "1", "--", "sleep", "600", env=cards)
    assert held.code == 0, held
    try:
        wait_until(lambda: holdfast("show", "--json", held.json()["run_id"]).json()["condition"] == "running")
        began = time.monotonic()
        done = holdfast("run", "--gpus", "1", "--wait", "1s", "--idle-window", "0s", "--", "true", env=cards)
        assert time.monotonic() - began >= 1.0
        assert done.code == 75
        assert re.search(r"gave up after waiting 1 s.*" + re.escape(held.json()["run_id"]), done.out + done.err)
    finally:
        assert holdfast("stop", "--now", held.json()["run_id"]).code == 0


@pytest.mark.slow
@pytest.mark.requirement("RAIL-15")
def test_RAIL_15_waiting_for_an_end_that_does_not_come_ends_at_its_limit(holdfast: Command) -> None:
    with live_run(holdfast, "--grace", "300s", "--grace-max", "300s", job=STUBBORN) as run:
        done = holdfast("stop", "--wait", "1s", run.run_id)
        assert done.code != 0
        assert run.run_id in done.out + done.err
        state = run.look().state
        assert state is not None
        assert state.supervisor is not None
        assert read_stat(state.supervisor.pid) is not None, "the stop itself goes on"
