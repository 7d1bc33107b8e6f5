"""Removing checkpoints by hand, with the run's own rules and one more: what stays is proven before anything goes.

A run prunes by its records alone, because it has just written what it keeps. Who comes later does not know what became
of the bytes since, so here a checkpoint counts as kept only after every byte of it was compared.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from holdfast.host.files.files import remove_all
from holdfast.model.record import record
from holdfast.training.errors import NoValidCheckpoint
from holdfast.training.storage import checkpoints, layout, survey
from holdfast.training.storage.survey import DirectorySurvey, SurveyEntry


@record
class PrunePlan:
    """What would go, the oldest first; what stays of the complete ones, the newest first; what proved to be wrong."""

    victims: tuple[SurveyEntry, ...]
    kept: tuple[SurveyEntry, ...]
    wrong: tuple[checkpoints.CheckpointCheck, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes that would become free, as far as records tell."""
        return sum(item.record.nbytes for item in self.victims if item.record is not None)


def plan_pruning(
    found: DirectorySurvey,
    keep: checkpoints.Retention,
    *,
    aside: bool = False,
    leftovers: bool = False,
    wrong: tuple[checkpoints.CheckpointCheck, ...] = (),
) -> PrunePlan:
    """Choose by records; those in `wrong` neither count as kept nor go. `aside` and `leftovers` add what stands beside.

    Leftovers are taken only when it is certain that no run writes there.
    """
    unfit = {verdict.path for verdict in wrong}
    complete = {
        item.step: item for item in found.visible if item.kind is survey.EntryKind.COMPLETE and item.path not in unfit
    }
    entries = [checkpoints.CheckpointEntry(item.path, item.step, item.record) for item in complete.values()]
    gone = {entry.step for entry in checkpoints.choose_victims(entries, keep)}
    extra = [
        item
        for item in found.items
        if (aside and item.kind is survey.EntryKind.SET_ASIDE)
        or (leftovers and item.kind is survey.EntryKind.LEFT_OVER)
    ]
    victims = sorted((complete[step] for step in gone), key=lambda item: item.step)
    kept = tuple(item for step, item in complete.items() if step not in gone)
    return PrunePlan((*victims, *extra), kept, wrong)


def prove_kept(
    found: DirectorySurvey,
    keep: checkpoints.Retention,
    *,
    aside: bool = False,
    leftovers: bool = False,
    progress: Callable[[int], None] | None = None,
) -> PrunePlan:
    """The plan in which everything that stays has been proven; a wrong one is replaced by the next older one.

    Raises:
        NoValidCheckpoint: nothing that would stay proves right; the directory is as it was.
    """
    proven: set[str] = set()
    wrong: list[checkpoints.CheckpointCheck] = []
    chosen = plan_pruning(found, keep, aside=aside, leftovers=leftovers)
    while chosen.victims:
        unproven = next((item for item in chosen.kept if item.path not in proven), None)
        if unproven is None:
            break
        verdict = survey.verify_entry(unproven, progress)
        if verdict.ok:
            proven.add(unproven.path)
        else:
            wrong.append(verdict)
        chosen = plan_pruning(found, keep, aside=aside, leftovers=leftovers, wrong=tuple(wrong))
    if chosen.victims and not proven:
        words = f"; {wrong[0].path}: {wrong[0].problems[0]}" if wrong else ""
        raise NoValidCheckpoint(
            f"nothing was removed: no checkpoint in {found.directory} that would stay proves right{words}",
            "see all of them with `holdfast checkpoints verify --all`",
        )
    return chosen


def remove_entry(item: SurveyEntry) -> None:
    """Remove one entry: out of sight first, so that a reader never meets a checkpoint that is half removed.

    Raises:
        OSError: it is still there, or not completely gone under a hidden name, which the next run's start removes.
    """
    directory = os.path.dirname(item.path)
    hidden = item.path
    if not layout.is_building(item.name):
        hidden = os.path.join(directory, layout.building_name(item.step, f"{time.monotonic_ns() & 0xFFFFFFFFFF:010x}"))
        os.rename(item.path, hidden)
    remove_all(hidden)
