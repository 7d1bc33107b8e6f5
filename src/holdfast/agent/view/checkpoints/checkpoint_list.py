"""What is on disk of checkpoints, as records: the list, the proof of their bytes, the page of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from holdfast.model.errors import NoSuchRun, StorageError
from holdfast.model.record import record
from holdfast.training.storage import survey
from holdfast.training.storage.checkpoints import CheckpointCheck
from holdfast.training.storage.layout import OWN
from holdfast.training.storage.survey import EntryKind, SurveyEntry

from .place import CheckpointPlace, CorruptCheckpoint, choose_checkpoint, survey_place, translate_errors


class ReadProgress(Protocol):
    """Hears of bytes that were read."""

    def __call__(self, nbytes: int) -> None:
        """So many more."""

    def close(self) -> None:
        """There are no more."""


ShowProgress = Callable[[str, int], ReadProgress]
"""Begins to show the reading of something of so many bytes."""


@record
class CheckpointLine:
    """One entry; what only a sound record says is None without one.

    `state` is a `EntryKind`'s value, `created` epoch s.
    """

    name: str
    path: str
    state: str
    step: int | None
    problem: str
    bytes: int | None
    created: float | None
    epoch: int | None
    metrics: dict[str, Any] | None
    world: int | None
    reason: str | None
    healthy: bool | None
    complete: bool | None
    run_id: str | None
    attempt: int | None


@record
class CheckpointList:
    """A directory of checkpoints, the newest step first; `being_written` is None when that cannot be told."""

    directory: str
    being_written: bool | None
    checkpoints: tuple[CheckpointLine, ...]
    foreign: tuple[str, ...]


@record
class CheckpointProof:
    """What reading every byte has shown: ``right``, ``wrong``, or ``unreadable``, which is neither of the two."""

    path: str
    step: int | None
    proof: str
    problems: tuple[str, ...]
    bytes: int | None
    files: int | None


@record
class CheckpointProofs:
    """All that was proven. Exit code 65: one is wrong; 74: of one nothing is known."""

    checkpoints: tuple[CheckpointProof, ...]
    exit_code: int


@record
class CheckpointFileLine:
    """One file of a checkpoint."""

    path: str
    bytes: int


@record
class ArrayLine:
    """One array: its key, the code of its type, its shape."""

    key: str
    type: str
    shape: tuple[int, ...]
    bytes: int


@record
class CheckpointPage:
    """One sound checkpoint: its entry, its record, and what is in one rank's part.

    `state` has the plain values as they were written, without random states, which mean nothing to a reader.
    """

    checkpoint: CheckpointLine
    rank: int
    seed: int | None
    versions: dict[str, str]
    save_seconds: float | None
    tracked: dict[str, Any]
    files: tuple[CheckpointFileLine, ...]
    arrays: dict[str, tuple[ArrayLine, ...]]
    state: dict[str, Any]


def list_checkpoints(place: CheckpointPlace) -> CheckpointList:
    """Everything in a directory; records and sizes are looked at, no content is read.

    Raises:
        NoSuchRun: it is not there. NotPermitted: it is closed. StorageError: it cannot be read.
    """
    found = survey_place(place)
    return CheckpointList(found.directory, found.writing, tuple(map(describe_item, found.items)), tuple(found.foreign))


def describe_item(item: SurveyEntry) -> CheckpointLine:
    """One entry."""
    record = item.record
    return CheckpointLine(
        name=item.name,
        path=item.path,
        state=item.kind.value,
        step=item.step if item.step >= 0 else None,
        problem=item.problem,
        bytes=None if record is None else record.nbytes,
        created=None if record is None else record.created,
        epoch=None if record is None else record.epoch,
        metrics=None if record is None else dict(record.metrics),
        world=None if record is None else record.world,
        reason=None if record is None else record.reason,
        healthy=None if record is None else record.healthy,
        complete=None if record is None else record.complete,
        run_id=None if record is None else record.run_id,
        attempt=None if record is None else record.attempt,
    )


def prove_checkpoints(place: CheckpointPlace, *, everything: bool, show: ShowProgress) -> CheckpointProofs:
    """Read every byte of what a place names; of a directory down to the first one that is right, or of all.

    Raises:
        NoSuchRun: there is nothing to prove.
    """
    if place.checkpoint is not None:
        items: tuple[SurveyEntry, ...] = (survey.survey_entry(place.checkpoint),)
    else:
        items = survey_place(place).visible
    if not items:
        raise NoSuchRun(f"there is no checkpoint in {place.directory}", hint="nothing was proven")
    proofs = []
    for item in items:
        progress = show(item.name, 0 if item.record is None else item.record.nbytes)
        try:
            proofs.append(describe_verdict(survey.verify_entry(item, progress)))
        finally:
            progress.close()
        if proofs[-1].proof == "right" and not everything:
            break
    words = {proof.proof for proof in proofs}
    code = CorruptCheckpoint.exit_code if "wrong" in words else StorageError.exit_code if "unreadable" in words else 0
    return CheckpointProofs(tuple(proofs), code)


def describe_verdict(verdict: CheckpointCheck) -> CheckpointProof:
    """One proof."""
    return CheckpointProof(
        path=verdict.path,
        step=verdict.step if verdict.step >= 0 else None,
        proof="right" if verdict.ok else "unreadable" if verdict.unreadable else "wrong",
        problems=tuple(verdict.problems),
        bytes=None if verdict.record is None else verdict.record.nbytes,
        files=None if verdict.record is None else len(verdict.record.files),
    )


def read_checkpoint(place: CheckpointPlace, step: int | None, rank: int) -> CheckpointPage:
    """What is in one checkpoint, from headers and the plain values.

    Raises:
        NoSuchRun: there is none.
        CheckpointWrong, StorageError: it has no sound record, or cannot be read.
    """
    item = choose_checkpoint(place, step)
    record = item.record
    if record is None:
        unknown = item.kind in (EntryKind.UNREADABLE, EntryKind.NEWER)
        raise (StorageError if unknown else CorruptCheckpoint)(f"{item.path}: {item.problem}")
    with translate_errors(item.path):
        content = survey.read_content(item, rank)
    documents = dict(content.documents)
    if isinstance(documents.get(OWN), dict):
        documents[OWN] = {key: value for key, value in documents[OWN].items() if key != "random"}
    return CheckpointPage(
        checkpoint=describe_item(item),
        rank=rank,
        seed=record.seed,
        versions=dict(record.versions),
        save_seconds=record.save_seconds,
        tracked=dict(record.tracked),
        files=tuple(CheckpointFileLine(file.path, file.bytes) for file in record.files),
        arrays={
            name: tuple(ArrayLine(one.key, one.code, tuple(one.shape), one.nbytes) for one in found)
            for name, found in content.arrays.items()
        },
        state=documents,
    )
