"""The proof that a run has started: its job lives.

Only reads files. What proves a start is the supervisor's committed state: `running` is written when the job's exec was
seen to succeed. A supervisor that never comes up, or dies on the way, is told apart from a job that failed.
"""

from __future__ import annotations

import os
import select
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

from holdfast.agent.view.live.undelivered import list_start_warnings
from holdfast.agent.view.retries import describe_follower
from holdfast.host.files import fallback, files
from holdfast.host.files.inotify import MOVED_TO, Inotify
from holdfast.host.process.processes import is_alive
from holdfast.model import wire
from holdfast.model.errors import InternalError, StorageError
from holdfast.model.identity import ProcessId
from holdfast.model.record import record
from holdfast.model.run import Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping

COME_UP_S = 15.0
"""A supervisor that has written nothing by then will not."""
LOOK_AGAIN_S = 0.5
"""How often it is seen whether the supervisor lives; its files are told by inotify, not by looking."""
LAST_BYTES = 4096
NAP_S = 0.05
"""The pause between looks where inotify is not to be had."""
FIRST_ATTEMPT = 1
RECORD_WITHIN_S = 20.0
"""How long why a job failed is judged at most (`diagnosis.ended.judge.JUDGED_WITHIN_S`)."""


@record
class StartProgress:
    """Where a starting run stands: its lifecycle state's name and data, and the supervisor when one is known."""

    kind: str
    data: Mapping[str, Any]
    supervisor: ProcessId | None

    @property
    def settled(self) -> bool:
        """Whether there is nothing more to wait for: it has ended, or stands in line for a card."""
        return self.kind in {"ended", "waiting"} and (self.kind == "ended" or bool(self.data.get("blocked_by")))


@record
class Started:
    """A run that was started: its newest state as it is on record, and its exit code if it has ended already.

    `condition` is how it stands, in the words of ``ls``. `warnings` are those of its checks about what was asked for;
    before them stands that another attempt follows one that failed.
    """

    run_id: str
    run_dir: str
    attempt: int
    state: Mapping[str, Any]
    exit_code: int | None
    condition: str = ""
    warnings: tuple[str, ...] = ()


def prove_start(run_dir: str, attempt: int, *, prove_s: float) -> Started:
    """As `wait_for_start`, which says what it raises; answers for people and programs."""
    progress = wait_for_start(run_dir, attempt, prove_s=prove_s)
    code = int(progress.data.get("exit_code", 0)) if progress.kind == "ended" else None
    condition = str(progress.data.get("outcome", "")) if progress.kind == "ended" else progress.kind
    warnings = list_start_warnings(run_dir, attempt)
    if progress.data.get("outcome") == Outcome.FAILED.value and not progress.data.get("refusal"):
        _wait_for_record(run_dir, attempt, progress.supervisor)
        warnings = (*filter(None, (describe_follower(run_dir, attempt),)), *warnings)
    return Started(os.path.basename(run_dir), run_dir, attempt, progress.data, code, condition, warnings)


def _wait_for_record(run_dir: str, attempt: int, supervisor: ProcessId | None) -> None:
    """Wait, not for long, until an attempt that ended has its exit record: then it is decided what follows.

    Nothing comes any more of a supervisor that is dead.
    """
    directory = wire.attempt_dir(run_dir, attempt)
    until = time.monotonic() + RECORD_WITHIN_S
    with closing(_FileWatch(directory)) as watch:
        while not _has_record(run_dir, attempt) and time.monotonic() < until:
            if supervisor is None or not is_alive(supervisor):
                return
            watch.wait(LOOK_AGAIN_S)


def _has_record(run_dir: str, attempt: int) -> bool:
    """Whether an attempt has its exit record, where it belongs or aside; one that cannot be read is there."""
    try:
        fallback.read(os.path.basename(run_dir), attempt, f"{wire.attempt_dir(run_dir, attempt)}/{wire.EXIT}")
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return True


