"""Requests (stop, checkpoint, other limits): files in the run's directory for whichever supervisor it has.

A request is one rename. Whoever asks looks before at what was asked already; both are done under a lock on the
directory, which is held for nothing else (a restart has `run.lock` for as long as its stop takes).

A request belongs to a generation (`RunState`), which an attempt that holdfast begins by itself inherits. A stop that
comes while it is decided whether a failed attempt is followed by another one therefore reaches whichever attempt there
is then, and a stop of yesterday does not end a run that was restarted.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.host.files import files
from holdfast.host.process.wait import wait_briefly
from holdfast.model import wire
from holdfast.model.errors import NotPermitted, StorageError
from holdfast.model.run import CheckpointRequest, LimitsRequest, RequestKind, RunRequest

LARGEST_BYTES = 256 * 1024
PATIENCE_S = 1.0
"""How long somebody who asks at the same moment is waited for; it takes some milliseconds."""
PASSED_ON = "checkpoint_requested"
REFUSED = "checkpoint_refused"
"""The events by which a supervisor answers a request for a checkpoint."""
LIMITS_CHANGED = "limits_changed"
LIMITS_REFUSED = "limits_refused"
"""The events by which it answers a request for other limits."""


def write_request(run_dir: str, desired: RunRequest) -> None:
    """Write a request where any supervisor of the run will see it.

    A request for force is not taken back, and one for an attempt that has been superseded changes nothing.

    Raises:
        NotPermitted: the run belongs to somebody else.
        StorageError: it cannot be written.
    """
    with _hold_directory(run_dir):
        try:
            before = _read(run_dir)
        except (OSError, wire.WireError):
            before = None
        if before is None or _may_replace(before, desired):
            _leave(run_dir, f"{run_dir}/{wire.DESIRED}", wire.to_bytes(desired))


def _may_replace(before: RunRequest, desired: RunRequest) -> bool:
    if before.generation != desired.generation:
        return before.generation < desired.generation
    return before.kind is not RequestKind.STOP_NOW or desired.kind is RequestKind.STOP_NOW


def write_checkpoint_request(run_dir: str, attempt: int, request: CheckpointRequest) -> None:
    """Write a request for a checkpoint where the supervisor will see it; the last one counts.

    Raises:
        NotPermitted, StorageError: as `write_request`.
    """
    _leave(run_dir, f"{wire.attempt_dir(run_dir, attempt)}/{wire.CHECKPOINT_WANTED}", wire.to_bytes(request))


def write_limits_request(run_dir: str, attempt: int, request: LimitsRequest) -> None:
    """Write what is wanted of the limits of a live job where its supervisor will see it; the last one counts.

    Raises:
        NotPermitted, StorageError: as `write_request`.
    """
    _leave(run_dir, f"{wire.attempt_dir(run_dir, attempt)}/{wire.LIMITS_WANTED}", wire.to_bytes(request))


def read_request(run_dir: str, generation: int) -> RunRequest | None:
    """What is wanted of the attempts of a generation; None when nobody said anything of them.

    Raises:
        OSError, WireError: there is a request that cannot be read.
    """
    desired = _read(run_dir)
    return desired if desired is not None and desired.generation == generation else None


def read_own(run_dir: str, path: str) -> bytes:
    """A file by which somebody says what is to be done with a run.

    Raises:
        OSError: it cannot be read, or was written by another account than the run's own, or root.
    """
    return files.read_bytes(path, limit=LARGEST_BYTES, owners={0, os.stat(run_dir).st_uid})


def _read(run_dir: str) -> RunRequest | None:
    try:
        return wire.from_bytes(RunRequest, read_own(run_dir, f"{run_dir}/{wire.DESIRED}"), wire.DESIRED)
    except FileNotFoundError:
        return None


@contextmanager
def _hold_directory(run_dir: str) -> Iterator[None]:
    """Exclude others who ask, for a moment; where no lock can be had, or somebody keeps it, it goes on without."""
    try:
        descriptor = os.open(run_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        yield
        return
    try:
        wait_briefly(lambda: _try_lock(descriptor), PATIENCE_S)
        yield
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    """Whether the lock is had, or cannot be had here at all."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def _leave(run_dir: str, path: str, data: bytes) -> None:
    try:
        if os.stat(run_dir).st_uid != os.geteuid():
            raise NotPermitted(f"{run_dir} belongs to another account", hint="ask its owner, or an administrator")
        files.commit(path, data)
    except PermissionError as error:
        raise NotPermitted(f"{path}: {error.strerror}", hint="the run belongs to another account") from error
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror}", hint="see whether the disk is full or gone") from error
