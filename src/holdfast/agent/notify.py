"""Telling people: a command of theirs, a webhook of theirs. Bounded, and never a reason for the run to change (OBS-16).

Each message is delivered by a child of its own while the supervisor goes on; only at the very end is there a wait, for
what is still under way.
"""

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
    from .loop import Loop
    from .record import Recorder

COMMAND_LIMIT_S = 20.0
WEBHOOK_LIMIT_S = 10.0
MARGIN_S = 1.0


class Notifier:
    """Delivers messages beside the loop."""

    def __init__(self, notify: Notify, recorder: Recorder, loop: Loop) -> None:
        """Nothing is sent before `send`."""
        self._notify, self._recorder, self._loop = notify, recorder, loop
        self._under_way: list[Offload] = []

    @property
    def pids(self) -> tuple[int, ...]:
        """The children that deliver right now: none of the job's."""
        return tuple(work.pid for work in self._under_way)

    def send(self, message: dict[str, object]) -> None:
        """Give `message` (JSON) to the command on stdin and to the webhook by POST; failures are only logged."""
        notify, body = self._notify, json.dumps({"schema": 1, **message}).encode()
        if not (notify.command or notify.webhook):
            return
        try:
            work = Offload(lambda: deliver(notify, body))
        except OSError as error:
            self._recorder.event("notified", problems={"all": str(error)})
            return
        self._under_way.append(work)
        self._loop.add(work.fileno(), lambda: self._take(work))

    def _take(self, work: Offload) -> None:
        if work.is_done():
            self._loop.remove(work.fileno())
            self._settle(work, 0.0)

    def _settle(self, work: Offload, limit_s: float) -> None:
        self._under_way.remove(work)
        try:
            problems = work.wait(limit_s)
        except OffloadFailed as error:
            problems = {"all": str(error)}
        self._recorder.event("notified", problems=problems)

    def finish(self) -> None:
        """Wait for what is under way, each within its own limits."""
        for work in list(self._under_way):
            self._loop.remove(work.fileno())
            self._settle(work, COMMAND_LIMIT_S + WEBHOOK_LIMIT_S + MARGIN_S)


def deliver(notify: Notify, body: bytes) -> dict[str, str | None]:
    """What went wrong on each way, None where nothing did. It waits: for a child (`Offload`)."""
    problems: dict[str, str | None] = {}
    if notify.command:
        problems["command"] = _run_command(notify.command, body)
    if notify.webhook:
        try:
            _post(notify.webhook, body)
            problems["webhook"] = None
        except (OSError, ValueError) as error:
            problems["webhook"] = f"{type(error).__name__}: {error}"
    return problems


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
