"""Pruning the declared scratch of an ended run: what would go is planned, then removed under the run's lock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.agent.view import observe
from holdfast.core.job.scratch import ScratchRoot, find_pattern_problem
from holdfast.diagnosis.storage import scratch
from holdfast.diagnosis.storage.scratch import PrunedScratch, ScratchSurvey, prune_within
from holdfast.host.process.offload import Offload, OffloadFailed
from holdfast.model import wire
from holdfast.model.errors import StorageError, UsageError
from holdfast.model.job import JobSpec
from holdfast.model.record import record, replace

from .run_lock import hold_run_lock
from .settle import settle_vanished

if TYPE_CHECKING:
    from holdfast.agent.view.run_view import RunView
    from holdfast.core.job.scratch import ScratchPlan

LOOK_WITHIN_S = 60.0
REMOVE_WITHIN_S = 600.0


@record
class ScratchPruning:
    """What would go, and with `done` what went. `patterns` are those of the job and those that were named beyond.

    Paths of the plan are relative to the run directory or to `workdir`, by their root.
    """

    run_dir: str
    workdir: str
    patterns: tuple[str, ...]
    plan: ScratchPlan
    left_out: tuple[str, ...]
    removed: bool
    done: PrunedScratch | None
    size_bytes: int
    files: int
    exit_code: int

    def locate(self, root: ScratchRoot, path: str) -> str:
        """The whole path of something in the plan."""
        return f"{self.run_dir if root is ScratchRoot.RUN else self.workdir}/{path}"


def plan_pruning(run_dir: str, also: tuple[str, ...], *, dry_run: bool) -> ScratchPruning:
    """What of a run's scratch would go, and what stays; nothing is removed.

    A run that vanished is settled first, unless it is a `dry_run`.

    Raises:
        UsageError: the run has not ended, or a pattern is none.
        StorageError: its record cannot be read, or its disk does not answer.
    """
    for pattern in also:
        problem = find_pattern_problem(pattern)
        if problem:
            raise UsageError(f"--also: {pattern!r} {problem}", hint="write it relative to the run directory")
    view = observe.observe_run(run_dir) if dry_run else settle_vanished(run_dir)
    if not (dry_run and view.vanished):
        _require_ended(view)
    spec = _read_spec(view)
    patterns = (*spec.disk.scratch, *also)
    seen = _look(run_dir, spec, patterns)
    plan = seen.plan
    return ScratchPruning(
        run_dir=run_dir,
        workdir=spec.workdir,
        patterns=patterns,
        plan=plan,
        left_out=seen.left_out,
        removed=False,
        done=None,
        size_bytes=plan.size_bytes,
        files=plan.files,
        exit_code=0,
    )


def prune_scratch(planned: ScratchPruning) -> ScratchPruning:
    """Remove what the patterns name now.

    Raises:
        UsageError: the run does not stand still any more.
    """
    with hold_run_lock(planned.run_dir, what="prune it"):
        # Somebody may have started it again while the question stood.
        view = observe.observe_run(planned.run_dir)
        _require_ended(view)
        done = prune_within(planned.run_dir, _read_spec(view), REMOVE_WITHIN_S, patterns=planned.patterns)
    code = StorageError.exit_code if done.failed else 0
    return replace(planned, removed=True, done=done, exit_code=code)


def _require_ended(view: RunView) -> None:
    if not view.over:
        words = f"{view.run_id} has not ended: it is {view.condition}"
        raise UsageError(f"{words}; its scratch may be in use", hint=f"holdfast stop {view.run_id}")


def _read_spec(view: RunView) -> JobSpec:
    try:
        return wire.decode(JobSpec, view.spec, "run.json")
    except wire.WireError as error:
        raise StorageError(f"the run's record cannot be read: {error}", hint="it declares no scratch then") from error


def _look(run_dir: str, spec: JobSpec, patterns: tuple[str, ...]) -> ScratchSurvey:
    work = Offload(lambda: wire.encode(scratch.find_scratch(run_dir, spec, patterns=patterns)))
    try:
        return wire.decode(scratch.ScratchSurvey, work.wait(LOOK_WITHIN_S))
    except (OffloadFailed, wire.WireError) as error:
        raise StorageError(f"{run_dir} could not be looked at: {error}", hint="does its disk answer?") from error
