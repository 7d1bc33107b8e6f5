"""Records of sentinels in the user's state directory, one for each run and condition (U16).

A record names its process by identity, so that nothing else is ever taken for it, and its host, because a home
directory may be shared between hosts. Only its own sentinel writes into a record; who supersedes it ends it first.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.agent.messages.tries import MOST_TRIES, Undelivered
from holdfast.core.job.redact import REDACTED
from holdfast.host import clock
from holdfast.host.files import files
from holdfast.host.process import pidfd, processes
from holdfast.model import wire
from holdfast.model.errors import ResourceBusy, StorageError
from holdfast.model.identity import ProcessId
from holdfast.model.record import record, replace
from holdfast.store.paths import make_state_directory, state_directory

TERM_WAIT_S = 2.0
"""How long a sentinel has to leave after TERM before KILL; one that was stopped by a signal never does."""
LOCK_WAIT_S = 10.0


@record
class SentinelRecord:
    """One sentinel. `until` is when its life ends (epoch seconds); `outcome` is empty while it waits.

    `words` say how it ended; `notify_command` whom it tells (without secrets), `untold` that nobody has taken it.
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
    notify_command: str = ""
    untold: Undelivered | None = None

    @property
    def owes(self) -> bool:
        """Whether it is gone from this host and its outcome, which somebody was to be told of, was told nobody.

        Of one in the foreground whoever had started it knows.
        """
        owes = self.detached and bool(self.notify_command) and (not self.outcome or self.untold is not None)
        return owes and self.host == os.uname().nodename and not processes.is_alive(self.process)

    @property
    def is_given_up(self) -> bool:
        """Whether no other one can tell it: it was tried often enough, or its command was not recorded whole."""
        return REDACTED in self.notify_command or (self.untold is not None and self.untold.tries >= MOST_TRIES)


BELOW = "sentinels"


def directory() -> str:
    """Where the records are."""
    return f"{state_directory()}/{BELOW}"


def make_directory() -> None:
    """Make it where there is none.

    Raises:
        NotPermitted: another account could replace it.
        StorageError: it cannot be made.
    """
    make_state_directory(BELOW)


def path_of(run_id: str, condition: str) -> str:
    """The record of a run's sentinel for a condition."""
    digest = hashlib.sha256(condition.encode("utf-8", "surrogateescape")).hexdigest()[:8]
    word = "".join(letter for letter in condition.partition("=")[0] if letter.isalnum())
    return f"{directory()}/{run_id}.{word}-{digest}.json"


def read(path: str) -> SentinelRecord | None:
    """One record; None when there is none.

    Raises:
        StorageError: it is there and cannot be read.
    """
    try:
        return wire.from_bytes(SentinelRecord, files.read_bytes(path), path)
    except FileNotFoundError:
        return None
    except (OSError, wire.WireError) as error:
        raise StorageError(f"{path}: {error}", hint="holdfast reconcile removes records that cannot be read") from error


def list_all() -> list[tuple[str, SentinelRecord | None]]:
    """Every record by path; None for one that cannot be read.

    Raises:
        NotPermitted: another account could have put them there: whoever reads them may end processes by them.
    """
    try:
        names = sorted(os.listdir(directory()))
    except FileNotFoundError:
        return []
    make_directory()
    found: list[tuple[str, SentinelRecord | None]] = []
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


def list_untold() -> dict[str, str]:
    """What sentinels that are gone have told nobody, in words by a name of its own; nothing is changed."""
    found = {}
    for path, kept in list_all():
        if kept is None or not kept.owes:
            continue
        name, ended = f"sentinel {os.path.basename(path)}", kept.words or "its process is gone"
        then = "it is not tried again: arm it anew" if kept.is_given_up else "`holdfast reconcile` tells it"
        found[name] = f"the sentinel of {kept.run_id} for {kept.condition}: {ended}; {then}"
    return found


def is_waiting(record: SentinelRecord) -> bool:
    """Whether exactly this sentinel is at work on this host."""
    return not record.outcome and record.host == os.uname().nodename and processes.is_alive(record.process)


def arm(record: SentinelRecord) -> SentinelRecord | None:
    """Take the place of this run's sentinel for the same condition; answers the one that was ended for it.

    Raises:
        ResourceBusy: another is being armed, and does not get done.
        StorageError: an earlier one does not end, or the record cannot be written.
    """
    make_directory()
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


def finish(record: SentinelRecord, outcome: str, words: str, exit_code: int, untold: Undelivered | None = None) -> None:
    """Record how it ended and was told, or, when somebody looks on anyway (not detached), that it is no more.

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
        done = replace(
            record, outcome=outcome, words=words, exit_code=exit_code, ended_at=clock.utc_now(), untold=untold
        )
        files.commit(path, wire.to_bytes(done))
    except (OSError, StorageError):
        return


def end(process: ProcessId) -> bool:
    """End exactly this process, gently first; whether it is gone."""
    for number, wait_s in ((signal.SIGTERM, TERM_WAIT_S), (signal.SIGKILL, TERM_WAIT_S)):
        try:
            held = pidfd.hold_process(process)
            if held is None:
                return True
            try:
                if not held.send(number) or held.wait(wait_s):
                    return True
            finally:
                held.close()
        except OSError:
            return False
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
