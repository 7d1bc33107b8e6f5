"""Starting a sentinel that outlives this command: a fresh interpreter in a session of its own, without any marker."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING

from holdfast.model.errors import StorageError, UsageError

if TYPE_CHECKING:
    from holdfast.agent.sentinel import Condition
    from holdfast.agent.sentinel_records import Record

    from .runs import Found

ARMED_WITHIN_S = 15.0
OURS = frozenset({"HOLDFAST_RUNS", "HOLDFAST_LEASE_DIR", "HOLDFAST_RULES", "HOLDFAST_SIMULATED_GPUS"})
"""What of holdfast's own variables goes along. The others say "this process belongs to that run", which would make a
sentinel that is started from inside a job one of the job's processes."""


def check_words(command: str | None) -> None:
    """Refuse a command that cannot be split into words.

    Raises:
        UsageError: it cannot, or it is empty.
    """
    if command is None:
        return
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UsageError(f"--notify-command: {error}", hint="quote it like a shell command") from error
    if not words:
        raise UsageError("--notify-command is empty", hint="name a program, or leave the option out")


def spawn(found: Found, condition: Condition, life: str, notify_command: str | None) -> Record:
    """Start a detached sentinel and wait until it is armed, or has ended already; its record.

    Raises:
        StorageError: it did not get armed; the message has what it said.
    """
    from holdfast.agent import sentinel_records

    words = [sys.executable, "-m", "holdfast", "sentinel", found.run_dir, "--for", condition.text, "--max", life]
    if notify_command:
        words += ["--notify-command", notify_command]
    os.makedirs(sentinel_records.directory(), mode=0o700, exist_ok=True)
    path = sentinel_records.path_of(found.run_id, condition.text)
    log_path = path.removesuffix(".json") + ".log"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    log = os.open(log_path, flags, 0o600)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_") or name in OURS}
    try:
        child = subprocess.Popen(
            [*words, "--detached"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environ,
            start_new_session=True,
            cwd="/",
        )
    finally:
        os.close(log)
    return _wait_armed(child, path, log_path)


def _wait_armed(child: subprocess.Popen[bytes], path: str, log_path: str) -> Record:
    from holdfast.agent import sentinel_records
    from holdfast.agent.changes import Changes
    from holdfast.host import clock, files, processes

    deadline = clock.monotonic_s() + ARMED_WITHIN_S
    with Changes(sentinel_records.directory()) as changes:
        changes.watch(processes.identify(child.pid))
        while True:
            gone = child.poll() is not None
            record = sentinel_records.read(path)
            if record is not None and record.process.pid == child.pid:
                return record
            if gone or clock.monotonic_s() >= deadline:
                said = (files.read_text_or_none(log_path) or "nothing").strip()[-500:]
                raise StorageError(f"the sentinel was not armed; it said: {said}", hint="try it without -d")
            changes.wait(deadline - clock.monotonic_s())
