"""Python stacks of a run's processes without ptrace: asked for by the training library's private signal (DIAG-05).

The protocol is the one of ``training/reporting/stacks.py``. A process is asked only when all of this holds: it left a
record; a process of the target has exactly the recorded number in the recorded PID namespace, start time and boot; it
handles the signal *now* (an exec drops the handler, and then the signal would kill it); and it is neither stopped, nor
dead, nor in uninterruptible sleep, where it could not answer and would find the signal waiting later. Nobody else is
ever signalled. A record is the job's word, so it is not believed: its signal must be a real-time one (any other has a
meaning, and a job that handles SIGTERM would end), and the process must be of the account that wrote it, which counts
where root looks at somebody's run.

The stacks file may lie on a mount that does not answer, so the whole exchange happens in a disposable child.
"""

from __future__ import annotations

import json
import os
import re
import signal
import stat as stats
import time
from dataclasses import dataclass
from typing import Any

from ..evidence import Reading
from .snapshot import ProcessFacts

ANSWER_WITHIN_S = 0.5
BETWEEN_S = 0.2
QUIET_S = 0.03
MOST_BYTES = 256 * 1024
MOST_ASKED = 16
_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<function>.*)$')
_HEAD = re.compile(r"^(?:Current thread|Thread) 0x[0-9a-f]+(?: \[[^\]]*\])? \(most recent call first\)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Frame:
    """One Python frame."""

    file: str
    line: int
    function: str

    def describe(self) -> str:
        """For people."""
        return f"{self.function} ({self.file}:{self.line})"


@dataclass(frozen=True, slots=True)
class StackDump:
    """The stacks of one process at one moment: frames of each thread, the innermost first; the main thread is last.

    Source: CPython's Python/traceback.c walks the threads from the newest to the first.
    """

    pid: int
    text: str
    threads: tuple[tuple[Frame, ...], ...] = ()

    @property
    def main(self) -> tuple[Frame, ...]:
        """The frames of the main thread."""
        return self.threads[-1] if self.threads else ()

    @property
    def top(self) -> str:
        """Where the main thread is, for people; empty when that is not known."""
        return self.main[0].describe() if self.main else ""


@dataclass(frozen=True, slots=True)
class Asked:
    """What asking brought: stacks by pid, twice for each, and why there are none for others."""

    dumps: dict[int, tuple[StackDump, ...]]
    refused: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Record:
    path: str
    number: int
    pid: int
    start_ticks: int
    boot_id: str
    namespace: int
    stacks: str
    uid: int


def ask_for_stacks(
    processes: tuple[ProcessFacts, ...], records: tuple[str, ...], *, limit_s: float = ANSWER_WITHIN_S, times: int = 2
) -> Reading[Asked]:
    """Ask these processes, proven to be a run's own, for their stacks, `times` times; each time bounded.

    `records` are the ``stacks*.json`` of the attempt. Without one nobody is asked, and that is the reason given.
    """
    from ...host.offload import Offload, OffloadFailed

    if not records:
        return Reading(
            unread="no process left a record of a stack-dump signal (holdfast's training library writes one)"
        )
    work = Offload(lambda: _ask_all(processes, records[:MOST_ASKED], limit_s, times))
    try:
        answer = work.wait((limit_s + BETWEEN_S) * times + 1.0)
    except OffloadFailed as error:
        return Reading(unread=f"asking for stacks failed: {error}")
    dumps: dict[int, tuple[StackDump, ...]] = {}
    for pid, text in answer["dumps"]:
        dumps[pid] = (*dumps.get(pid, ()), parse_dump(pid, text))
    return Reading(Asked(dumps, tuple(answer["refused"])))


def parse_dump(pid: int, text: str) -> StackDump:
    """The frames in faulthandler's text."""
    from ...core.redact import redact_text

    threads: list[list[Frame]] = []
    for line in text.splitlines():
        if _HEAD.match(line):
            threads.append([])
            continue
        found = _FRAME.match(line)
        if found is not None and threads:
            number = found["line"]
            threads[-1].append(Frame(found["file"], int(number) if number.isdigit() else 0, found["function"]))
    return StackDump(pid, redact_text(text), tuple(tuple(frames) for frames in threads))


def _ask_all(
    processes: tuple[ProcessFacts, ...], records: tuple[str, ...], limit_s: float, times: int
) -> dict[str, list[Any]]:
    dumps: list[tuple[int, str]] = []
    refused: list[str] = []
    willing: list[tuple[ProcessFacts, _Record]] = []
    for path in records:
        record, why = _read_record(path)
        process = None if record is None else _find(processes, record)
        if record is None:
            refused.append(f"{path}: {why}")
        elif process is None:
            refused.append(f"{path}: names pid {record.pid}, which is no living process of this run any more")
        else:
            willing.append((process, record))
    for turn in range(times):
        if turn:
            time.sleep(BETWEEN_S)
        # All are asked before any answer is awaited, so that the stacks of ranks belong to one moment.
        asked = [(process, record, *_ask(process, record)) for process, record in willing]
        end = time.monotonic() + limit_s
        for process, record, start, why in asked:
            if start is None:
                if not turn:
                    refused.append(why)
                continue
            text = _collect(record.stacks, start, end)
            if text:
                dumps.append((process.pid, text))
            elif not turn:
                refused.append(f"pid {process.pid} was asked and wrote nothing within {limit_s:g} s")
    return {"dumps": list(dumps), "refused": refused}


def _read_record(path: str) -> tuple[_Record | None, str]:
    from ...host import files

    try:
        uid = os.lstat(path).st_uid
        value = json.loads(files.read_bytes(path, limit=1 << 16))
        record = _Record(
            path=path,
            number=int(value["signal"]),
            pid=int(value["pid"]),
            start_ticks=int(value["start_ticks"]),
            boot_id=str(value["boot_id"]),
            namespace=int(value["pid_namespace"]),
            stacks=f"{os.path.dirname(path)}/{os.path.basename(str(value['stacks']))}",
            uid=uid,
        )
    except OSError as error:
        return None, error.strerror or str(error)
    except (ValueError, KeyError, TypeError, RecursionError):
        return None, "not a record in the form that we know"
    if not signal.SIGRTMIN <= record.number <= signal.SIGRTMAX:
        return None, f"names signal {record.number}, which is no private one"
    if record.boot_id != files.read_text_or_none("/proc/sys/kernel/random/boot_id"):
        return None, "was written before the last boot"
    return record, ""


def _find(processes: tuple[ProcessFacts, ...], record: _Record) -> ProcessFacts | None:
    """The process of the target that wrote the record: by its innermost number, namespace and start time."""
    from ...host.namespaces import read_namespace

    for process in processes:
        inner = process.inner_pids[-1] if process.inner_pids else process.pid
        if (
            inner == record.pid
            and process.start_ticks == record.start_ticks
            and process.uid == record.uid
            and not process.is_dead
            and read_namespace(process.pid) == record.namespace
        ):
            return process
    return None


def _ask(process: ProcessFacts, record: _Record) -> tuple[int | None, str]:
    """Send the signal. Answers the size of the stacks file before; None and the reason when it was not sent."""
    from ...host import clock, processes
    from ...model.identity import ProcessId

    who = f"pid {process.pid}"
    now = processes.read_stat(process.pid)
    if now is None or now.start_ticks != process.start_ticks:
        return None, f"{who} has ended"
    if now.state in "TtZXD":
        return None, f"{who} is in state {now.state} and could not answer"
    if not processes.handles_signal(process.pid, record.number):
        return None, f"{who} does not handle signal {record.number} now: not asked, the signal could end it"
    try:
        facts = os.lstat(record.stacks)
    except OSError as error:
        return None, f"{record.stacks}: {error.strerror}"
    if not stats.S_ISREG(facts.st_mode):
        return None, f"{record.stacks} is no regular file"
    try:
        sent = processes.send_signal(ProcessId(process.pid, process.start_ticks, clock.boot_id()), record.number)
    except OSError as error:
        return None, f"{who} could not be asked: {error.strerror}"
    return (facts.st_size, "") if sent else (None, f"{who} has ended")


def _collect(path: str, start: int, end: float) -> str:
    """What was added to the file since `start`: read until it has been quiet for a moment, or the time is over."""
    size, quiet_since = start, time.monotonic()
    while (now := time.monotonic()) < end:
        try:
            grown = os.lstat(path).st_size
        except OSError:
            return ""
        if grown != size:
            size, quiet_since = grown, now
        elif size > start and now - quiet_since >= QUIET_S:
            break
        time.sleep(0.005)
    if size <= start:
        return ""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return os.pread(descriptor, min(size - start, MOST_BYTES), start).decode("utf-8", "replace")
    finally:
        os.close(descriptor)
