"""From what a person typed to a directory of checkpoints, or to one checkpoint in it.

A run stands for the checkpoints in its directory; a directory for those in it; a checkpoint for itself. GROUP/NAME is
the run of that job, where there is no such path. A word without a slash is a directory only if checkpoints are in it,
so that a run keeps its name beside a folder of the same name.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import NamedTuple

from holdfast.agent.view.find import find_job
from holdfast.model import step_names, wire
from holdfast.model.errors import Blame, HoldfastError, NoSuchRun, NotPermitted, ResourceBusy, StorageError, UsageError
from holdfast.training.errors import DirectoryBusy, NoValidCheckpoint, TrainingError
from holdfast.training.storage import layout, survey
from holdfast.training.storage.survey import DirectorySurvey, SurveyEntry

FindRun = Callable[[str], tuple[str, str | None]]

HERE = ("checkpoints", ".")
"""Where is looked when nothing was named."""


class CorruptCheckpoint(HoldfastError):
    """A checkpoint does not prove right: its bytes are not those that were written."""

    code, exit_code, blame = "checkpoint_wrong", 65, Blame.ENVIRONMENT


def translate_error(error: TrainingError) -> HoldfastError:
    """The library's words as an error of the command line."""
    if isinstance(error, NoValidCheckpoint):
        return CorruptCheckpoint(error.message, hint=error.remedy)
    kind = ResourceBusy if isinstance(error, DirectoryBusy) else UsageError
    return kind(error.message, hint=error.remedy)


@contextlib.contextmanager
def translate_errors(path: str) -> Iterator[None]:
    """The library's errors as those of the command line."""
    try:
        yield
    except TrainingError as error:
        raise translate_error(error) from None
    except layout.LayoutError as error:
        raise CorruptCheckpoint(
            f"{path}: {error}", hint="holdfast checkpoints verify tells all that is wrong"
        ) from None


class CheckpointPlace(NamedTuple):
    """A directory of checkpoints; `checkpoint` is the one in it that was named, `run_dir` the run that it is of."""

    directory: str
    checkpoint: str | None = None
    run_dir: str | None = None
    notice: str | None = None


def resolve_place(text: str | None, find_run: FindRun) -> CheckpointPlace:
    """The place that `text` names; `find_run` answers the directory of a run by its name, and a notice.

    Raises:
        NoSuchRun: there is no such run or directory.
        NotPermitted: it is closed to this account.
    """
    if text is None:
        return _find_here()
    path = os.path.abspath(os.path.expanduser(text))
    plain = "/" not in text and text not in (".", "..")
    if plain and not (os.path.isdir(path) and (_is_checkpoint(path) or _has_checkpoints(path))):
        return _find_run(text, find_run)
    if not os.path.isdir(path):
        if os.path.lexists(path):
            raise NoSuchRun(f"{path} is not a directory", hint="name a run, a directory of checkpoints, or one of them")
        if find_job(text) is not None:
            return _find_run(text, find_run)
        raise NoSuchRun(f"there is no {path}", hint="holdfast ls lists the runs; checkpoints are in their directories")
    if _is_checkpoint(path):
        return CheckpointPlace(os.path.dirname(path), path)
    if os.path.isfile(os.path.join(path, wire.RUN)):
        return CheckpointPlace(os.path.join(path, wire.CHECKPOINTS), run_dir=path)
    return CheckpointPlace(path)


def _find_here() -> CheckpointPlace:
    for name in HERE:
        if os.path.isdir(name) and _has_checkpoints(name):
            return CheckpointPlace(os.path.abspath(name))
    raise UsageError(
        "no checkpoints in ./checkpoints or here", hint="name a run, a directory of checkpoints, or one checkpoint"
    )


def _find_run(text: str, find_run: FindRun) -> CheckpointPlace:
    run_dir, notice = find_run(text)
    return CheckpointPlace(os.path.join(run_dir, wire.CHECKPOINTS), run_dir=run_dir, notice=notice)


def _is_checkpoint(path: str) -> bool:
    name = os.path.basename(path)
    named = step_names.parse_step(name) is not None or layout.is_bad(name) or layout.is_building(name)
    return named or os.path.lexists(os.path.join(path, layout.RECORD))


def _has_checkpoints(path: str) -> bool:
    try:
        return any(step_names.parse_step(name) is not None for name in os.listdir(path))
    except OSError:
        return False


def survey_place(place: CheckpointPlace) -> DirectorySurvey:
    """Everything in the directory.

    Raises:
        NoSuchRun: it is not there. NotPermitted: it is closed. StorageError: it cannot be read.
    """
    try:
        return survey.survey_directory(place.directory)
    except FileNotFoundError:
        raise NoSuchRun(f"there is no {place.directory}", hint="the run has made no checkpoint there") from None
    except PermissionError:
        raise NotPermitted(f"{place.directory} is not open to this account", hint="ask its owner") from None
    except OSError as error:
        raise StorageError(f"{place.directory} cannot be read: {error.strerror}") from error


def choose_checkpoint(place: CheckpointPlace, step: int | None) -> SurveyEntry:
    """The checkpoint that is meant: the one that was named, that of `step`, else the newest complete one.

    Raises:
        NoSuchRun: there is none.
    """
    if place.checkpoint is not None:
        if step is not None:
            raise UsageError(f"{place.checkpoint} is one checkpoint already", hint="leave --step out")
        return survey.survey_entry(place.checkpoint)
    found = survey_place(place)
    if step is not None:
        item = next((item for item in found.visible if item.step == step), None)
        if item is None:
            steps = ", ".join(str(item.step) for item in found.visible[:10]) or "none at all"
            raise NoSuchRun(f"{place.directory} has no checkpoint of step {step}", hint=f"it has {steps}")
        return item
    newest = next((item for item in found.visible if item.kind is survey.EntryKind.COMPLETE), None)
    if newest is None:
        what = f"none of the {len(found.visible)} is complete" if found.visible else "there is none"
        raise NoSuchRun(
            f"no checkpoint in {place.directory}: {what}", hint="holdfast checkpoints ls shows what is there"
        )
    return newest
