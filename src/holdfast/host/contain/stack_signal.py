"""The private signal that has a training process write its Python stacks: who may be sent it, and how.

The protocol is the one of ``training/reporting/stacks.py``: a process that handles the signal leaves a record beside
its stacks file. Signalled is only who holds all of this: a process of the caller's own list has exactly the recorded
number in the recorded PID namespace, start time and boot; it runs as the account that owns the record, which counts
where root looks at somebody's run; it handles the signal *now* (an exec drops the handler, and then the signal would
kill it); and it is neither stopped, nor dead, nor in uninterruptible sleep, where it could not answer and would find
the signal waiting later. A record is the job's word, so nothing in it is believed: its signal must be a real-time one
(any other has a meaning, and a job that handles SIGTERM would end), and the stacks file is the one beside it.

It must not know why anybody asks, nor how long an answer is awaited. Records may lie on a mount that does not answer.
"""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Iterable
from typing import Any

from holdfast.host.clock import is_other_boot
from holdfast.host.files import files
from holdfast.host.process.pidfd import send_signal
from holdfast.host.process.processes import handles_signal, read_stat
from holdfast.model import wire
from holdfast.model.identity import ProcessId
from holdfast.model.record import record

from .namespaces import read_namespace

LARGEST_RECORD_BYTES = 4096
UNABLE_STATES = "TtZXD"
"""Stopped, traced, dead, in uninterruptible sleep. Source: proc_pid_stat(5)."""


class StacksRefused(Exception):
    """Nobody was sent a signal, and why, in words."""


@record
class StackRecord:
    """What a process said of itself: `pid` as it sees it, in the PID namespace with the inode `namespace`.

    `stacks` is the path of its stacks file, `uid` the account that owns the record.
    """

    number: int
    pid: int
    start_ticks: int
    boot_id: str
    namespace: int
    stacks: str
    uid: int


def read_record(path: str) -> StackRecord:
    """The record at `path`, of this boot.

    Raises:
        NotAsked: it cannot be read, or is not in the form.
    """
    try:
        facts = os.lstat(path)
        if not stat.S_ISREG(facts.st_mode):
            raise StacksRefused("is no regular file")
        value = wire.parse_object(files.read_bytes(path, limit=LARGEST_RECORD_BYTES), path)
    except OSError as error:
        raise StacksRefused(error.strerror or str(error)) from error
    except wire.WireError as error:
        raise StacksRefused("not a record in the form that we know") from error
    numbers: list[Any] = [value.get(key) for key in ("signal", "pid", "start_ticks", "pid_namespace")]
    boot, name = value.get("boot_id"), f"{os.path.splitext(path)[0]}.txt"
    if not (all(type(number) is int for number in numbers) and isinstance(boot, str)):
        raise StacksRefused("not a record in the form that we know")
    if value.get("stacks") != os.path.basename(name):
        raise StacksRefused(f"names another file than {name}")
    number, pid, start_ticks, namespace = numbers
    if not signal.SIGRTMIN <= number <= signal.SIGRTMAX:
        raise StacksRefused(f"names signal {number}, which is no private one")
    if is_other_boot(boot.strip()):
        raise StacksRefused("was written before the last boot")
    return StackRecord(number, pid, start_ticks, boot.strip(), namespace, name, facts.st_uid)


def find_writer(record: StackRecord, processes: Iterable[ProcessId]) -> ProcessId | None:
    """Which of these processes wrote the record; None when it is none of them, or that cannot be told."""
    for process in processes:
        if (
            (process.start_ticks, process.boot_id) == (record.start_ticks, record.boot_id)
            and _read_status(process.pid) == (record.pid, record.uid)
            and read_namespace(process.pid) == record.namespace
        ):
            return process
    return None


def request_stacks(process: ProcessId, record: StackRecord) -> int:
    """Send the signal to the process that wrote the record; the size of its stacks file before.

    Raises:
        NotAsked: it has ended, or could not answer.
    """
    who, now = f"pid {process.pid}", read_stat(process.pid)
    if now is None or now.start_ticks != process.start_ticks:
        raise StacksRefused(f"{who} has ended")
    if now.state in UNABLE_STATES:
        raise StacksRefused(f"{who} is in state {now.state} and could not answer")
    if not handles_signal(process.pid, record.number):
        raise StacksRefused(f"{who} does not handle signal {record.number} now: not asked, the signal could end it")
    try:
        facts = os.lstat(record.stacks)
    except OSError as error:
        raise StacksRefused(f"{record.stacks}: {error.strerror}") from error
    if not stat.S_ISREG(facts.st_mode):
        raise StacksRefused(f"{record.stacks} is no regular file")
    try:
        sent = send_signal(process, record.number)
    except OSError as error:
        raise StacksRefused(f"{who} could not be asked: {error.strerror}") from error
    if not sent:
        raise StacksRefused(f"{who} has ended")
    return facts.st_size


def _read_status(pid: int) -> tuple[int, int] | None:
    """A process's number in its own PID namespace, and the account that owns what it writes (the last of Uid).

    Source: proc_pid_status(5), NSpid and Uid.
    """
    text = files.read_text_or_none(f"/proc/{pid}/status") or ""
    lines = [line.split() for line in text.splitlines() if line.startswith(("NSpid:", "Uid:"))]
    last = {words[0]: words[-1] for words in lines}
    try:
        return int(last["NSpid:"]), int(last["Uid:"])
    except (KeyError, ValueError):
        return None
