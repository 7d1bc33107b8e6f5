"""A supervisor from created to ended: order of commits, what is written, what it survives."""

from __future__ import annotations

import os
import signal

import pytest

from holdfast.host.clock import utc_now
from holdfast.host.files import files
from holdfast.host.process import pidfd, processes
from holdfast.host.process.signals import STOPS, SURVIVED
from holdfast.model import wire
from holdfast.model.run import Outcome, PlaceGone, RequestKind
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


def test_a_run_whose_place_somebody_takes_for_gone_ends_there(drive: Drive) -> None:
    run = drive(*job("ignore_term"))
    run.ready()
    word = PlaceGone("Slurm", utc_now(), "its node does not answer", run.state().box)
    files.commit(run.path(wire.GONE), wire.to_bytes(word))
    end = run.ended()
    assert (end.outcome, end.request and end.request.detail) == (Outcome.PREEMPTED, word.reason)
    assert end.request is not None
    assert end.request.by == "its place was taken for gone (Slurm)"
    run.assert_gone()


def test_signals_that_ask_for_nothing_kill_neither_supervisor_nor_keeper(drive: Drive) -> None:
    """Seen: USR1, which Slurm sends ahead of a deadline, killed the supervisor, and its job outlived the Slurm job."""
    run = drive(*job("stay"))
    keeper = run.ready().keeper
    assert keeper is not None
    sent = sorted(SURVIVED - STOPS)
    for number in sent:
        run.signal_supervisor(number)
        assert pidfd.send_signal(keeper, number)
    wait_until(lambda: len(run.events("signal_ignored")) == len(sent), what="each is on record")
    for number in STOPS:
        assert pidfd.send_signal(keeper, number)
    assert run.kind() == "running"
    run.ask()
    assert run.ended().outcome is Outcome.STOPPED
    run.assert_gone()


@pytest.mark.slow
def test_two_supervisors_never_drive_one_attempt(drive: Drive) -> None:
    run = drive(*job("stay"))
    run.ready()
    first = run.supervisor()
    run.start("adopt")
    wait_until(lambda: "another supervisor is at work" in run.log())
    assert run.state().supervisor == first
    assert processes.is_alive(first)
    run.ask(RequestKind.STOP_NOW)
    run.ended()
    assert len(run.events("supervisor_started")) == 1


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


def test_a_request_for_a_stop_before_the_supervisor_looks_is_seen(drive: Drive) -> None:
    run = drive.create(*job("stay"))
    run.ask()
    run.start()
    end = run.ended()
    assert (end.outcome, end.status) == (Outcome.STOPPED, None)
    assert "had not started" in end.evidence or "signal" in end.evidence
    run.assert_gone()
