"""From outside: start a supervisor for an attempt, and tell it what is wanted. Both are files and a detached process.

Nothing here waits for the job. A supervisor gets a session of its own, no terminal, and no parent that could take it
along. It begins as a fork of whoever starts it, because what that process has loaded is what a start needs; once its
job runs it replaces its image by a small one (isolated interpreter, no site-packages: it needs the standard library
only).
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from ..host import files
from ..model import wire
from ..model.errors import NotPermitted, StorageError
from ..model.run import CheckpointWish, Desired, Wish
from .ahead import WAITING

if TYPE_CHECKING:
    from collections.abc import Mapping


def build_supervisor_command(
    run_dir: str, attempt: int, reason: str, *, keep: Mapping[str, int] | None = None
) -> tuple[str, ...]:
    """The argument vector of a supervisor: isolated interpreter, no site-packages.

    `keep` names the descriptors that it takes over from its former image (``lock``, ``inotify``, ``channel``,
    ``output``).
    """
    entry = os.path.join(os.path.dirname(os.path.abspath(__file__)), "__main__.py")
    kept = ("--keep", ",".join(f"{name}={descriptor}" for name, descriptor in keep.items())) if keep else ()
    return (sys.executable, "-I", "-S", entry, run_dir, str(attempt), reason, *kept)


def start_supervisor(run_dir: str, attempt: int, *, environ: Mapping[str, str], reason: str = "start") -> None:
    """Start a detached supervisor; returns when it has been forked off, not when it has done anything.

    `environ` is what the job's environment is made from: it is handed over in memory and never stored. `reason` is
    ``start``, ``restart`` or ``adopt``.

    Raises:
        StorageError: its log cannot be opened, or no process can be had.
    """
    log_path = f"{wire.attempt_dir(run_dir, attempt)}/{wire.SUPERVISOR_LOG}"
    arguments = (run_dir, str(attempt), reason)
    log = _open_log(log_path)
    if WAITING.take(arguments, environ, log_path):
        os.close(log)
        return
    try:
        first = os.fork()
    except OSError as error:
        raise StorageError(f"no supervisor could be started: {error.strerror}", hint="see `ulimit -u`") from error
    if first == 0:
        _detach(arguments, dict(environ), log_path)
    os.close(log)
    os.waitpid(first, 0)


def _open_log(path: str) -> int:
    """The supervisor's log; /dev/null when the run directory takes no file (the run goes on without)."""
    try:
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except FileNotFoundError as error:
        raise StorageError(f"{os.path.dirname(path)} does not exist", hint="the run directory has gone") from error
    except OSError:
        return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)


def _detach(arguments: tuple[str, ...], environ: dict[str, str], log_path: str) -> None:
    """In the child: own session, no terminal, supervise. Never returns."""
    code = 70
    try:
        os.setsid()
        if os.fork() != 0:
            os._exit(0)
        os.environ.clear()
        os.environ.update(environ)
        code = supervise_here(arguments, log_path)
    finally:
        os._exit(code)


def supervise_here(arguments: tuple[str, ...], log_path: str) -> int:
    """Make this process (a detached fork) the supervisor: its log, no stray descriptors, the loop; its exit code."""
    try:
        log, null = _open_log(log_path), os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.closerange(3, 1024)
        os.chdir("/")
        umask = os.umask(0o077)
        from .supervisor import main

        return main(list(arguments), umask=umask)
    except BaseException:  # noqa: BLE001 - the last barrier of a forked child: nothing may unwind into our caller
        import traceback

        files.write_all(2, traceback.format_exc().encode())
        return 70


def ask(run_dir: str, attempt: int, desired: Desired) -> None:
    """Write a wish where the supervisor, this one or a later one, will see it. A wish for force is not taken back.

    Raises:
        NotPermitted: the run belongs to somebody else.
        StorageError: it cannot be written.
    """
    path = f"{wire.attempt_dir(run_dir, attempt)}/{wire.DESIRED}"
    if desired.wish is Wish.STOP_NOW or not _already_forced(path):
        _leave_wish(run_dir, path, wire.to_bytes(desired))


def ask_checkpoint(run_dir: str, attempt: int, wish: CheckpointWish) -> None:
    """Write a wish for a checkpoint where the supervisor will see it; the last one counts.

    Raises:
        NotPermitted, StorageError: as `ask`.
    """
    path = f"{wire.attempt_dir(run_dir, attempt)}/{wire.CHECKPOINT_WANTED}"
    _leave_wish(run_dir, path, wire.to_bytes(wish))


def _leave_wish(run_dir: str, path: str, data: bytes) -> None:
    try:
        if os.stat(run_dir).st_uid != os.getuid():
            raise NotPermitted(f"{run_dir} belongs to another account", hint="ask its owner, or an administrator")
        files.commit(path, data)
    except PermissionError as error:
        raise NotPermitted(f"{path}: {error.strerror}", hint="the run belongs to another account") from error
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror}", hint="see whether the disk is full or gone") from error


def _already_forced(path: str) -> bool:
    try:
        return wire.from_bytes(Desired, files.read_bytes(path), path).wish is Wish.STOP_NOW
    except (OSError, wire.WireError):
        return False
