"""Removing checkpoints that need not be kept, under the directory's lock, and writing one into a plain file."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from holdfast.agent.view.checkpoints.checkpoint_list import (
    CheckpointLine,
    CheckpointProof,
    describe_item,
    describe_verdict,
)
from holdfast.agent.view.checkpoints.place import choose_checkpoint, survey_place, translate_errors
from holdfast.agent.view.find import refuse_copy
from holdfast.core.control_characters import one_line
from holdfast.core.near import find_near
from holdfast.host.process.processes import user_name
from holdfast.model.errors import NoSuchRun, NotPermitted, ResourceBusy, StorageError, UsageError
from holdfast.model.record import record, replace
from holdfast.training.errors import DirectoryBusy
from holdfast.training.storage import export as exporting
from holdfast.training.storage import survey
from holdfast.training.storage.checkpoints import Retention, read_metric
from holdfast.training.storage.directory_lock import DirectoryLock
from holdfast.training.storage.write import prune as pruning

from .export_torch import export_elsewhere, has_torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from holdfast.agent.view.checkpoints.checkpoint_list import ShowProgress
    from holdfast.agent.view.checkpoints.place import CheckpointPlace
    from holdfast.training.storage.survey import DirectorySurvey, SurveyEntry
    from holdfast.training.storage.write.prune import PrunePlan

MOST_NAMED = 8
LONGEST_NAME = 60
LOCK_WAIT_S = 5.0
"""How long what a killed trainer left behind (its writer) is waited for."""


@record
class RetentionOptions:
    """What stays: the newest ones, the `best` ones by a metric (``min`` or ``max`` is better).

    `aside` and `leftovers` let those go too that failed their proof, and what saves left that were cut off.
    """

    last: int
    best: int
    metric: str
    mode: str
    aside: bool = False
    leftovers: bool = False


@record
class CheckpointPruning:
    """What would go, or went: `removed` are paths that are gone, `failed` says what could not be removed and why.

    `kept` are paths; those in `wrong` were to be kept and do not count, since their bytes are wrong. `bytes` is the
    size of the victims.
    """

    victims: tuple[CheckpointLine, ...]
    kept: tuple[str, ...]
    wrong: tuple[CheckpointProof, ...]
    bytes: int
    removed: tuple[str, ...]
    failed: tuple[str, ...]
    exit_code: int


@record
class ExportedCheckpoint:
    """One file that was written: what is in it, and of which checkpoint."""

    checkpoint: str
    step: int
    path: str
    format: str
    bytes: int
    names: tuple[str, ...]
    arrays: int


def plan_pruning(place: CheckpointPlace, keep: RetentionOptions) -> CheckpointPruning:
    """What would go, by the records; nothing is proven and nothing removed.

    Raises:
        UsageError: the place is one checkpoint, or none has the metric by which the best are to stay.
        NoSuchRun, NotPermitted, StorageError: the directory cannot be looked at.
    """
    _require_directory(place)
    found = survey_place(place)
    _require_metric(found, keep)
    return _describe(pruning.plan_pruning(found, _retain(keep), aside=keep.aside, leftovers=keep.leftovers))


def prune_checkpoints(
    place: CheckpointPlace, keep: RetentionOptions, *, live: bool, show: ShowProgress, tell: Callable[[str], None]
) -> CheckpointPruning:
    """Prove what stays, and remove the rest; with `live` also while a run writes there.

    Raises:
        UsageError: the place is one checkpoint, or none has the metric by which the best are to stay.
        NotPermitted: it is another account's.
        ResourceBusy: a run writes there.
        CheckpointWrong: nothing that would stay proves right.
    """
    _require_directory(place)
    refuse_copy(place.run_dir or os.path.dirname(place.directory))
    _require_own(place.directory)
    with translate_errors(place.directory), _held(place.directory, live=live, tell=tell):
        return _prune(place.directory, replace(keep, leftovers=keep.leftovers and not live), show)


def export_checkpoint(
    place: CheckpointPlace,
    step: int | None,
    out: str,
    *,
    form: str | None,
    names: Sequence[str],
    rank: int | None,
    overwrite: bool,
    show: ShowProgress,
) -> ExportedCheckpoint:
    """Prove one checkpoint, and write it into the one file `out`; the format is told by its ending unless `form` does.

    Raises:
        UsageError: no format is told, or the checkpoint cannot be put into such a file.
        NoSuchRun, CheckpointWrong, StorageError: there is none, it is wrong, or `out` cannot be written.
    """
    form = form or exporting.guess_format(out)
    if form is None:
        raise UsageError(f"{out}: the ending does not tell the format", hint="say --format safetensors, or torch")
    item = choose_checkpoint(place, step)
    progress = show(item.name, 0 if item.record is None else item.record.nbytes)
    try:
        with translate_errors(item.path):
            if form == "torch" and not has_torch():
                made = export_elsewhere(item, out, os.environ, names=names, rank=rank, overwrite=overwrite)
            else:
                made = exporting.export(
                    item.path, out, form=form, names=tuple(names), rank=rank, overwrite=overwrite, progress=progress
                )
    except FileExistsError:
        raise StorageError(f"{out} is there already", hint="--overwrite replaces it") from None
    finally:
        progress.close()
    return ExportedCheckpoint(item.path, item.step, made.path, made.format, made.bytes, tuple(made.names), made.arrays)


def _require_directory(place: CheckpointPlace) -> None:
    if place.checkpoint is not None:
        raise UsageError(f"{place.checkpoint} is one checkpoint", hint=f"name its directory: {place.directory}")


def _require_own(directory: str) -> None:
    """Only the owner removes, also when the caller could (root)."""
    try:
        owner = os.stat(directory).st_uid
    except FileNotFoundError:
        raise NoSuchRun(f"there is no {directory}") from None
    if owner != os.geteuid():
        raise NotPermitted(f"{directory} belongs to {user_name(owner)}", hint=f"ask {user_name(owner)}")


@contextlib.contextmanager
def _held(directory: str, *, live: bool, tell: Callable[[str], None]) -> Iterator[None]:
    """Keep runs out while something is removed; with `live` whoever writes there goes on."""
    if live:
        yield
        return
    try:
        lock = DirectoryLock(directory, tell, wait_s=LOCK_WAIT_S)
    except DirectoryBusy as error:
        raise ResourceBusy(str(error.args[0]), hint="wait until that run is over, or say --live") from None
    try:
        yield
    finally:
        lock.release()


def _require_metric(found: DirectorySurvey, keep: RetentionOptions) -> None:
    """A metric that was written wrong must not have all but the newest removed."""
    complete = (item.record for item in found.items if item.kind is survey.EntryKind.COMPLETE)  # the rest never counts
    records = [record for record in complete if record is not None]
    if not keep.best or not records or any(read_metric(item, keep.metric) is not None for item in records):
        return
    numbers = sorted({name for item in records for name in item.metrics if read_metric(item, name) is not None})
    near = find_near(keep.metric, numbers)
    known = f"did you mean {one_line(near, LONGEST_NAME)}? " if near else ""
    more = f" and {len(numbers) - MOST_NAMED} more" if len(numbers) > MOST_NAMED else ""
    known += (
        f"logged were {', '.join(one_line(name, LONGEST_NAME) for name in numbers[:MOST_NAMED])}{more}"
        if numbers
        else "they have no numbers: run.log(loss=...)"
    )
    raise UsageError(
        f"nothing was removed: no checkpoint in {found.directory} has a number {keep.metric!r}, by which the best stay",
        hint=f"{known}; --metric NAME:min, or leave --keep-best out",
    )


def _retain(keep: RetentionOptions) -> Retention:
    return Retention(keep.last, keep.best, keep.metric, keep.mode)


def _prune(directory: str, keep: RetentionOptions, show: ShowProgress) -> CheckpointPruning:
    found, wanted = survey.survey_directory(directory), _retain(keep)
    _require_metric(found, keep)
    if keep.leftovers:
        # The lock is ours, so whoever was building is gone.
        items = (item if item.kind is not survey.EntryKind.BUILDING else _left_over(item) for item in found.items)
        found = survey.DirectorySurvey(found.directory, tuple(items), found.foreign, found.writing)
    total = sum(item.record.nbytes for item in pruning.plan_pruning(found, wanted).kept if item.record is not None)
    progress = show("proving what stays", total)
    try:
        chosen = pruning.prove_kept(found, wanted, aside=keep.aside, leftovers=keep.leftovers, progress=progress)
    finally:
        progress.close()
    gone, failed = [], []
    for item in chosen.victims:
        try:
            pruning.remove_entry(item)
            gone.append(item.path)
        except OSError as error:
            failed.append(f"{item.name} could not be removed: {error.strerror}")
    return _describe(chosen, tuple(gone), tuple(failed))


def _left_over(item: SurveyEntry) -> SurveyEntry:
    return replace(item, kind=survey.EntryKind.LEFT_OVER)


def _describe(chosen: PrunePlan, gone: tuple[str, ...] = (), failed: tuple[str, ...] = ()) -> CheckpointPruning:
    return CheckpointPruning(
        victims=tuple(map(describe_item, chosen.victims)),
        kept=tuple(item.path for item in chosen.kept),
        wrong=tuple(map(describe_verdict, chosen.wrong)),
        bytes=chosen.nbytes,
        removed=gone,
        failed=failed,
        exit_code=StorageError.exit_code if failed else 0,
    )
