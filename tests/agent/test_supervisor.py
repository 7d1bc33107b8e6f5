"""A supervisor from created to ended: order of commits, what is written, what it survives."""

from __future__ import annotations

import os
import signal

import pytest

from holdfast.host import processes
from holdfast.model import wire
from holdfast.model.run import Outcome, Wish
from tests.agent.driving import Drive, job
from tests.waiting import wait_until

pytestmark = pytest.mark.process


def test_a_run_goes_through_its_states_in_order_and_leaves_nothing(drive: Drive) -> None:
    run = drive(*job("exit_with", 0))
    end = run.ended()
    assert (end.outcome, end.exit_code) == (Outcome.SUCCEEDED, 0)
    order = [event["event"] for event in run.events()]
    wanted = ["supervisor_started", "preflight", "starting", "exec", "running", "finalizing", "ended", "exit_recorded"]
    assert [name for name in order if name in wanted] == wanted
    run.assert_gone()
    assert run.log() == ""
    assert not [name for name in os.listdir(run.directory) if name.startswith(".")], "no temporary file stays"


@pytest.mark.slow
@pytest.mark.requirement("OBS-07")
def test_OBS_07_events_are_numbered_json_lines_with_both_clocks(drive: Drive) -> None:
    first, second = drive(*job("exit_with", 0)), drive(*job("exit_with", 0))
    first.ended()
    second.ended()
    for run in (first, second):
        events = run.events()
        assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
        assert [event["monotonic_s"] for event in events] == sorted(event["monotonic_s"] for event in events)
        assert all(event["utc"].endswith("Z") for event in events)
    assert first.run_id not in second.path(wire.OUTPUT)
    assert first.run_id.encode() not in second.output()


@pytest.mark.requirement("PROC-04", "B-04")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_PROC_04_a_signal_to_the_supervisor_stops_the_tree(drive: Drive, number: int) -> None:
    run = drive(*job("stay"))
    run.ready()
    run.signal_supervisor(number)
    end = run.ended()
    assert (end.outcome, end.exit_code) == (Outcome.STOPPED, 130)
    assert end.status is not None
    assert end.status.signal == signal.SIGTERM, "it was sent on to the tree"
    assert end.request is not None
    assert signal.Signals(number).name in end.request.by
    run.assert_gone()


def test_two_supervisors_never_drive_one_attempt(drive: Drive) -> None:
    run = drive(*job("stay"))
    run.ready()
    first = run.supervisor()
    run.start("adopt")
    wait_until(lambda: "another supervisor is at work" in run.log())
    assert run.state().supervisor == first
    assert processes.is_alive(first)
    run.ask(Wish.STOP_NOW)
    run.ended()
    assert len(run.events("supervisor_started")) == 1


@pytest.mark.requirement("PROC-04")
def test_PROC_04_a_signal_while_the_supervisor_changes_its_image_is_not_lost(drive: Drive) -> None:
    """The image is replaced about a second after the start; TERM hits it again and again around that moment."""
    run = drive(*job("ignore_term"), grace_s=600.0)
    run.ready()
    victim = run.supervisor()

    def nudge() -> bool:
        # HUP asks for a stop too; once one has been seen the rest changes nothing.
        assert processes.send_signal(victim, signal.SIGHUP), "the signal ended the supervisor"
        return len(run.events("supervisor_resumed")) > 0 or run.kind() == "stopping"

    wait_until(nudge)
    wait_until(lambda: run.kind() == "stopping")
    run.ask(Wish.STOP_NOW)
    assert run.ended().outcome is Outcome.STOPPED


@pytest.mark.slow
def test_the_supervisor_slims_down_and_goes_on(drive: Drive) -> None:
    run = drive(*job("leave_when_told", f"{drive.workdir}/go", 9))
    before = run.ready()
    wait_until(lambda: run.events("supervisor_resumed"), what="it changed its image")
    assert run.running() == before
    with open(f"{drive.workdir}/go", "w"):
        pass
    assert run.ended().exit_code == 9
    run.assert_gone()


@pytest.mark.requirement("OBS-11")
def test_OBS_11_a_vanished_run_directory_does_not_end_the_job(drive: Drive) -> None:
    run = drive(*job("leave_when_told", f"{drive.workdir}/go", 5))
    run.ready()
    os.rename(run.run_dir, f"{run.run_dir}.away")
    with open(f"{drive.workdir}/go", "w"):
        pass
    end = run.ended()
    assert end.exit_code == 5
    run.assert_gone()


def test_a_wish_for_a_stop_before_the_supervisor_looks_is_seen(drive: Drive) -> None:
    run = drive.create(*job("stay"))
    run.ask()
    run.start()
    end = run.ended()
    assert (end.outcome, end.status) == (Outcome.STOPPED, None)
    assert "had not started" in end.evidence or "signal" in end.evidence
    run.assert_gone()
