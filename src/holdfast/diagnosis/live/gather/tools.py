"""py-spy, gdb and strace, where they are installed and the caller consents (`deep`).

What they may do to a job decides how they are run: py-spy only looks (``--nonblocking``); gdb and strace stop the
target for moments. Never on a process with a thread in uninterruptible sleep: the tool would attach and then not end
(seen: strace ignored SIGTERM for eight minutes). Each run is bounded, in a process group of its own that is killed as
a whole; after each the target's state is read, and a process that the tool left stopped is continued, if it is ours to
continue and ran before. Source: ptrace(2); py-spy issues 390 and 416 for targets left stopped.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import time
from enum import Enum

from holdfast.core.job.redact import redact_text
from holdfast.host import clock
from holdfast.host.files.files import read_text_or_none
from holdfast.host.process import pidfd, processes
from holdfast.model.identity import ProcessId
from holdfast.model.record import record

from .snapshot import ProcessFacts

MOST_OUTPUT_BYTES = 64 * 1024
GRACE_S = 0.5
_DENIED = ("permission denied", "operation not permitted", "could not attach", "ptrace_scope", "eperm")


class Tool(str, Enum):
    """The tools that are used when they are there."""

    PY_SPY = "py-spy"
    GDB = "gdb"
    STRACE = "strace"


ADDS = {
    Tool.PY_SPY: "Python stacks without the training library (pip install py-spy)",
    Tool.GDB: "stacks of native code (the system's package gdb)",
    Tool.STRACE: "the system calls of a running process (the system's package strace)",
}
_LIMITS_S = {Tool.PY_SPY: 3.0, Tool.GDB: 10.0, Tool.STRACE: 1.0}


@record
class ToolRun:
    """What one tool said about one process. `problem` is why there is nothing, or what went wrong.

    `left_stopped` says that it left the target stopped, `continued` that we continued it.
    """

    tool: Tool
    pid: int
    text: str = ""
    problem: str = ""
    took_s: float = 0.0
    left_stopped: bool = False
    continued: bool = False


def find_tools(path: str | None = None) -> dict[Tool, str]:
    """The tools on PATH, by their absolute paths."""
    found = {tool: shutil.which(tool.value, path=path) for tool in Tool}
    return {tool: place for tool, place in found.items() if place is not None}


def describe_missing(path: str | None = None) -> tuple[str, ...]:
    """For each tool that is not installed, what installing it would add."""
    present = find_tools(path)
    return tuple(f"{tool.value} is not installed; it would add {ADDS[tool]}" for tool in Tool if tool not in present)


def run_tools(process: ProcessFacts, *, ours: bool, tools: dict[Tool, str] | None = None) -> tuple[ToolRun, ...]:
    """Run py-spy, strace and gdb on one process of our own account. `ours`: it may be continued if left stopped."""
    present = find_tools() if tools is None else tools
    commands: tuple[tuple[Tool, tuple[str, ...]], ...] = (
        (Tool.PY_SPY, ("dump", "--nonblocking", "--pid", str(process.pid))),
        (Tool.STRACE, ("-f", "-q", "-tt", "-s", "64", "-p", str(process.pid))),
        (Tool.GDB, ("-p", str(process.pid), "-batch", "-nx", "-iex", "set auto-load off",
                    "-iex", "set debuginfod enabled off", "-ex", "thread apply all bt 30")),
    )  # fmt: skip
    return tuple(
        run_tool(tool, (present[tool], *argv), process, ours=ours) for tool, argv in commands if tool in present
    )


def run_tool(
    tool: Tool, argv: tuple[str, ...], process: ProcessFacts, *, ours: bool, limit_s: float | None = None
) -> ToolRun:
    """One tool on one process: bounded, and the target's state is put right afterwards."""
    before = _states(process)
    if before is None:
        return ToolRun(tool, process.pid, problem="the process has ended")
    if "D" in before:
        why = "a thread is in uninterruptible sleep: attaching could hang the tool and does not help"
        return ToolRun(tool, process.pid, problem=why)
    begun = time.monotonic()
    try:
        text, problem = _run_bounded(
            argv, _LIMITS_S[tool] if limit_s is None else limit_s, interrupt=tool is Tool.STRACE
        )
    except OSError as error:
        return ToolRun(tool, process.pid, problem=f"{argv[0]} could not be started: {error.strerror}")
    took = time.monotonic() - begun
    stopped, continued = _put_right(process, before, ours=ours)
    lowered = text.lower()
    if any(word in lowered for word in _DENIED) and len(text) < 2000:
        problem = f"permission denied: {text.strip().splitlines()[-1][:200]}"
    return ToolRun(tool, process.pid, redact_text(text).expandtabs(), problem, took, stopped, continued)


