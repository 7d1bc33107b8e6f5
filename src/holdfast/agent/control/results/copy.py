"""``holdfast results copy``: the copy of an ended run's results made, or proven, again; never its training (FAIL-10).

A run that failed by its copy alone counts as done once its results are proven there: ``results.json`` says so, and
``exit.json`` goes on saying what was so at the end (`core.run.copied`).
"""

from __future__ import annotations

import os
import select
import stat
from typing import TYPE_CHECKING

from holdfast.agent.caller import describe_caller
from holdfast.agent.control.run_lock import hold_run_lock
from holdfast.agent.control.settle import settle_vanished
from holdfast.agent.view.observe import observe_run
from holdfast.core.run.copied import is_copy_wanted
from holdfast.core.run.recorded_results import CHANGED, is_changed, list_recorded
from holdfast.diagnosis.storage.scratch import prune_within
from holdfast.host.files import files
from holdfast.host.files.copies.progress import Progress
from holdfast.host.process.offload import Offload, OffloadFailed
from holdfast.model import wire
from holdfast.model.errors import NotCopied, StorageError, UsageError
from holdfast.model.job import JobSpec
from holdfast.model.receipt import LeftOut
from holdfast.model.record import record, replace
from holdfast.model.results import ResultsRecord, count_files
from holdfast.model.run import CopyState, Outcome, say_condition
from holdfast.model.units import format_bytes

from .child import copy_results
from .order import STALLED_S, CopyOrder, Watch, build_order, describe_progress

if TYPE_CHECKING:
    from collections.abc import Callable, Container

    from holdfast.agent.view.run_view import RunView

LOOK_EVERY_S = 0.5
PRUNE_WITHIN_S = 600.0


@record
class CopiedRun:
    """What became of one run's copy. `made_good`: by it a run that had failed counts as done now.

    `job` is its job in the queue, GROUP/NAME; empty without. The files are in ``results.json``. `mended` are files that
    had gone bad in the copy, and were copied again.
    """

    run_id: str
    attempt: int
    state: CopyState
    to: str
    files: int
    bytes: int
    left_out: tuple[str, ...]
    pruned: str
    problem: str
    made_good: bool
    job: str
    exit_code: int
    mended: tuple[str, ...] = ()


def copy_run(run_dir: str, to: str | None, show: Callable[[ResultsRecord], None]) -> CopiedRun:
    """Copy the results of a run that succeeded, to where its job says or to `to`; again is the same again.

    `show` hears how far it is. A copy that cannot be made is no error here: the answer says so, and the record at the
    run, unless that knows of one that was proven.

    Raises:
        UsageError: it has not succeeded, or nothing says where to.
        ResourceBusy: somebody is at the run.
        StorageError: its record cannot be read or written.
    """
    settle_vanished(run_dir)
    with hold_run_lock(run_dir, what="copy its results"):
        view = observe_run(run_dir)
        _require_success(view)
        spec = _read_spec(view)
        place = to or spec.results.to
        if place is None:
            raise UsageError(f"{view.run_id}: its job names no place for its results", hint="say where: --to DIR")
        before = read_record(view.run_dir, view.attempt)
        training = before.training if before is not None and before.training else str(view.exit.get("evidence") or "")
        order = build_order(
            run_dir, view.attempt, spec, to=place, by=describe_caller(), training=training, umask=read_umask()
        )
        known = set() if before is None or before.state is not CopyState.COPIED else _list_paths(before)
        done = copy_unchanged(view, order, known, show)
        gone = tuple(LeftOut(path, "is gone since it was copied before") for path in sorted(known - _list_paths(done)))
        done = replace(done, left_out=(*done.left_out, *gone))
        if done.state is CopyState.COPIED or before is None or before.state is not CopyState.COPIED:
            _write(view, done)
        if done.state is CopyState.COPIED and spec.results.prune_scratch and spec.disk.scratch:
            pruned = prune_within(run_dir, spec, PRUNE_WITHIN_S)
            done = replace(done, pruned=f"{count_files(pruned.files)}, {format_bytes(pruned.freed_bytes)} removed")
            _write(view, done)
    return _describe(view, done)


def read_record(run_dir: str, attempt: int) -> ResultsRecord | None:
    """What is on record of an attempt's copy; None without, or where it cannot be read."""
    path = f"{wire.attempt_dir(run_dir, attempt)}/{wire.RESULTS}"
    try:
        return wire.from_bytes(ResultsRecord, files.read_bytes(path), path)
    except (OSError, wire.WireError):
        return None


