"""Telling people: the right message, once, by command and webhook; and never at the run's expense (OBS-16)."""

from __future__ import annotations

import http.server
import json
import os
import threading
from typing import TYPE_CHECKING

import pytest

from holdfast.agent.patrol.gather import gather_evidence
from holdfast.agent.view.live.summary import read_summary
from holdfast.agent.view.live.undelivered import find_untold, list_undelivered
from holdfast.agent.view.observe import observe_run, read_events
from holdfast.core.patrol.evidence import LIMITS
from holdfast.core.patrol.patrol import judge_run
from holdfast.model import wire
from holdfast.model.job import Channels, Notify
from holdfast.model.run import Outcome
from tests.agent.driving import NAME, Drive, job, read_text
from tests.rundirs import ended, make_run
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.process


@pytest.fixture
def hook(drive: Drive) -> str:
    """A hook that keeps every message, one per line."""
    path = f"{drive.workdir}/hook"
    with open(path, "w", encoding="ascii") as file:
        file.write(f"#!/bin/sh\ncat >> {drive.workdir}/messages\necho >> {drive.workdir}/messages\n")
    os.chmod(path, 0o700)
    return path


def messages(drive: Drive) -> list[dict[str, object]]:
    return [json.loads(line) for line in read_text(f"{drive.workdir}/messages").splitlines()]


@pytest.mark.slow
@pytest.mark.gotcha("U18", "GEN1")
@pytest.mark.requirement("OBS-16", "MON-17")
def test_OBS_16_the_end_is_told_with_its_outcome(drive: Drive, hook: str) -> None:
    run = drive(*job("exit_with", 3), notify=Notify(command=(hook,)))
    run.ended()
    (message,) = messages(drive)
    assert (message["schema"], message["run_id"], message["state"]) == (1, run.run_id, "ended")
    assert (message["outcome"], message["exit_code"]) == ("failed", 3)
    assert run.events("notified")[0]["data"]["problems"] == {"command": None}


@pytest.mark.slow
@pytest.mark.requirement("OBS-16")
def test_OBS_16_only_what_was_asked_for_is_told(drive: Drive, hook: str) -> None:
    run = drive(*job("exit_with", 0), notify=Notify(command=(hook,), on=("running", "ended")))
    run.ended()
    assert [message["state"] for message in messages(drive)] in (["running", "ended"], ["ended", "running"])
    quiet = drive(*job("exit_with", 0), notify=Notify(command=(hook,), on=()))
    quiet.ended()
    assert len(messages(drive)) == 2
    drive(*job("exit_with", 0), notify=Notify(command=(hook,), on=("failed",))).ended()
    assert len(messages(drive)) == 2
    drive(*job("exit_with", 3), notify=Notify(command=(hook,), on=("failed",))).ended()
    assert [message["outcome"] for message in messages(drive)[2:]] == ["failed"]
    for code, untold in ((0, False), (3, True)):
        silent = drive(*job("exit_with", code), notify=Notify(command=("/no/such",), on=("failed",)))
        silent.ended()
        assert bool(find_untold(observe_run(silent.run_dir))) is untold


@pytest.mark.requirement("OBS-16")
def test_OBS_16_what_was_left_out_is_said_with_where_it_is_explained(tmp_path: Path) -> None:
    view = observe_run(make_run(tmp_path, state=ended()))
    event = {"event": "notified", "data": {"state": "ended", "suppressed": "30 messages were sent", "problems": {}}}
    assert list_undelivered(view, [event]) == (f"1 message left out; `holdfast logs {view.run_id} --events` says why",)


@pytest.mark.slow
@pytest.mark.requirement("OBS-16", "PROC-04")
def test_OBS_16_a_slow_hook_does_not_hold_the_supervisor_up(drive: Drive) -> None:
    gate = f"{drive.workdir}/gate"
    os.mkfifo(gate)
    run = drive(*job("stay"), notify=Notify(command=("sh", "-c", f"read x < {gate}"), on=("running",)))
    run.ready()
    run.ask()
    run.wait_kind("ended")
    # The run is over and on record while the hook still hangs; now it may go.
    with open(gate, "w") as file:
        file.write("go\n")
    assert run.ended().outcome is Outcome.STOPPED
    assert run.events("notified")


@pytest.mark.slow
@pytest.mark.requirement("OBS-16")
@pytest.mark.parametrize("command", [("/no/such/hook",), ("false",)])
def test_OBS_16_a_hook_that_fails_is_logged_and_the_outcome_stays(drive: Drive, command: tuple[str, ...]) -> None:
    run = drive(*job("exit_with", 0), notify=Notify(command=command))
    assert run.ended().outcome is Outcome.SUCCEEDED
    assert command[0] in run.events("notified")[0]["data"]["problems"]["command"]


