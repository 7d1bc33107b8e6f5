"""The two locks of a run, both on files of its directory.

``supervisor.lock`` is held by a supervisor for its life, whatever its attempt: two attempts are never supervised at
once. ``run.lock`` is held while somebody restarts, adopts, retries, requeues or removes the run, from the look to the
start: two who restart at once do not get two trees. A request (`agent.requests`) needs neither.

Where a file system takes no lock (ENOSYS, ENOLCK: a network mount without them) the run goes on without, and says so
(`RunState.unlocked`). Such a lock is never taken for free: nobody settles the run by itself, and who takes it up is
told by `take_unlocked`, as by the directories of attempts, which can each be made only once.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from holdfast.host.box import BoxMatch, find_box
from holdfast.host.files import files
from holdfast.host.process.processes import is_alive
from holdfast.host.process.wait import wait_briefly
from holdfast.model import wire
from holdfast.model.errors import ResourceBusy
from holdfast.model.identity import BoxIdentity, ProcessId
from holdfast.model.record import record
from holdfast.model.run import RunState

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST_TAKEN = 100
LOOK_PATIENCE_S = 0.05
"""How long a lock is tried for that somebody may have for a moment, who only looks whether it is held."""


@record
class TakenUp:
    """Who takes an attempt up where there is no lock, and where."""

    process: ProcessId
    box: BoxIdentity


@contextmanager
def hold_run_lock(run_dir: str, *, what: str, patience_s: float = LOOK_PATIENCE_S) -> Iterator[None]:
    """Hold the run against another restart, adoption, retry or removal while this one is at work.

    Raises:
        ResourceBusy: somebody else is at it, also after `patience_s`.
        FileNotFoundError: there is no such directory.
    """
    descriptor = _open(run_dir, wire.RUN_LOCK)
    try:
        if descriptor is not None and _is_refused(descriptor, patience_s):
            raise ResourceBusy(
                f"another holdfast is restarting, adopting, retrying or removing {os.path.basename(run_dir)}",
                hint=f"wait for it, then {what} again",
            )
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def is_held(run_dir: str) -> bool:
    """Whether somebody restarts, adopts, retries or removes the run just now; what stands there may change."""
    return files.is_locked(f"{run_dir}/{wire.RUN_LOCK}") is True


def take_supervisor_lock(run_dir: str, patience_s: float) -> tuple[int | None, bool]:
    """The lock of a run's supervisor as a descriptor, None when another one keeps it; and whether it is a real lock."""
    descriptor = _open(run_dir, wire.SUPERVISOR_LOCK)
    if descriptor is None:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), False
    try:
        # A keeper that looks whether somebody supervises has it for a moment.
        if wait_briefly(lambda: _try_lock(descriptor), patience_s):
            return descriptor, True
    except OSError:
        return descriptor, False
    os.close(descriptor)
    return None, True


def can_lock(run_dir: str) -> bool:
    """Whether the run's directory takes locks: no supervisor was, or will be, let in beside another."""
    return files.is_locked(f"{run_dir}/{wire.SUPERVISOR_LOCK}") is not None


def take_unlocked(attempt_dir: str, state: RunState, me: TakenUp) -> bool:
    """Whether we are the one to take an attempt up in this state, where no lock can tell.

    Not where its supervisor lives, nor where that cannot be seen and nobody has said that its place is gone. A file
    that can be made only once says who does; one whose maker is provably gone before it had committed anything is
    followed by the next.

    Raises:
        OSError, WireError: that cannot be told.
    """
    if state.supervisor is not None:
        match = find_box(state.box, (state.supervisor,))
        hidden = match is BoxMatch.UNKNOWN and not os.path.exists(f"{attempt_dir}/{wire.GONE}")
        if hidden or (match is BoxMatch.SAME and is_alive(state.supervisor)):
            return False
    for number in range(MOST_TAKEN):
        path = f"{attempt_dir}/{wire.TAKEN}.{state.version}.{number}"
        if files.make_once(path, wire.to_bytes(me)):
            return True
        before = wire.from_bytes(TakenUp, files.read_bytes(path), path)
        if find_box(before.box, (before.process,)) is not BoxMatch.SAME or is_alive(before.process):
            return False
    return False


def _open(run_dir: str, name: str) -> int | None:
    try:
        return os.open(f"{run_dir}/{name}", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        raise
    except OSError:
        return None


def _is_refused(descriptor: int, patience_s: float) -> bool:
    try:
        return not wait_briefly(lambda: _try_lock(descriptor), patience_s)
    except OSError:
        return False


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
