"""Telling people: a command of theirs, a webhook of theirs. Bounded, and never a reason for the run to change (OBS-16)."""

from __future__ import annotations

import json
import os
import select
import signal
from typing import TYPE_CHECKING

from ..host.clock import monotonic_s
from ..host.offload import Offload, OffloadFailed, close_all_except

if TYPE_CHECKING:
    from ..model.job import Notify
    from .record import Recorder

COMMAND_LIMIT_S = 20.0
WEBHOOK_LIMIT_S = 10.0


def send(notify: Notify, message: dict[str, object], recorder: Recorder) -> None:
    """Give `message` (JSON) to the command on stdin and to the webhook by POST; failures are logged and forgotten."""
    body = json.dumps({"schema": 1, **message}).encode()
    if notify.command:
        problem = _run_command(notify.command, body)
        recorder.event("notified", channel="command", problem=problem)
    if notify.webhook:
        try:
            Offload(lambda: _post(notify.webhook or "", body)).wait(WEBHOOK_LIMIT_S)
            problem = None
        except OffloadFailed as error:
            problem = str(error)
        recorder.event("notified", channel="webhook", problem=problem)


def _run_command(command: tuple[str, ...], body: bytes) -> str | None:
    """Run a hook; what went wrong, in words, or None."""
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        _become_hook(command, read_end)
    os.close(read_end)
    try:
        os.write(write_end, body[: select.PIPE_BUF])
    except BrokenPipeError:
        pass
    os.close(write_end)
    return _await_hook(pid, command[0])


def _become_hook(command: tuple[str, ...], stdin: int) -> None:
    try:
        os.setsid()
        os.dup2(stdin, 0)
        close_all_except({0, 1, 2})
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        os.execvp(command[0], command)
    finally:
        os._exit(127)


def _await_hook(pid: int, name: str) -> str | None:
    descriptor = os.pidfd_open(pid)
    deadline = monotonic_s() + COMMAND_LIMIT_S
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    try:
        while not poller.poll(max(0.0, deadline - monotonic_s()) * 1000):
            if monotonic_s() >= deadline:
                # The hook leads a session of its own (setsid above), so this is its whole group and nothing else.
                os.killpg(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                return f"{name} took longer than {COMMAND_LIMIT_S:.0f} s and was ended"
    finally:
        os.close(descriptor)
    try:
        _, status = os.waitpid(pid, 0)
    except ChildProcessError:
        return None
    code = os.waitstatus_to_exitcode(status)
    return None if code == 0 else f"{name} ended with {code}"


def _post(url: str, body: bytes) -> int:
    import urllib.request

    if not url.startswith(("http://", "https://")):
        raise ValueError(f"{url!r} is not an http(s) address")
    request = urllib.request.Request(url, data=body, headers={"Content-Type": "application/json"}, method="POST")  # noqa: S310 - checked above
    with urllib.request.urlopen(request, timeout=WEBHOOK_LIMIT_S) as answer:  # noqa: S310 - as above
        return int(answer.status)
