"""Deadlines end the job's tree, not a waiter, whatever phase they belong to."""

from __future__ import annotations

import pytest

from holdfast.model.gpu import GpuRequest
from holdfast.model.job import GpuOptions
from holdfast.model.run import Outcome, StopCause
from tests.agent.driving import Drive, job, timeouts

pytestmark = pytest.mark.process


@pytest.mark.requirement("RAIL-01", "B-01")
def test_RAIL_01_a_deadline_ends_the_whole_tree(drive: Drive) -> None:
    run = drive(*job("tree", "escapee", "setsid", "ignore_term"), timeouts=timeouts(run=3.0), grace_s=0.3)
    end = run.ended()
    assert (end.outcome, end.exit_code) == (Outcome.TIMED_OUT, 124)
    assert end.request is not None
    assert end.request.cause is StopCause.DEADLINE
    assert "run limit of 3.0 s" in end.evidence
    run.assert_gone()
    started, stopping = run.events("running")[0], run.events("stopping")[0]
    assert stopping["monotonic_s"] - started["monotonic_s"] >= 2.9
    assert [event["data"]["timer"] for event in run.events("timer")] == ["run", "grace"]


@pytest.mark.slow
@pytest.mark.requirement("RAIL-01")
def test_RAIL_01_the_total_counts_from_the_start_of_the_attempt(drive: Drive) -> None:
    run = drive(*job("stay"), timeouts=timeouts(total=1.0, run=500))
    end = run.ended()
    assert (end.outcome, end.exit_code) == (Outcome.TIMED_OUT, 124)
    assert "total limit of 1.0 s" in end.evidence
    run.assert_gone()


@pytest.mark.requirement("RAIL-01")
def test_RAIL_01_the_deadline_is_told_to_the_job(drive: Drive) -> None:
    run = drive("sh", "-c", 'echo "deadline $HOLDFAST_DEADLINE"', timeouts=timeouts(run=500))
    run.ended()
    assert float(run.output().split()[1]) > 1e9


@pytest.mark.requirement("RAIL-01")
def test_RAIL_01_a_deadline_that_is_not_reached_changes_nothing(drive: Drive) -> None:
    run = drive(*job("exit_with", 0), timeouts=timeouts(run=100, total=200))
    end = run.ended()
    assert end.outcome is Outcome.SUCCEEDED
    assert run.events("timer") == []


@pytest.mark.slow
@pytest.mark.requirement("RAIL-01", "LEASE-14")
def test_RAIL_01_the_total_ends_a_wait_for_cards(drive: Drive) -> None:
    cards = {"HOLDFAST_SIMULATED_GPUS": "1"}
    options = GpuOptions(wait_s=600.0, idle_window_s=0.0)
    first = drive(*job("stay"), gpus=GpuRequest(count=1), gpu=options, environ=cards)
    first.ready()
    second = drive(*job("stay"), gpus=GpuRequest(count=1), gpu=options, environ=cards, timeouts=timeouts(total=1.0))
    end = second.ended()
    assert (end.outcome, end.exit_code) == (Outcome.TIMED_OUT, 124)
    assert second.events("exec") == []
    first.ask()
    first.ended()


@pytest.mark.slow
@pytest.mark.requirement("RAIL-01")
def test_RAIL_01_a_card_is_not_held_longer_than_max_hold(drive: Drive) -> None:
    options = GpuOptions(max_hold_s=0.7, idle_window_s=0.0)
    run = drive(*job("stay"), gpus=GpuRequest(count=1), gpu=options, environ={"HOLDFAST_SIMULATED_GPUS": "1"})
    end = run.ended()
    assert end.outcome is Outcome.TIMED_OUT
    assert end.request is not None
    assert end.request.cause is StopCause.MAX_HOLD
