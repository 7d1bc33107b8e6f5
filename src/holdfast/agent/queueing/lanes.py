"""A lane: one light supervisor that works off several claimed lean cells, one after the other (docs/queue.md).

A fork for each cell costs more than a short command does. A lane is forked once for some cells of one group, all of
them claimed before; each still has its own marker, lock and record, so of a lane that was killed every cell is judged
as always. Two things decide which cells a lane may begin:

- *Tokens*: a pipe with one byte for each cell. Whoever reads the byte has the cell, and the kernel gives it to one
  reader: the lane that begins it, or the worker that takes it back.
- The *fence*: ``lanes.lock`` of the queue holds the word of the worker at work. A lane holds the file's lock, shared,
  from reading that word until the marker of its next cell is in place; a new worker holds it exclusively to write its
  own. So once that is done, no lane of an earlier worker begins anything.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
from typing import TYPE_CHECKING

from ...host import files
from ...host.clock import boot_id, monotonic_s, utc_now
from ...host.processes import identify_self
from ...model import wire
from ...model.errors import StorageError
from ...model.run import SCHEMA
from . import light

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .lean import Plan

FENCE = "lanes.lock"
FENCE_WAIT_S = 2.0
MOST_CELLS = 16
"""So many cells one lane has at most; a token is one byte."""
_TOKENS, _FENCE = 4, 5
"""Descriptors of a lane, beside that of the marker."""


class Fence:
    """Keeps the lanes of earlier workers from beginning anything: each worker makes one before it looks at cells."""

    def __init__(self, directory: str) -> None:
        """Put up a new word.

        Raises:
            StorageError: it cannot be written, or a lane is stopped in the very moment of a begin.
        """
        self.path, self.word = f"{directory}/{FENCE}", os.urandom(8).hex()
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            descriptor = os.open(self.path, flags, 0o600)
            try:
                _lock(descriptor)
                os.pwrite(descriptor, self.word.encode(), 0)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise StorageError(
                f"{self.path}: {error.strerror}", hint="see df, and whether a lane is stopped"
            ) from error


def _lock(descriptor: int) -> None:
    """Lock it exclusively; a lane holds it for a fraction of a millisecond, unless somebody has stopped it.

    Raises:
        BlockingIOError: it was held all the time.
    """
    import time

    end_s = monotonic_s() + FENCE_WAIT_S
    while monotonic_s() < end_s:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.002)
        else:
            return
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def fork(plans: Sequence[Plan], fence: Fence) -> tuple[int, int]:
    """Fork a lane for these cells, at most `MOST_CELLS`: its pid, and the end of the pipe to take cells back from.

    Raises:
        OSError: no process or no pipe can be had; nothing was begun.
    """
    read_end, write_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        os.write(write_end, bytes(range(len(plans))))
        pid = os.fork()
    except OSError:
        os.close(read_end)
        raise
    finally:
        os.close(write_end)
    if pid == 0:
        _work(plans, read_end, fence)
    return pid, read_end


def take_back(tokens: int) -> list[int]:
    """The numbers of the cells that the lane has not taken; it will not begin them."""
    try:
        return list(os.read(tokens, MOST_CELLS))
    except BlockingIOError:
        return []


def _work(plans: Sequence[Plan], tokens: int, fence: Fence) -> None:
    """In the fork: one cell after the other, then leave. Never returns."""
    code = light.EXIT_LOST
    try:
        _detach(tokens, fence, plans[0].log_path)
        me, niced = wire.encode(identify_self()), False
        while number := os.read(_TOKENS, 1):
            plan = plans[number[0]]
            if niced and plan.nice is None:
                # A priority is only ever lowered: this one and the rest are begun by the worker.
                break
            niced = plan.nice is not None
            # That of the command before is not for our files.
            os.umask(0o077)
            if not _begin(plan, me, fence.word):
                continue
            _log_to(plan.log_path)
            if not light.run(plan, {"supervisor": me, "started_at": utc_now()}, stop_path=stop_path(plan)):
                break
        code = 0
    except BaseException:  # noqa: BLE001 - the last barrier of a forked child; what it had begun counts as lost
        import traceback

        files.write_all(2, traceback.format_exc().encode())
    finally:
        os._exit(code)


def _detach(tokens: int, fence: Fence, log_path: str) -> None:
    """As a light supervisor of one cell, with the tokens and the fence in the place of a marker."""
    held = fcntl.fcntl(tokens, fcntl.F_DUPFD_CLOEXEC, _FENCE + 1)
    opened = os.open(fence.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    lock = fcntl.fcntl(opened, fcntl.F_DUPFD_CLOEXEC, _FENCE + 1)
    light.leave_worker(log_path)
    for source, target in ((held, _TOKENS), (lock, _FENCE)):
        os.dup2(source, target, inheritable=False)
    light.close_from(_FENCE + 1)


def _log_to(path: str) -> None:
    log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)


def stop_path(plan: Plan) -> str:
    """The file that says that a TERM is meant for this cell: a lane may have gone on to the next one meanwhile."""
    return f"{os.path.dirname(plan.record_path)}/.{plan.identity['run_id']}.stop"


def _begin(plan: Plan, me: object, word: str) -> bool:
    """Put a cell's marker in place, with all lines; False when it is not to begin any more. Leaves when fenced off."""
    fcntl.flock(_FENCE, fcntl.LOCK_SH)
    try:
        if os.pread(_FENCE, 64, 0).decode() != word:
            os._exit(0)
        if _is_known(plan):
            return False
        directory = os.path.dirname(plan.record_path)
        temporary = f"{directory}/.{plan.identity['run_id']}.tmp"
        # Of the same claim there can be one of a start that was cut off; nobody else begins it while we hold the fence.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        marker = os.open(temporary, flags, 0o600)
        fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
        now = utc_now()
        first = {"schema": SCHEMA, **plan.identity, "boot_id": boot_id(), "claimed_at": now, "lane": True}
        second = {"supervisor": me, "started_at": now}
        files.write_all(marker, f"{json.dumps(first)}\n{json.dumps(second)}\n".encode())
        os.dup2(marker, light.KEPT, inheritable=False)
        os.close(marker)
        os.rename(temporary, plan.record_path)
    finally:
        fcntl.flock(_FENCE, fcntl.LOCK_UN)
    return True


def _is_known(plan: Plan) -> bool:
    """Whether there is a marker or a record of this claim already: somebody has cancelled it."""
    try:
        found = files.read_bytes(plan.record_path)
    except FileNotFoundError:
        return False
    return str(plan.identity["run_id"]).encode() in found


def end(pid: int) -> None:
    """Reap a lane that has just been forked and is of no use: it was given no descriptor to be watched by."""
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
