"""Reasons to keep a file that a pattern names: a record, a result, an input, open, chosen by a link."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.core.job.scratch import KeepReason, ScratchItem, ScratchRoot, matches, may_lead
from holdfast.model import wire
from holdfast.model.record import replace

if TYPE_CHECKING:
    from holdfast.model.job import JobSpec

    from .neighbours import RunWindow

_RECORDS = frozenset({wire.RUN, wire.HANDBOOK, wire.SNAPSHOT, wire.ATTEMPTS, wire.CHECKPOINTS})
"""What holdfast keeps at the top of a run directory; its checkpoints have a pruning of their own."""


def keep_linked(items: list[ScratchItem], chosen: set[str], tops: dict[ScratchRoot, str]) -> tuple[ScratchItem, ...]:
    """The same items; what a link named best, last or final leads to stays, and so does what holds or lies in it.

    `chosen` are the real paths behind such links, `tops` those of both roots.
    """
    if not chosen:
        return tuple(items)
    above = {path[: cut.start()] for path in chosen for cut in re.finditer("/", path)}

    def linked(item: ScratchItem) -> bool:
        path = f"{tops[item.root]}/{item.path}"
        parents = {path[: cut.start()] for cut in re.finditer("/", path)}
        return path in chosen or (item.is_directory and path in above) or not parents.isdisjoint(chosen)

    return tuple(replace(item, held=KeepReason.LINKED) if not item.held and linked(item) else item for item in items)


def list_declared(spec: JobSpec, run_dir: str) -> frozenset[str]:
    """Real paths of what the job declares; a declared result may be a pattern, or a link to another place."""
    paths = [*spec.inputs, *spec.data, *((spec.config,) if spec.config else ())]
    for path in spec.artifacts:
        results = os.path.join(run_dir, path)
        paths += [results, *glob.glob(results)]
    return frozenset(os.path.realpath(path) for path in paths)


def hold_in_run(
    spec: JobSpec, run_dir: str, declared: frozenset[str], opened: frozenset[tuple[int, int]]
) -> Callable[[ScratchItem, int], KeepReason | None]:
    """What keeps a thing in the run directory; answers a function of it and of its owner."""
    results = tuple(os.path.normpath(path) for path in spec.artifacts)
    real = os.path.realpath(run_dir)

    def held(item: ScratchItem, uid: int) -> KeepReason | None:
        if item.path.split("/", 1)[0] in _RECORDS:
            return KeepReason.RECORD
        if any(matches(item.path, path) or (item.is_directory and may_lead(item.path, path)) for path in results):
            return KeepReason.DECLARED
        return _hold_always(item, uid, opened, declared, real)

    return held


def hold_in_workdir(
    workdir: str, window: RunWindow, declared: frozenset[str], opened: frozenset[tuple[int, int]]
) -> Callable[[ScratchItem, int], KeepReason | None]:
    """What keeps a thing in the working directory; answers a function of it and of its owner."""

    def held(item: ScratchItem, uid: int) -> KeepReason | None:
        if not window.begin_ns <= item.mtime_ns <= window.end_ns:
            return KeepReason.OLDER
        return _hold_always(item, uid, opened, declared, workdir)

    return held


def _hold_always(
    item: ScratchItem, uid: int, opened: frozenset[tuple[int, int]], declared: frozenset[str], top: str
) -> KeepReason | None:
    if uid != os.geteuid():
        return KeepReason.FOREIGN
    if (item.device, item.inode) in opened:
        return KeepReason.OPEN
    path = f"{top}/{item.path}"
    for real in declared:
        if path == real or path.startswith(f"{real}/") or real.startswith(f"{path}/"):
            return KeepReason.DECLARED
    return None
