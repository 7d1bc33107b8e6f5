"""``holdfast ls``: newest first, live ones always, right with and without its index."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from holdfast.agent.create import create_run
from holdfast.agent.observe import RunView, observe
from holdfast.host.clock import utc_now
from holdfast.host.processes import identify_self
from holdfast.model import wire
from holdfast.model.job import JobSpec
from holdfast.model.lease import LeasedDevice
from holdfast.model.run import Outcome, Preflight
from tests.cli.live import live_run
from tests.rundirs import dead_process, ended, make_run, running, write
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Command

pytestmark = pytest.mark.cli


@pytest.fixture
def runs(isolated_environment: dict[str, str]) -> str:
    return isolated_environment["HOLDFAST_RUNS"]


def run_id(number: int, name: str = "digits") -> str:
    return f"20261120-1000{number:02d}-{name}-0a1b"


def test_no_runs_says_how_to_begin(holdfast: Command) -> None:
    done = holdfast("ls")
    assert (done.code, done.out) == (0, "")
    assert "holdfast run" in done.err
    assert holdfast("ls", "--json").json() == {"schema": 1, "runs": [], "total": 0}


def test_the_table_of_ended_runs(holdfast: Command, runs: str) -> None:
    make_run(runs, run_id(1), ended())
    make_run(runs, run_id(2, "resnet"), ended(Outcome.FAILED, 3))
    write(f"{runs}/{run_id(3)}", "a file, not a run")
    for _ in range(2):
        assert holdfast("ls").out == (
            "RUN                          STATE        TIME  CARDS  STEP  LOSS  EXIT\n"
            "20261120-100003-digits-0a1b  unreadable      -  -         -     -     -\n"
            "20261120-100002-resnet-0a1b  failed      5.0 s  -         -     -     3\n"
            "20261120-100001-digits-0a1b  succeeded   5.0 s  -         -     -     0\n"
        )


def test_progress_and_cards_of_a_live_run(holdfast: Command, runs: str) -> None:
    cards = (LeasedDevice("GPU-a", 0, "A100"), LeasedDevice("GPU-b", 3, "A100"))
    run_dir = make_run(runs, state=running(devices=cards), supervisor=identify_self())
    write(f"{wire.attempt_dir(run_dir, 1)}/{wire.HEARTBEAT}", b'{"step": 1200, "loss": NaN}')
    row = holdfast("ls", "--json").json()["runs"][0]
    assert (row["condition"], row["cards"], row["step"], row["loss"]) == ("running", "0,3", 1200, "nan")
    assert "1200" in holdfast("ls").out


def test_live_runs_are_shown_however_old(holdfast: Command, runs: str) -> None:
    make_run(runs, run_id(1, "old"), running(), supervisor=identify_self())
    for number in range(2, 9):
        make_run(runs, run_id(number), ended())
    done = holdfast("ls", "-n", "3")
    assert [line.split()[1] for line in done.out.splitlines()[1:]] == ["succeeded"] * 3 + ["running"]
    assert "4 older runs" in done.err
    assert len(holdfast("ls", "--all").out.splitlines()) == 9


@pytest.mark.slow
def test_states_select(holdfast: Command, runs: str) -> None:
    make_run(runs, run_id(1), ended())
    make_run(runs, run_id(2), ended(Outcome.FAILED, 1))
    make_run(runs, run_id(3), running(), supervisor=identify_self())

    def listed(*states: str) -> list[str]:
        arguments = [word for state in states for word in ("-s", state)]
        return [row["condition"] for row in holdfast("ls", "--json", *arguments).json()["runs"]]

    assert listed("failed") == ["failed"]
    assert listed("live") == ["running"]
    assert listed("failed", "running") == ["running", "failed"]
    assert "is preempted" in holdfast("ls", "-s", "preempted").err


@pytest.mark.requirement("PROC-15")
def test_PROC_15_a_run_that_a_reboot_took_becomes_lost(holdfast: Command, runs: str) -> None:
    run_dir = make_run(runs, state=running(), supervisor=dead_process(), boot="the-boot-before")
    row = holdfast("ls", "--json").json()["runs"][0]
    assert (row["condition"], row["ended"], row["exit_code"]) == ("lost", True, 71)
    view = observe(run_dir)
    assert view.over
    assert view.state is not None


@pytest.mark.requirement("PROC-15")
@pytest.mark.parametrize("verb", [("ls",), ("show", "never"), ("attach", "never"), ("stop", "never")])
def test_PROC_15_looking_at_a_run_never_starts_its_job(
    holdfast: Command, runs: str, tmp_path: Path, verb: tuple[str, ...]
) -> None:
    """Its supervisor died before the job: whoever looks has it called off and runs it in no other environment."""
    spec = JobSpec(name="never", command=("touch", f"{tmp_path}/ran"), workdir=str(tmp_path))
    run_dir, _ = create_run(spec, runs, argv=(), cwd="/", environ=os.environ)
    state = observe(run_dir).state
    assert state is not None
    abandoned = replace(state, supervisor=dead_process(), state=Preflight(utc_now()))
    write(f"{wire.attempt_dir(run_dir, 1)}/{wire.STATE}", wire.to_bytes(abandoned))
    holdfast(*verb)
    view = wait_until(lambda: _if_over(run_dir))
    assert view is not None
    assert view.exit_code != 0
    assert not (tmp_path / "ran").exists()
    assert "restart" in view.note


def _if_over(run_dir: str) -> RunView | None:
    view = observe(run_dir)
    return view if view.over and not view.supervised else None


@pytest.mark.requirement("OBS-09")
def test_OBS_09_one_bad_run_hides_no_other(holdfast: Command, runs: str) -> None:
    make_run(runs, run_id(1), ended())
    bad = make_run(runs, run_id(2), running(), supervisor=dead_process())
    write(f"{wire.attempt_dir(bad, 1)}/{wire.STATE}", b"\x00" * 100)
    os.mkdir(f"{runs}/{run_id(3)}")
    conditions = [row["condition"] for row in holdfast("ls", "--json").json()["runs"]]
    assert conditions == ["unreadable", "unreadable", "succeeded"]


@pytest.mark.slow
def test_runs_elsewhere_are_found_by_root_and_remembered(holdfast: Command, tmp_path: Path) -> None:
    done = holdfast("run", "--runs", str(tmp_path / "there"), "--name", "away", "--", "true")
    assert done.code == 0
    assert "away" in holdfast("ls").out
    assert holdfast("show", "away").code == 0
    assert holdfast("ls", "--runs", str(tmp_path / "nowhere")).out == ""


def test_a_damaged_index_is_one_notice(holdfast: Command, runs: str, isolated_environment: dict[str, str]) -> None:
    make_run(runs, run_id(1), ended())
    holdfast("ls")
    write(isolated_environment["XDG_STATE_HOME"] + "/holdfast/index.db", b"garbage" * 1000)
    done = holdfast("ls")
    assert done.code == 0
    assert run_id(1) in done.out
    assert done.err.count("was damaged") == 1
    assert holdfast("ls").err == ""


@pytest.mark.slow
@pytest.mark.requirement("OBS-09")
def test_OBS_09_a_live_run_is_listed_while_it_runs_and_after(holdfast: Command) -> None:
    with live_run(holdfast, "--name", "live") as run:
        assert "running" in holdfast("ls").out
        holdfast("stop", "--now", run.run_id)
        assert "stopped" in holdfast("ls").out


def test_a_misspelt_state_is_an_error_not_an_empty_list(holdfast: Command, runs: str) -> None:
    make_run(runs, run_id(1), ended())
    done = holdfast("ls", "--state", "live2")
    assert (done.code, done.out) == (64, "")
    assert "no state 'live2'" in done.err
    assert "did you mean live?" in done.err
    assert holdfast("ls", "--state", "running").code == 0