def _require_success(view: RunView) -> None:
    """Refuse what has no proven results.

    Raises:
        UsageError: it has not ended, or its training did not succeed.
    """
    if not view.over:
        words = f"{view.run_id} has not ended: it is {view.condition}"
        raise UsageError(f"{words}{f' ({view.note})' if view.note else ''}", hint=f"holdfast wait {view.run_id}")
    if view.condition == Outcome.SUCCEEDED.value or is_copy_wanted(view.exit, view.results):
        return
    hint = f"holdfast cp {view.run_id}/artifacts DIR copies what is there, whatever it is worth"
    raise UsageError(f"{view.run_id} has no proven results: it {say_condition(view.condition)}: {view.note}", hint=hint)


def _read_spec(view: RunView) -> JobSpec:
    try:
        return wire.decode(JobSpec, view.spec, wire.RUN)
    except wire.WireError as error:
        raise StorageError(f"the run's record cannot be read: {error}", hint="see run.json in its directory") from error


def read_umask() -> int:
    """That of this process, which stands as it was."""
    umask = os.umask(0o077)
    os.umask(umask)
    return umask


def _list_paths(done: ResultsRecord) -> set[str]:
    return {file.path for file in done.files}


def copy_unchanged(
    view: RunView, order: CopyOrder, known: Container[str], show: Callable[[ResultsRecord], None]
) -> ResultsRecord:
    """As `copy_watched`; a failure where a declared result is not what was proven at the end, before or afterwards."""
    if changed := _find_changed(view, known):
        return _fail(order, changed)
    return copy_watched(order, show, lambda: _find_changed(view, known))


def _find_changed(view: RunView, known: Container[str]) -> str:
    """Words where a result is not what it was at the end, when it was proven, or is gone and was not `known`."""
    for path, recorded in list_recorded(view.exit).items():
        try:
            seen = os.lstat(f"{view.run_dir}/{path}")
        except OSError as error:
            if path in known:
                continue
            return f"{path} was there at the end: {error.strerror}"
        if stat.S_ISREG(seen.st_mode) and is_changed(recorded, seen.st_size, seen.st_mtime):
            return f"{path} {CHANGED}"
    return ""


def _fail(order: CopyOrder, problem: str) -> ResultsRecord:
    return replace(order.begun, state=CopyState.FAILED, problem=problem)


def copy_watched(
    order: CopyOrder, show: Callable[[ResultsRecord], None], find_change: Callable[[], str] = lambda: ""
) -> ResultsRecord:
    """Copy in a child, with `show` hearing how far it is; the record of how it ended. Does not raise for the copy.

    Somebody waits for it: what no waiting mends is not tried again.
    """
    progress, parent = Progress(), os.getpid()
    watch, work = Watch(progress), Offload(lambda: copy_results(order, progress, parent, find_change, is_patient=False))
    poller = select.poll()
    poller.register(work.fileno(), select.POLLIN)
    try:
        while not work.is_done():
            show(describe_progress(order.begun, progress))
            if watch.is_stalled():
                work.abandon()
                return _fail(order, f"nothing of it moved for {STALLED_S:.0f} s: the file system of it hangs")
            poller.poll(int(LOOK_EVERY_S * 1000))
        return wire.decode(ResultsRecord, work.result())
    except (OffloadFailed, wire.WireError) as error:
        return _fail(order, str(error))
    except KeyboardInterrupt:
        work.abandon()
        raise


def _write(view: RunView, done: ResultsRecord) -> None:
    path = f"{view.attempt_dir}/{wire.RESULTS}"
    try:
        files.commit(path, wire.to_bytes(done))
        # By this lists see that something about an ended run is new (`store.index`).
        os.utime(f"{view.run_dir}/{wire.ATTEMPTS}")
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror}", hint="see df; then say it again") from error


def _describe(view: RunView, done: ResultsRecord) -> CopiedRun:
    ref = view.record.get("queued")
    copied = done.state is CopyState.COPIED
    return CopiedRun(
        run_id=view.run_id,
        attempt=view.attempt,
        state=done.state,
        to=done.to,
        files=done.files_done,
        bytes=done.bytes_done,
        left_out=tuple(f"{item.path}: {item.why}" for item in done.left_out),
        pruned=done.pruned,
        problem=done.problem,
        made_good=copied and view.condition != Outcome.SUCCEEDED.value,
        job=f"{ref.get('group')}/{ref.get('name')}" if isinstance(ref, dict) else "",
        exit_code=0 if copied else NotCopied.exit_code,
        mended=done.mended,
    )