@pytest.fixture
def listener() -> Iterator[tuple[str, list[dict[str, object]]]]:
    """A web server that keeps what is posted to it."""
    got: list[dict[str, object]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Quiet."""

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/hook", got
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.requirement("OBS-16")
def test_OBS_16_the_webhook_gets_the_message_by_post(
    drive: Drive, listener: tuple[str, list[dict[str, object]]]
) -> None:
    url, got = listener
    run = drive.create(*job("exit_with", 0), notify=Notify(webhook=url))
    run.start()
    run.ended()
    wait_until(lambda: got)
    assert (got[0]["run_id"], got[0]["outcome"]) == (run.run_id, "succeeded")


@pytest.mark.slow
@pytest.mark.requirement("OBS-16")
def test_OBS_16_a_dead_webhook_is_logged(drive: Drive) -> None:
    run = drive(*job("exit_with", 0), notify=Notify(webhook="http://127.0.0.1:1/nobody"))
    assert run.ended().outcome is Outcome.SUCCEEDED
    assert "refused" in run.events("notified")[0]["data"]["problems"]["webhook"]


@pytest.mark.requirement("MON-17")
def test_MON_17_the_end_says_class_action_host_and_where_to_look(
    drive: Drive, listener: tuple[str, list[dict[str, object]]]
) -> None:
    url, got = listener
    run = drive(*job("exit_with", 3), notify=Notify(webhook=url))
    run.ended()
    wait_until(lambda: got)
    assert (got[0]["name"], got[0]["host"], got[0]["class"]) == (NAME, os.uname().nodename, "unknown")
    assert got[0]["look"] == f"holdfast show {run.run_id}"
    assert str(got[0]["text"]).startswith(f"{NAME} failed (unknown)\n")
    assert got[0]["action"]


@pytest.mark.requirement("MON-17")
def test_MON_17_what_was_not_delivered_is_said_at_the_end_and_in_show(drive: Drive) -> None:
    run = drive(*job("exit_with", 0), notify=Notify(), channels=Channels(slack=("secret:NONE",)))
    assert run.ended().outcome is Outcome.SUCCEEDED
    (line,) = list_undelivered(observe_run(run.run_dir), read_events(run.run_dir, 1))
    assert line.startswith("ended: not delivered: slack: secret NONE is not on this box")
    assert read_summary(observe_run(run.run_dir)).warnings == (line,)


@pytest.mark.requirement("MON-17")
def test_MON_17_a_supervisor_that_died_before_it_told_anybody_is_seen_by_show_and_the_patrol(
    drive: Drive, hook: str
) -> None:
    run = drive(*job("exit_with", 0), notify=Notify(command=(hook,)))
    run.ended()
    wait_until(lambda: not run.supervised())
    assert (list_undelivered(observe_run(run.run_dir), read_events(run.run_dir, 1)), untold(run.run_dir)) == ((), [])
    # As kill -9 behind the exit record leaves it.
    path = f"{run.run_dir}/attempts/1/{wire.EVENTS}"
    kept = [line for line in read_text(path).splitlines(keepends=True) if '"notified"' not in line]
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(kept)
    (line,) = list_undelivered(observe_run(run.run_dir), read_events(run.run_dir, 1))
    assert line == "ended: not delivered: its supervisor was gone before it could tell anybody"
    assert untold(run.run_dir) == ["untold"]
    # As a full disk leaves it: nothing is known of the end, so neither of its message.
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(line for line in kept if '"exit_recorded"' not in line)
    assert (list_undelivered(observe_run(run.run_dir), read_events(run.run_dir, 1)), untold(run.run_dir)) == ((), [])


def untold(run_dir: str) -> list[str]:
    """The rows of a patrol's judgement that need a person."""
    seen = gather_evidence(run_dir, LIMITS)
    judged = judge_run(os.path.basename(run_dir), seen.ending, seen.vitals)
    return list(judged.rows) if judged.escalate else []


@pytest.mark.slow
@pytest.mark.requirement("MON-22")
def test_MON_22_two_messages_in_two_periods_and_none_when_nothing_runs(
    drive: Drive, listener: tuple[str, list[dict[str, object]]]
) -> None:
    url, got = listener
    told = {"notify": Notify(webhook=url, on=()), "channels": Channels(every="1s")}
    run = drive(*job("beat_steps", 0.05), **told)
    wait_until(lambda: len(got) >= 2)
    assert {message["state"] for message in got} == {"status"}
    assert int(str(got[1]["step"])) > int(str(got[0]["step"]))
    run.ask()
    run.ended()
    assert not run.supervised()
    steps = drive(*job("beat_steps", 0.05), **{**told, "channels": Channels(every="1000000 steps")})
    steps.ready()
    before = len(got)
    steps.ask()
    steps.ended()
    assert len(got) == before
