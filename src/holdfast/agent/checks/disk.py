"""Room on every disk that the run really writes to (PRE-06, PRE-07, RAIL-10)."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from ...core.disk_budget import DiskUse, judge_disk
from ...host.disks import DiskUnreadable, find_existing, measure, read_mounts
from .situation import failed, passed, unknown, warned

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...host.disks import DiskSpace
    from ...model.finding import Finding
    from ...model.job import DiskNeeds
    from .situation import Situation


def check_run_directory(situation: Situation) -> Iterator[Finding]:
    """The run directory with its log and manifest can be made: the nearest directory there is takes files (PRE-05)."""
    place = os.path.abspath(situation.runs_place)
    there = place
    while not os.path.lexists(there) and there != "/":
        there = os.path.dirname(there)
    remedy = "name another place with --runs or HOLDFAST_RUNS, or have this one made writable"
    if not os.path.isdir(there):
        yield failed("run_directory", place, f"cannot be made: {there} is not a directory", remedy)
    elif not os.access(there, os.W_OK | os.X_OK):
        # Also false on a file system that is mounted read-only, for root too; access(2), EROFS.
        yield failed("run_directory", place, f"cannot be made: {there} does not take files from this account", remedy)
    else:
        yield passed("run_directory", place, "takes files" if there == place else f"can be made in {there}")


def check_disks(situation: Situation) -> Iterator[Finding]:
    """Bytes and inodes on the real mount of each place: run directory, working directory, caches, temporary files."""
    mounts = read_mounts()
    spaces: dict[int, DiskSpace] = {}
    paths: dict[int, dict[str, bool]] = {}
    takers: set[int] = set()
    for name, path, optional, takes_checkpoints in list_places(situation):
        try:
            space = measure(path, mounts)
        except DiskUnreadable as error:
            yield unknown("disk.bytes", path, f"not told: {error.strerror}", "see whether its server answers")
            continue
        if space.read_only and name == "working directory":
            continue
        spaces.setdefault(space.device, space)
        label = name if os.path.abspath(path) == space.real_path else f"{name} {path}"
        paths.setdefault(space.device, {})[label] = optional
        if takes_checkpoints:
            takers.add(space.device)
        if name == "run directory" and space.is_memory:
            seen = (
                f"lies in memory ({space.kind} on {space.mount_point}): it counts as memory and is gone after a restart"
            )
            yield warned("disk.memory", path, seen, "keep runs on a disk: --runs, or HOLDFAST_RUNS")
    for device, space in spaces.items():
        yield from judge_disk(_build_use(space, paths[device], device in takers), _needs(situation))


def _needs(situation: Situation) -> DiskNeeds:
    """What the job asks of its disks; as many checkpoints as the library is told to keep take room, too."""
    needs, keep = situation.spec.disk, situation.spec.checkpoints.keep
    return needs if keep is None or keep <= needs.keep else replace(needs, keep=keep)


def check_mirror(situation: Situation) -> Iterator[Finding]:
    """The mirror of the checkpoints takes files, and does not lie on the very disk that it is to outlive (CKPT-06)."""
    mirror = situation.spec.checkpoints.mirror
    if mirror is None:
        return
    there = find_existing(mirror)
    if not os.path.isdir(there) or not os.access(there, os.W_OK | os.X_OK):
        what = "is not a directory" if not os.path.isdir(there) else "does not take files from this account"
        remedy = "mount it, or name another place: checkpoints.mirror"
        yield failed("checkpoints.mirror", mirror, f"cannot be written: {there} {what}", remedy)
        return
    try:
        same = os.stat(there).st_dev == os.stat(find_existing(situation.runs_place)).st_dev
    except OSError as error:
        yield unknown("checkpoints.mirror", mirror, f"not told: {error.strerror}", "see whether its server answers")
        return
    if same:
        seen = "lies on the disk of the checkpoints themselves: what takes the one takes the other"
        yield warned("checkpoints.mirror", mirror, seen, "name a directory on storage that outlives this box")
    else:
        yield passed("checkpoints.mirror", mirror, "takes files, and is another disk than the run directory's")


def _build_use(space: DiskSpace, paths: dict[str, bool], takes_checkpoints: bool) -> DiskUse:  # noqa: FBT001 - one fact
    return DiskUse(
        mount_point=space.mount_point,
        kind=space.kind,
        paths=tuple(paths),
        free_bytes=space.free_bytes,
        total_bytes=space.total_bytes,
        free_inodes=space.free_inodes,
        read_only=space.read_only,
        is_memory=space.is_memory,
        takes_checkpoints=takes_checkpoints,
        optional=all(paths.values()),
    )


def list_places(situation: Situation) -> Iterator[tuple[str, str, bool, bool]]:
    """Each place that the run writes to: (what it is, path, a shortage is only a warning, checkpoints go there).

    Declared `disk.paths` take the checkpoint budget; without them the run directory does. A cache counts where its
    variable names it or it exists at its usual place (a link to another disk counts for that disk).
    """
    spec, environ = situation.spec, situation.job_environ
    yield "run directory", situation.runs_place, False, not spec.disk.paths
    for path in spec.disk.paths:
        yield "declared path", situation.in_workdir(path), False, True
    if spec.checkpoints.mirror is not None:
        yield "checkpoint mirror", spec.checkpoints.mirror, False, True
    yield "working directory", spec.workdir, False, False
    home = environ.get("HOME", "")
    usual = {"HF_HOME": f"{home}/.cache/huggingface", "TORCH_HOME": f"{home}/.cache/torch"}
    if spec.caches is not None:
        yield "caches", spec.caches, False, False
    for name in ("HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "TRANSFORMERS_CACHE", "TORCH_HOME", "WANDB_DIR"):
        path = environ.get(name, "")
        if not path and spec.caches is None and home and os.path.lexists(usual.get(name, "")):
            path = usual[name]
        if path:
            yield name, situation.in_workdir(os.path.expanduser(path)), False, False
    yield "temporary files", environ.get("TMPDIR") or "/tmp", True, False  # noqa: S108 - what the job would use
