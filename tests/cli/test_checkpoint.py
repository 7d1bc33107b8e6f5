"""``holdfast checkpoint``: asks, waits for what is durable, says where it is, and is clear when nothing comes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.agent.test_leaving import library
from tests.cli.live import SLEEPER, live_run, started
from tests.rundirs import ended, make_run
from tests.waiting import LIMIT_S, wait_until

if TYPE_CHECKING:
    from tests.cli.conftest import Command

pytestmark = pytest.mark.cli


@pytest.mark.slow
@pytest.mark.requirement("LIB-17")
def test_LIB_17_step_and_place_are_printed_and_the_run_goes_on(holdfast: Command) -> None:
    with live_run(holdfast, "--name", "digits", job=library("train")) as run:
        done = holdfast("checkpoint", "digits", "--reason", "before the update")
        assert done.code == 0, done
        step = int(done.out.split("saved step ")[1].split(":")[0])
        assert done.out == f"{run.run_id}: saved step {step}: {run.run_dir}/checkpoints/step-{step}\n"
        assert os.path.isdir(f"{run.run_dir}/checkpoints/step-{step}")
        assert "asked" in done.err
        assert run.look().condition == "running"
        value = holdfast("checkpoint", "--json", "digits").json()
        assert (value["saved"], value["phase"], value["exit_code"]) == (True, "saved", 0)
        assert value["step"] >= value["step_when_asked"] >= step
        shown = holdfast("show", "digits").out
        assert f"{value['step']}: a restart goes on from here" in shown
        assert "before the update" in holdfast("show", "--events", "digits").out


@pytest.mark.slow
def test_a_job_that_does_not_look_for_it_is_named_after_the_wait(holdfast: Command) -> None:
    with live_run(holdfast, job=SLEEPER) as run:
        done = holdfast("checkpoint", "--wait", "500ms", run.run_id)
        assert done.code == 75
        assert "the job has not answered" in done.out
        assert "does the script use holdfast.training?" in done.out
        assert "the request stays" in done.err
        value = holdfast("checkpoint", "--wait", "0", "--json", run.run_id)
        assert value.code == value.json()["exit_code"] == 75
        assert value.json()["saved"] is False


@pytest.mark.slow
def test_who_waits_in_vain_hears_long_before_the_end_what_may_be_the_reason(holdfast: Command) -> None:
    with live_run(holdfast, job=SLEEPER) as run, started("checkpoint", run.run_id) as waiting:
        assert waiting.stderr is not None
        lines = iter(waiting.stderr.readline, "")
        assert any("not taken up yet; only a script that uses holdfast.training does" in line for line in lines)
        assert waiting.poll() is None


@pytest.mark.slow
def test_a_job_that_takes_it_up_and_saves_nothing_is_told_apart(holdfast: Command) -> None:
    with live_run(holdfast, job=library("train", "drops")) as run:
        done = holdfast("checkpoint", "--wait", "1s", run.run_id)
        assert done.code == 75
        assert "no newer checkpoint is durable" in done.out


@pytest.mark.slow
def test_who_does_not_wait_only_asks(holdfast: Command) -> None:
    with live_run(holdfast, job=library("train")) as run:
        done = holdfast("checkpoint", "--no-wait", run.run_id)
        assert (done.code, done.out) == (0, f"{run.run_id}: asked to save a checkpoint and go on\n")
        run.wait_output("asked operator")
        value = holdfast("checkpoint", "--no-wait", "--json", run.run_id).json()
        assert (value["phase"], value["step"], value["exit_code"]) == ("asked", None, 0)


@pytest.mark.slow
def test_a_job_that_is_stopped_meanwhile_ends_the_wait(holdfast: Command) -> None:
    with live_run(holdfast, job=SLEEPER) as run, started("checkpoint", run.run_id) as waiting:
        wait_until(lambda: os.path.exists(f"{run.run_dir}/attempts/1/checkpoint_request.json"))
        assert holdfast("stop", "--now", run.run_id).code == 0
        out, _ = waiting.communicate(timeout=LIMIT_S)
        assert waiting.returncode == 75
        assert "ended before it saved: stopped" in out


def test_a_run_that_has_ended_is_refused_clearly(holdfast: Command) -> None:
    run_dir = make_run(os.environ["HOLDFAST_RUNS"], state=ended())
    done = holdfast("checkpoint", run_dir)
    assert done.code == 64
    assert "has ended (succeeded): no job is there to save" in done.err
    assert not os.path.exists(f"{run_dir}/attempts/1/checkpoint_wanted.json")


@pytest.mark.requirement("ETIQ-02")
def test_ETIQ_02_another_accounts_run_is_not_asked(holdfast: Command) -> None:
    run_dir = make_run(os.environ["HOLDFAST_RUNS"], state=ended())
    os.chown(run_dir, 65534, 65534)
    assert holdfast("checkpoint", run_dir).code == 77


@pytest.mark.parametrize("wait", ["soon", "-1", ""])
def test_a_bad_wait_is_a_usage_error(holdfast: Command, wait: str) -> None:
    done = holdfast("checkpoint", f"--wait={wait}", "any")
    assert done.code == 64
    assert "--wait" in done.err


def test_the_verb_is_found_by_what_people_call_it_elsewhere(holdfast: Command) -> None:
    assert "did you mean `holdfast checkpoint`?" in holdfast("save", "digits").err
    shown = holdfast("checkpoint", "--help").out
    assert "holdfast checkpoint --wait 30m" in shown
