"""How a run ends: the last save if it fits, then every part closed in a fixed order, each guarded (LIB-02).

A stage that fails is named and the next one follows: a tracker that raises must not keep the process group from being
destroyed, nor the record from being written. The record, ``stop.json``, says why the run ended, at which step, and
which checkpoint continues it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
import traceback
from typing import TYPE_CHECKING, Any

from .errors import NonFinite, Stopped
from .heartbeat import tell
from .stopping import Budget, StopReason, after_signal, grace_s

if TYPE_CHECKING:
    from collections.abc import Callable

    from .session import Run

LONGEST_TRACEBACK = 20_000
FLUSH = "flush"
FLUSH_WAIT_S = 60.0
WORDS = ("signal", "deadline", "operator", "memory", "user", "nonfinite", "save_failed")


def name_signal(number: int) -> StopReason:
    """The reason that a signal is."""
    return StopReason("signal", signal.Signals(number).name, number)


def parse_reason(text: str) -> StopReason:
    """The reason that another rank gave, as it came through the agreement."""
    why, _, detail = text.partition(": ")
    return StopReason(why if why in WORDS else "user", detail)


def take_request(path: str | None) -> str | None:
    """Whether somebody asks for a checkpoint: the reason, and the request is taken away; None without one."""
    if path is None or not os.path.exists(path):
        return None
    reason = "operator"
    try:
        with open(path, encoding="utf-8") as file:
            content = json.loads(file.read(65536))
        os.unlink(path)
        reason = str(content["reason"])[:100]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError):
        with contextlib.suppress(OSError):
            os.unlink(path)
    return reason


def flush(run: Run, reason: StopReason) -> bool:
    """The last save, if it fits before the end; whether everything up to this step is durable."""
    saver, agreement = run._saver, run._agreement  # noqa: SLF001 - one object in two rooms
    assert saver is not None
    assert agreement is not None
    left = _time_left(run)
    saver.wait(None if left is None else max(left, 0.1))
    if run.last_durable is not None and run.last_durable[0] == run.step and not saver.busy:
        return True
    if run.rank == 0:
        fits, words = Budget.flush_fits(left, run._save_seconds)  # noqa: SLF001
        fits = fits and saver.busy is None
        if not fits:
            tell(words)
        if run.world > 1:
            agreement.publish(FLUSH, b"1" if fits else b"0")
    else:
        # Either all ranks save or none: the clock of one of them decides.
        fits = agreement.wait_for(FLUSH, FLUSH_WAIT_S) == b"1"
    return fits and run._save_now(f"stop ({reason.why})")  # noqa: SLF001


def _time_left(run: Run) -> float | None:
    """Seconds until the first of the known ends."""
    ends = [run._deadline]  # noqa: SLF001
    if run._signals.flag:  # noqa: SLF001
        ends.append(after_signal(run._signals.at, grace_s(os.environ)))  # noqa: SLF001
    return min((end.at_monotonic - time.monotonic() for end in ends if end is not None), default=None)


def leave(run: Run, error: BaseException | None, stopped: Stopped | None) -> None:
    """Close everything. Nothing is raised from here."""
    began = time.monotonic()
    record = _describe(run, error, stopped)
    if stopped is not None:
        where = f"{run.last_durable[1]}" if run.last_durable else "no checkpoint"
        if run.rank == 0:
            tell(
                f"stopping at step {run.step} ({record['why']}: {record['detail']}); the same command continues from {where}"
            )
    _write_record(run, record)
    stages: list[tuple[str, Callable[[], object]]] = [
        *(
            (f"loader {name}", item.target.close)
            for name, item in run._tracked.items()
            if hasattr(item.target, "close")
        ),
    ]
    if stopped is not None:
        stages += [(f"on_stop callback {_name(call)}", _bind(call, stopped.why)) for call in run._on_stop]  # noqa: SLF001
        stages.append(("process group", _destroy_process_group))
    saver, agreement = run._saver, run._agreement  # noqa: SLF001
    if saver is not None:
        stages.append(("checkpoint writer", saver.close))
    if agreement is not None:
        stages.append(("agreement of the ranks", agreement.close))
    stages.append(("signal handlers", run._signals.restore))  # noqa: SLF001
    for what, stage in stages:
        _guard(what, stage)
    record = _describe(run, error, stopped)
    record["seconds"] = round(time.monotonic() - began, 3)
    run._heart.phase("stopped" if stopped is not None else "failed" if error is not None else "finished")  # noqa: SLF001
    _guard("heartbeat", run._heart.close)  # noqa: SLF001
    _write_record(run, record)
    if run._lock is not None:  # noqa: SLF001
        _guard("directory lock", run._lock.release)  # noqa: SLF001


def _name(call: Callable[..., object]) -> str:
    return getattr(call, "__qualname__", type(call).__name__)


def _bind(call: Callable[[str], object], why: str) -> Callable[[], object]:
    return lambda: call(why)


def _guard(what: str, stage: Callable[[], object]) -> None:
    try:
        stage()
    except KeyboardInterrupt:
        tell(f"interrupted while closing: {what}")
    except (Exception, SystemExit) as problem:  # noqa: BLE001 - the next stage must run whatever this one does
        tell(f"closing failed: {what}: {type(problem).__name__}: {problem}")


def _destroy_process_group() -> None:
    torch = sys.modules.get("torch")
    distributed = getattr(torch, "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()


def _describe(run: Run, error: BaseException | None, stopped: Stopped | None) -> dict[str, Any]:
    reason = run._stop  # noqa: SLF001
    if stopped is not None:
        why, detail = stopped.why, reason.detail if reason is not None else ""
    elif error is None:
        why, detail = "finished", "all steps are done" if run._finished else "the block ended"  # noqa: SLF001
    elif isinstance(error, NonFinite):
        why, detail = "nonfinite", str(error)
    else:
        why, detail = "exception", f"{type(error).__name__}: {error}"[:1000]
    record: dict[str, Any] = {"schema": 1, "why": why, "detail": detail, "step": run.step}
    durable = run.last_durable
    record["checkpoint_step"] = None if durable is None else durable[0]
    record["checkpoint"] = None if durable is None else durable[1]
    record["saved"] = durable is not None and durable[0] == run.step
    record["seconds"] = 0.0
    record["at"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    if why in ("exception", "nonfinite") and error is not None:
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        record["traceback"] = text[-LONGEST_TRACEBACK:]
    return record


def _write_record(run: Run, record: dict[str, Any]) -> None:
    """Only the first rank's is the run's, unless another one failed first."""
    path = run.promises.stop_record
    if path is None or (run.rank != 0 and record["why"] not in ("exception", "nonfinite")):
        return
    if run.rank != 0 and os.path.exists(path):
        return
    from ..host import files

    def write() -> None:
        files.commit(path, json.dumps(record).encode() + b"\n")

    _guard("stop record", write)