def _states(process: ProcessFacts) -> str | None:
    """The state letters of its threads; None when it is not there any more."""
    stat = processes.read_stat(process.pid)
    if stat is None or stat.start_ticks != process.start_ticks:
        return None
    letters = [stat.state]
    try:
        for tid in os.listdir(f"/proc/{process.pid}/task"):
            with open(f"/proc/{process.pid}/task/{tid}/stat", "rb") as file:
                letters.append(file.read().rpartition(b")")[2].split()[0].decode("ascii", "replace"))
    except (OSError, IndexError):
        pass
    return "".join(letters)


def _put_right(process: ProcessFacts, before: str, *, ours: bool) -> tuple[bool, bool]:
    """Whether the tool left the target stopped, and whether we continued it."""
    if "T" in before or "t" in before:
        return False, False
    end = time.monotonic() + GRACE_S
    while _is_stopping(process):
        if time.monotonic() >= end:
            break
        time.sleep(0.01)
    else:
        return False, False
    if not ours:
        return True, False
    try:
        sent = pidfd.send_signal(ProcessId(process.pid, process.start_ticks, clock.boot_id()), signal.SIGCONT)
    except OSError:
        return True, False
    return True, sent


def _is_stopping(process: ProcessFacts) -> bool:
    """Whether it is stopped, or a stop signal waits for it that it has not acted on yet. Source: proc_pid_status(5)."""
    # The pending signal first: it is gone in the moment in which the state shows.
    text = read_text_or_none(f"/proc/{process.pid}/status") or ""
    pending = [line.split()[1] for line in text.splitlines() if line.startswith(("ShdPnd:", "SigPnd:"))]
    waits = any(int(mask, 16) >> (signal.SIGSTOP - 1) & 1 for mask in pending)
    now = _states(process)
    return now is not None and (waits or "T" in now or "t" in now)


def _run_bounded(argv: tuple[str, ...], limit_s: float, *, interrupt: bool) -> tuple[str, str]:
    """Run a tool in a process group of its own for at most `limit_s`, then end the group.

    A tool that runs until it is told (`interrupt`) is told by SIGINT and has `GRACE_S` to detach; that is no problem.

    Returns:
        Its output, both streams, bounded; and what went wrong.
    """
    reader, writer = os.pipe2(os.O_CLOEXEC)
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_DUP2, writer, 1),
        (os.POSIX_SPAWN_DUP2, writer, 2),
    ]
    environ = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "LANG", "TMPDIR")}
    try:
        # The signals that Python ignores would stay ignored in the tool.
        pid = os.posix_spawn(
            argv[0], argv, {**environ, "LC_ALL": "C"}, file_actions=actions, setpgroup=0,
            setsigdef=(signal.SIGPIPE, signal.SIGINT, signal.SIGTERM),
        )  # fmt: skip
    except OSError:
        os.close(reader)
        raise
    finally:
        os.close(writer)
    try:
        data, late = _read_until(reader, limit_s)
        if late and interrupt:
            os.killpg(pid, signal.SIGINT)
            more, late = _read_until(reader, GRACE_S)
            data += more
    finally:
        # Our own child, not reaped yet, so the group's number is still its own.
        os.killpg(pid, signal.SIGKILL)
        os.close(reader)
        os.waitpid(pid, 0)
    problem = f"it was not done within {limit_s:g} s and was ended" if late else ""
    return data[:MOST_OUTPUT_BYTES].decode("utf-8", "replace"), problem


def _read_until(descriptor: int, limit_s: float) -> tuple[bytes, bool]:
    """What comes until the end of the stream; True when the time was over before."""
    data, end = bytearray(), time.monotonic() + limit_s
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    while (left := end - time.monotonic()) > 0:
        if not poller.poll(left * 1000):
            break
        chunk = os.read(descriptor, 1 << 16)
        if not chunk:
            return bytes(data), False
        if len(data) < MOST_OUTPUT_BYTES:
            data += chunk
    return bytes(data), True
