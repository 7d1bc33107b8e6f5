"""Telling people: the right message, once, by command and webhook; and never at the run's expense (OBS-16)."""

from __future__ import annotations

import http.server
import json
import os
import threading
from typing import TYPE_CHECKING

import pytest

from holdfast.model.job import Notify
from holdfast.model.run import Outcome
from tests.agent.driving import Drive, job, read_text
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

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
@pytest.mark.requirement("OBS-16")
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


@pytest.mark.requirement("OBS-16")
def test_OBS_16_a_dead_webhook_is_logged(drive: Drive) -> None:
    run = drive(*job("exit_with", 0), notify=Notify(webhook="http://127.0.0.1:1/nobody"))
    assert run.ended().outcome is Outcome.SUCCEEDED
    assert "refused" in run.events("notified")[0]["data"]["problems"]["webhook"]
