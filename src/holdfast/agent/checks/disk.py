"""Checks of disk space on every disk that the run really writes to (PRE-06, PRE-07, RAIL-10)."""

from __future__ import annotations

import os
from collections.abc import Iterator

from holdfast.core.job.disk_budget import DiskUse, judge_disk
from holdfast.host.files import files
from holdfast.host.files.copies.destination import (
    describe_loss,
    describe_unread,
    look_at,
    read_destination,
    write_destination,
)
from holdfast.host.files.disks import DiskSpace, DiskUnreadable, find_existing, measure_space
from holdfast.host.files.filesystems import read_mounts
from holdfast.model import wire
from holdfast.model.finding import Finding
from holdfast.model.job import DiskNeeds
from holdfast.model.record import replace

from .context import CheckContext, failed, passed, unknown, warned


def check_run_directory(situation: CheckContext) -> Iterator[Finding]:
    """The run directory with its log and manifest can be made: the nearest directory there is takes files (PRE-05)."""
    place = os.path.abspath(situation.runs_place)
    there = place
    while not os.path.lexists(there) and there != "/":
        there = os.path.dirname(there)
    remedy = "have the runs elsewhere (--runs or HOLDFAST_RUNS; of a place its `root`), or have this made writable"
    if not os.path.isdir(there):
        yield failed("run_directory", place, f"cannot be made: {there} is not a directory", remedy)
    elif not os.access(there, os.W_OK | os.X_OK):
        # Also false on a file system that is mounted read-only, for root too; access(2), EROFS.
        yield failed("run_directory", place, f"cannot be made: {there} does not take files from this account", remedy)
    else:
        yield passed("run_directory", place, "takes files" if there == place else f"can be made in {there}")
        if files.is_locked(there) is None:
            seen = f"{there} takes no locks: a run that is lost there is settled by nobody but you (holdfast adopt)"
            yield warned("run_directory.locks", place, seen, "keep runs on a disk with locks: --runs, or HOLDFAST_RUNS")


def check_disks(situation: CheckContext) -> Iterator[Finding]:
    """Bytes and inodes on the real mount of each place: run directory, working directory, caches, temporary files."""
    mounts = read_mounts()
    spaces: dict[int, DiskSpace] = {}
    paths: dict[int, dict[str, bool]] = {}
    takers: set[int] = set()
    for name, path, optional, takes_checkpoints in list_places(situation):
        try:
            space = measure_space(path, mounts)
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


def _needs(situation: CheckContext) -> DiskNeeds:
    """What the job asks of its disks; as many checkpoints as the library is told to keep take room, too."""
    needs, keep = situation.spec.disk, situation.spec.checkpoints.keep
    return needs if keep is None or keep <= needs.keep else replace(needs, keep=keep)


def check_mirror(situation: CheckContext) -> Iterator[Finding]:
    """What is to outlive this disk takes files, and does not lie on it: mirror and results (CKPT-06, POST-07)."""
    spec = situation.spec
    if spec.checkpoints.mirror is not None:
        yield from _check_lasting(situation, "checkpoints.mirror", spec.checkpoints.mirror)
        mirror = (spec.checkpoints.mirror, "checkpoints.mirror", wire.MIRROR)
        yield from _check_mount(situation.run_dir, *mirror, keep=not situation.ends_first)
    if spec.results.to is not None:
        if not os.path.isdir(os.path.dirname(spec.results.to)):
            seen = f"{os.path.dirname(spec.results.to)} is not there"
            yield failed("results.to", spec.results.to, seen, "mount it, or name another place: results.to")
            return
        yield from _check_lasting(situation, "results.to", spec.results.to)
        yield from _check_mount(situation.run_dir, spec.results.to, keep=not situation.ends_first)


def _check_mount(
    run_dir: str | None, to: str, key: str = "results.to", name: str = wire.DESTINATION, *, keep: bool = True
) -> Iterator[Finding]:
    """The mount is there still that an earlier attempt saw; `keep`: for whoever copies there, and the next attempt."""
    if run_dir is None:
        return
    path = f"{run_dir}/{name}"
    try:
        before = read_destination(path, to)
    except OSError as error:
        yield unknown(key, to, describe_unread(path, to, error), f"findmnt -T {to}; then remove {path}")
        return
    try:
        now = look_at(to)
        if words := describe_loss(before, now):
            yield failed(key, to, words, f"mount it again, or name another place: {key}")
        elif now is not None and keep:
            write_destination(path, now)
    except OSError as error:
        seen = f"not told on which mount it is: {error.strerror}"
        yield unknown(key, to, seen, "see whether its server answers, and df of the run directory")


def _check_lasting(situation: CheckContext, key: str, mirror: str) -> Iterator[Finding]:
    there = find_existing(mirror)
    if not os.path.isdir(there) or not os.access(there, os.W_OK | os.X_OK):
        what = "is not a directory" if not os.path.isdir(there) else "does not take files from this account"
        remedy = f"mount it, or name another place: {key}"
        yield failed(key, mirror, f"cannot be written: {there} {what}", remedy)
        return
    try:
        if os.statvfs(there).f_blocks == 0:
            yield failed(key, mirror, f"cannot be written: {there} is no storage", f"name another place: {key}")
            return
        same = os.stat(there).st_dev == os.stat(find_existing(situation.runs_place)).st_dev
    except OSError as error:
        yield unknown(key, mirror, f"not told: {error.strerror}", "see whether its server answers")
        return
    if same:
        whose = "the checkpoints themselves" if key == "checkpoints.mirror" else "the run itself"
        seen = f"lies on the disk of {whose}: what takes the one takes the other"
        yield warned(key, mirror, seen, "name a directory on storage that outlives this box")
    else:
        yield passed(key, mirror, "takes files, and is another disk than the run directory's")


def check_node_local(situation: CheckContext) -> Iterator[Finding]:
    """Inside of a Slurm job: what is to outlive it does not lie in a directory that is emptied with it (PRE-15).

    A mirror elsewhere keeps the checkpoints, so then only the mirror is asked.
    """
    if "SLURM_JOB_ID" not in situation.environ:
        return
    named = (situation.job_environ.get(name, "") for name in ("SLURM_TMPDIR", "TMPDIR"))
    emptied = {os.path.realpath(path): path for path in (*named, "/var/tmp", "/tmp") if path.startswith("/")}  # noqa: S108
    declared = [situation.in_workdir(path) for path in situation.spec.disk.paths]
    mirror = situation.spec.checkpoints.mirror
    results = situation.spec.results.to
    kept = [mirror] if mirror is not None else [situation.runs_place, *declared]
    for place in [*kept, *([] if results is None else [results])]:
        real = os.path.realpath(place)
        below = next((path for there, path in emptied.items() if real == there or real.startswith(f"{there}/")), None)
        if below is not None:
            seen = f"lies below {below}, which this node keeps for itself and Slurm may empty at the end of the job"
            remedy = "put it on the shared file system (--runs, HOLDFAST_RUNS), or mirror there: checkpoints.mirror"
            yield warned("disk.node_local", place, seen, remedy)


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


def list_places(situation: CheckContext) -> Iterator[tuple[str, str, bool, bool]]:
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
    if spec.results.to is not None:
        yield "results", spec.results.to, True, False
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
