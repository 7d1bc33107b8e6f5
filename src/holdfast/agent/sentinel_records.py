"""Which sentinels are armed: one record each, in the user's own state directory. One per run and condition (U16).

A record names its process by identity, so that nothing else is ever taken for it, and its host, because a home
directory may be shared between hosts. Only its own sentinel writes into a record; who supersedes it ends it first.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import select
import signal
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..host import clock, files, processes
from ..model import wire
from ..model.errors import ResourceBusy, StorageError
from ..model.identity import ProcessId
from ..store.index import state_directory

if TYPE_CHECKING:
    from collections.abc import Iterator

TERM_WAIT_S = 2.0
"""How long a sentinel has to leave after TERM before KILL; one that was stopped by a signal never does."""
LOCK_WAIT_S = 10.0


@dataclass(frozen=True, slots=True)
class Record:
    """One sentinel. `until` is when its life ends (epoch seconds); `outcome` is empty while it waits.

    `words` say how it ended; `log` is where a detached one writes what goes wrong.
    """

    run_id: str
    run_dir: str
    attempt: int
    condition: str
    host: str
    process: ProcessId
    armed_at: str
    until: float
    detached: bool = False
    outcome: str = ""
    words: str = ""
    exit_code: int | None = None
    ended_at: str = ""


def directory() -> str:
    """Where the records are."""
    return f"{state_directory()}/sentinels"


def path_of(run_id: str, condition: str) -> str:
    """The record of a run's sentinel for a condition."""
    digest = hashlib.sha256(condition.encode("utf-8", "surrogateescape")).hexdigest()[:8]
    word = "".join(letter for letter in condition.partition("=")[0] if letter.isalnum())
    return f"{directory()}/{run_id}.{word}-{digest}.json"


def read(path: str) -> Record | None:
    """One record; None when there is none.

    Raises:
        StorageError: it is there and cannot be read.
    """
    try:
        return wire.from_bytes(Record, files.read_bytes(path), path)
    except FileNotFoundError:
        return None
    except (OSError, wire.WireError) as error:
        raise StorageError(f"{path}: {error}", hint="holdfast reconcile removes records that cannot be read") from error


def list_all() -> list[tuple[str, Record | None]]:
    """Every record by path; None for one that cannot be read."""
    try:
        names = sorted(os.listdir(directory()))
    except FileNotFoundError:
        return []
    found: list[tuple[str, Record | None]] = []
    for name in names:
        if name.endswith(".json") and not name.startswith("."):
            path = f"{directory()}/{name}"
            try:
                found.append((path, read(path)))
            except StorageError:
                found.append((path, None))
    return found


def discard(path: str) -> None:
    """Remove a record and what its sentinel said.

    Raises:
        OSError: the record cannot be removed.
    """
    files.remove_quietly(f"{path.removesuffix('.json')}.log")
    try:
        os.unlink(path)
    except FileNotFoundError:
        return


def is_waiting(record: Record) -> bool:
    """Whether exactly this sentinel is at work on this host."""
    return not record.outcome and record.host == os.uname().nodename and processes.is_alive(record.process)


def arm(record: Record) -> Record | None:
    """Take the place of this run's sentinel for the same condition; answers the one that was ended for it.

    Raises:
        ResourceBusy: another is being armed, and does not get done.
        StorageError: an earlier one does not end, or the record cannot be written.
    """
    os.makedirs(directory(), mode=0o700, exist_ok=True)
    path = path_of(record.run_id, record.condition)
    with _locked():
        try:
            old = read(path)
        except StorageError:
            # Nothing can be learnt from it, and its place is ours.
            old = None
        superseded = old if old is not None and is_waiting(old) and old.process != record.process else None
        if superseded is not None and not end(superseded.process):
            raise StorageError(f"the earlier sentinel (pid {superseded.process.pid}) does not end", hint="look at it")
        files.commit(path, wire.to_bytes(record))
    return superseded


def finish(record: Record, outcome: str, words: str, exit_code: int) -> None:
    """Record how it ended, or, when somebody looks on anyway (not detached), that it is no more.

    Only while the record is this sentinel's own. What cannot be written is left to `holdfast reconcile`.
    """
    path = path_of(record.run_id, record.condition)
    try:
        found = read(path)
        if found is None or found.process != record.process:
            return
        if not record.detached:
            discard(path)
            return
        done = replace(record, outcome=outcome, words=words, exit_code=exit_code, ended_at=clock.utc_now())
        files.commit(path, wire.to_bytes(done))
    except (OSError, StorageError):
        return


def end(process: ProcessId) -> bool:
    """End exactly this process, gently first; whether it is gone."""
    for number, wait_s in ((signal.SIGTERM, TERM_WAIT_S), (signal.SIGKILL, TERM_WAIT_S)):
        try:
            descriptor = processes.open_pidfd(process)
        except OSError:
            return False
        if descriptor is None:
            return True
        try:
            signal.pidfd_send_signal(descriptor, number)
            poller = select.poll()
            poller.register(descriptor, select.POLLIN)
            if poller.poll(wait_s * 1000):
                return True
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        finally:
            os.close(descriptor)
    return not processes.is_alive(process)


@contextmanager
def _locked() -> Iterator[None]:
    """Only one at a time arms or clears; the lock is the directory's and goes with whoever holds it."""
    descriptor = os.open(directory(), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        deadline = clock.monotonic_s() + LOCK_WAIT_S
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EACCES):
                    raise
                if clock.monotonic_s() >= deadline:
                    raise ResourceBusy("another sentinel is being armed and does not get done") from error
                time.sleep(0.02)
        yield
    finally:
        os.close(descriptor)
