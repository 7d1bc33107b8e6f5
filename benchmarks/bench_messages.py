"""How soon people hear of the end of a job: from its process's end to the message at a webhook on loopback.

A failure is judged before it is told, so both ends are measured. Nothing stays when the job is over.
"""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING

from benchmarks.measuring import CannotMeasure, descendants, end_descendants, reap, spread, wait_until
from benchmarks.ours import Holdfast
from benchmarks.peers import Place
from holdfast.host.clock import parse_utc

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.measuring import Row

LEAVE_S = 5.0
ENDS = {"a success": ("true",), "a failure, judged": ("sh", "-c", "sleep 1; exit 3")}
"""The failing one is past what `run -d` waits for: that would fail, too."""


def measure(directory: str, nvml: Mapping[str, str], *, rounds: int) -> dict[str, Row]:
    """The way of `rounds` messages for each kind of end."""
    got: dict[str, float] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            now = time.time()
            message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            got[message["run_id"]] = now
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Quiet."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    found: dict[str, Row] = {}
    for number, (name, program) in enumerate(ENDS.items()):
        options = ("--notify-webhook", f"http://127.0.0.1:{server.server_port}/", "--retries", "0")
        queue = Holdfast(Place(f"{directory}/{number}", nvml), options=options)
        # Its own count of messages: no more than thirty go out in an hour.
        queue.environ["XDG_STATE_HOME"] = f"{directory}/{number}-state"
        try:
            times = [_tell(queue, program, got) for _ in range(rounds)]
            found[name] = {**spread(times), "left": _count_left()}
        except CannotMeasure as problem:
            found[name] = {"note": str(problem)}
        finally:
            end_descendants()
    server.shutdown()
    server.server_close()
    return found


def _tell(queue: Holdfast, program: Sequence[str], got: Mapping[str, float]) -> float:
    """Seconds from the end of the job's process to the message."""
    queue.submit(program, cards=0)
    run_id = queue.run_ids[-1]
    wait_until(lambda: run_id in got and queue.has_ended(run_id), 60, "a message")
    with open(f"{queue.attempt(run_id)}/exit.json", encoding="utf-8") as file:
        ended = json.load(file)["status"]["ended_at"]
    return got[run_id] - parse_utc(ended)


def _count_left() -> int:
    """How many processes of all these runs are there still a while after the last message: none is meant to be."""
    deadline = time.monotonic() + LEAVE_S
    while descendants() and time.monotonic() < deadline:
        reap()
        time.sleep(0.05)
    return len(descendants())
