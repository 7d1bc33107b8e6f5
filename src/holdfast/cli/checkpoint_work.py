"""What ``holdfast checkpoints`` does behind its verbs: proving, pruning under the directory's lock, their reports."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

from holdfast.model.errors import NoSuchRun, NotPermitted, StorageError, UsageError
from holdfast.model.units import format_bytes
from holdfast.training.errors import TrainingError
from holdfast.training.storage import pruning, survey
from holdfast.training.storage.layout import LayoutError

from .checkpoint_places import CheckpointWrong, look_around, translate
from .checkpoint_showing import WORDS, Progress, describe_verdict, encode_item
from .render import note, print_json, table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.training.storage.checkpoints import Retention, Verdict
    from holdfast.training.storage.pruning import Plan
    from holdfast.training.storage.survey import Item

    from .checkpoint_places import Place

LOCK_WAIT_S = 5.0
"""How long what a killed trainer left behind (its writer) is waited for."""


def prove(place: Place, *, everything: bool, quiet: bool) -> list[Verdict]:
    """Read every byte of what a place names; of a directory down to the first one that is right, or of all.

    Raises:
        NoSuchRun: there is nothing to prove.
    """
    if place.checkpoint is not None:
        items: tuple[Item, ...] = (survey.look(place.checkpoint),)
    else:
        items = look_around(place).visible
    if not items:
        raise NoSuchRun(f"there is no checkpoint in {place.directory}", hint="nothing was proven")
    verdicts = []
    for item in items:
        progress = Progress(item.name, 0 if item.record is None else item.record.nbytes, quiet=quiet)
        try:
            verdicts.append(survey.prove(item, progress))
        finally:
            progress.close()
        if verdicts[-1].ok and not everything:
            break
    return verdicts


def encode_verdict(verdict: Verdict) -> dict[str, Any]:
    """One proof for programs."""
    return {
        "path": verdict.path,
        "step": verdict.step if verdict.step >= 0 else None,
        "proof": describe_verdict(verdict),
        "problems": list(verdict.problems),
        "bytes": None if verdict.record is None else verdict.record.nbytes,
    }


@contextlib.contextmanager
def told(path: str) -> Iterator[None]:
    """The library's errors as those of the command line."""
    try:
        yield
    except TrainingError as error:
        raise translate(error) from None
    except LayoutError as error:
        raise CheckpointWrong(f"{path}: {error}", hint="holdfast checkpoints verify tells all that is wrong") from None


def parse_metric(text: str) -> tuple[str, str]:
    """Name and mode of ``NAME:min``.

    Raises:
        UsageError: it is not of that form.
    """
    name, _, mode = text.partition(":")
    if not name or mode not in ("", "min", "max"):
        raise UsageError(f"--metric: {text!r} is not NAME:min or NAME:max", hint="write it like loss:min")
    return name, mode or "min"


def require_own(place: Place) -> None:
    """Only the owner removes, also when the caller could (root)."""
    try:
        owner = os.stat(place.directory).st_uid
    except FileNotFoundError:
        raise NoSuchRun(f"there is no {place.directory}") from None
    if owner != os.geteuid():
        from holdfast.host.processes import user_name

        raise NotPermitted(f"{place.directory} belongs to {user_name(owner)}", hint=f"ask {user_name(owner)}")


@contextlib.contextmanager
def held(directory: str, *, live: bool) -> Iterator[None]:
    """Keep runs out while something is removed; with `live` whoever writes there goes on."""
    if live:
        yield
        return
    from holdfast.training.storage.locking import DirectoryLock

    lock = DirectoryLock(directory, note, wait_s=LOCK_WAIT_S)
    try:
        yield
    finally:
        lock.release()


def prune(place: Place, keep: Retention, *, aside: bool, leftovers: bool, as_json: bool) -> int:
    """Prove what stays, remove the rest, report it; the exit code. The lock is held, or nobody's concern.

    Raises:
        NoValidCheckpoint: nothing that would stay proves right.
    """
    found = survey.survey(place.directory)
    if leftovers:
        # The lock is ours, so whoever was building is gone.
        items = (item if item.kind is not survey.Kind.BUILDING else _left_over(item) for item in found.items)
        found = survey.Survey(found.directory, tuple(items), found.foreign, found.writing)
    total = sum(item.record.nbytes for item in pruning.plan(found, keep).kept if item.record is not None)
    progress = Progress("proving what stays", total, quiet=as_json)
    try:
        chosen = pruning.prove_kept(found, keep, aside=aside, leftovers=leftovers, progress=progress)
    finally:
        progress.close()
    gone, failed = [], []
    for item in chosen.victims:
        try:
            pruning.remove(item)
            gone.append(item)
        except OSError as error:
            failed.append(f"{item.name} could not be removed: {error.strerror}")
    return _report_pruned(chosen, gone, failed, as_json=as_json)


def _left_over(item: Item) -> Item:
    from dataclasses import replace

    return replace(item, kind=survey.Kind.LEFT_OVER)


def _encode_plan(chosen: Plan, gone: list[Item]) -> dict[str, Any]:
    return {
        "victims": [encode_item(item) for item in chosen.victims],
        "kept": [item.path for item in chosen.kept],
        "wrong": [encode_verdict(verdict) for verdict in chosen.wrong],
        "bytes": chosen.nbytes,
        "removed": [item.path for item in gone],
    }


def _print_plan(chosen: Plan) -> None:
    if chosen.victims:
        rows = [
            (item.name, WORDS[item.kind], None if item.record is None else format_bytes(item.record.nbytes))
            for item in chosen.victims
        ]
        table(("checkpoint", "state", "size"), rows, right=(2,))
    for verdict in chosen.wrong:
        note(f"{os.path.basename(verdict.path)} does not count as kept: {verdict.problems[0]}")


def report_plan(chosen: Plan, *, as_json: bool) -> int:
    """Say what would go."""
    if as_json:
        print_json(_encode_plan(chosen, []))
        return 0
    _print_plan(chosen)
    kept = ", ".join(item.name for item in chosen.kept) or "nothing that is complete"
    note(f"would remove {len(chosen.victims)}, {format_bytes(chosen.nbytes)}; stays: {kept}")
    if chosen.victims:
        note("--yes proves what stays, and then removes them")
    return 0


def _report_pruned(chosen: Plan, gone: list[Item], failed: list[str], *, as_json: bool) -> int:
    code = StorageError.exit_code if failed else 0
    if as_json:
        print_json({**_encode_plan(chosen, gone), "failed": failed, "exit_code": code})
        return code
    _print_plan(chosen)
    for words in failed:
        note(words)
    kept = ", ".join(item.name for item in chosen.kept) or "nothing that is complete"
    freed = sum(item.record.nbytes for item in gone if item.record is not None)
    note(f"removed {len(gone)}, {format_bytes(freed)}; stays: {kept}")
    return code
