"""How a run ends: every part closed in a fixed order, each guarded, and a record of why (LIB-02, LIB-18).

A stage that fails is named and the next one follows: a tracker that raises must not keep the process group from being
destroyed, nor the record from being written. The record, ``stop.json``, says why the run ended, at which step, and
which checkpoint continues it.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from holdfast.host.files import files

from .errors import NonFinite, Stopped
from .reporting.heartbeat import write_stderr

if TYPE_CHECKING:
    from .stopping.budget import StopReason

LONGEST_TRACEBACK = 20_000
LONGEST_DETAIL = 1000


def describe_end(
    error: BaseException | None,
    reason: StopReason | None,
    *,
    step: int,
    durable: tuple[int, str] | None,
    finished: bool,
) -> dict[str, Any]:
    """The content of stop.json. `durable` is step and path of the newest durable checkpoint."""
    if isinstance(error, Stopped):
        why, detail = error.why, reason.detail if reason is not None else ""
    elif error is None:
        why, detail = "finished", "all steps are done" if finished else "the block ended"
    elif isinstance(error, SystemExit) and error.code in (None, 0):
        why, detail = "finished", "the script ended itself with exit code 0"
    elif isinstance(error, NonFinite):
        why, detail = "nonfinite", str(error)
    else:
        why, detail = "exception", f"{type(error).__name__}: {error}"
    record: dict[str, Any] = {
        "schema": 1,
        "why": why,
        "detail": detail[:LONGEST_DETAIL],
        "step": step,
        "checkpoint_step": None if durable is None else durable[0],
        "checkpoint": None if durable is None else durable[1],
        "saved": durable is not None and durable[0] == step,
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    if error is not None and why in ("exception", "nonfinite"):
        import traceback

        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        record["traceback"] = text[-LONGEST_TRACEBACK:]
    return record


def write_record(path: str | None, record: dict[str, Any], rank: int) -> None:
    """The first rank's record is the run's, unless another rank failed: then the first that says so."""
    if path is None:
        return
    if rank != 0 and (record["why"] not in ("exception", "nonfinite") or os.path.exists(path)):
        return

    run_stage("stop record", lambda: files.commit(path, json.dumps(record).encode() + b"\n"))


def forget_record(path: str | None) -> None:
    """Remove what an earlier run in the same attempt left: it says nothing about this one."""
    if path is not None:
        with contextlib.suppress(OSError):
            os.unlink(path)


def close_all(stages: Iterable[tuple[str, Callable[[], object]]]) -> None:
    """Run every stage, whatever the ones before it did."""
    for what, stage in stages:
        run_stage(what, stage)


def run_stage(what: str, stage: Callable[[], object]) -> None:
    """Run one stage; what it raises is said and goes no further."""
    try:
        stage()
    except KeyboardInterrupt:
        write_stderr(f"interrupted while closing: {what}")
    except (Exception, SystemExit) as problem:  # noqa: BLE001 - the next stage must run whatever this one does
        write_stderr(f"closing failed: {what}: {type(problem).__name__}: {problem}")


def destroy_process_group() -> None:
    """Leave torch's process group in order, when there is one: a rank that just vanishes is reported as a failure."""
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()