def wait_for_start(run_dir: str, attempt: int, *, prove_s: float) -> StartProgress:
    """Wait until the job has lived for `prove_s` seconds after its exec, has ended, or stands in line for a card.

    Raises:
        InternalError: the supervisor did not come up, or died.
        StorageError: the run directory has gone.
    """
    directory = wire.attempt_dir(run_dir, attempt)
    began = time.monotonic()
    proven_at: float | None = None
    with closing(_FileWatch(directory)) as watch:
        while True:
            progress = read_progress(directory)
            now = time.monotonic()
            if progress is not None and progress.kind == "running" and proven_at is None:
                proven_at = now
            if progress is not None and (progress.settled or (proven_at is not None and now >= proven_at + prove_s)):
                return progress
            _check_supervisor(directory, progress, waited_s=now - began)
            left_s = LOOK_AGAIN_S if proven_at is None else proven_at + prove_s - now
            watch.wait(min(LOOK_AGAIN_S, left_s))


def read_progress(directory: str) -> StartProgress | None:
    """What ``state.json`` says now; None while there is none.

    Raises:
        StorageError: the directory has gone, or the state is not readable.
    """
    path = f"{directory}/{wire.STATE}"
    try:
        run_id, attempt = directory.split("/")[-3], int(directory.rpartition("/")[2])
        content = wire.parse_object(fallback.read(run_id, attempt, path), path)
        supervisor = content.get("supervisor")
        process = wire.decode(ProcessId, supervisor) if supervisor is not None else None
        return StartProgress(str(content["state"]["kind"]), content["state"], process)
    except FileNotFoundError:
        if os.path.isdir(directory):
            return None
        raise _gone(directory) from None
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}") from error
    except (wire.WireError, KeyError, TypeError) as error:
        raise StorageError(f"{path} is damaged: {error}", hint="`holdfast show` tells what is left") from error


class _FileWatch:
    """Wakes when a file was replaced in a directory; where the kernel gives no inotify, it only naps."""

    def __init__(self, directory: str) -> None:
        self._queue: Inotify | None = None
        try:
            self._queue = Inotify()
            self._queue.add(directory, MOVED_TO)
        except FileNotFoundError as error:
            self.close()
            raise _gone(directory) from error
        except OSError:
            self.close()

    def wait(self, timeout_s: float) -> None:
        """Return on the next change, or after `timeout_s` seconds; changes since the last look count."""
        if self._queue is None:
            time.sleep(min(NAP_S, timeout_s))
            return
        poll = select.poll()
        poll.register(self._queue.fileno(), select.POLLIN)
        poll.poll(int(timeout_s * 1000) + 1)
        self._queue.read()

    def close(self) -> None:
        """Give the descriptor back."""
        if self._queue is not None:
            self._queue.close()
            self._queue = None


def _gone(directory: str) -> StorageError:
    return StorageError(f"{directory} has gone", hint="somebody removed the run while it was starting")


def _check_supervisor(directory: str, progress: StartProgress | None, *, waited_s: float) -> None:
    """Tell a supervisor that is slow from one that is not there."""
    log = f"{directory}/{wire.SUPERVISOR_LOG}"
    supervisor = progress.supervisor if progress is not None else None
    if supervisor is None:
        if waited_s > COME_UP_S:
            message = f"the supervisor did not come up in {COME_UP_S:g} s{_last_words(log)}"
            raise InternalError(message, hint=f"see {log}; nothing was started")
        return
    if not is_alive(supervisor):
        # Its last act may be the state that we have not read yet.
        latest = read_progress(directory)
        if latest is not None and (latest.kind == "ended" or latest.supervisor != supervisor):
            return
        run_id = directory.split("/")[-3]
        message = f"the supervisor of {run_id} died while starting it{_last_words(log)}"
        raise InternalError(message, hint=f"`holdfast show {run_id}` tells what is there; see {log}")


def _last_words(log: str) -> str:
    last = files.read_tail(log, LAST_BYTES).decode("utf-8", "replace").strip().rpartition("\n")[2]
    return f": {last[:300]}" if last else ""
