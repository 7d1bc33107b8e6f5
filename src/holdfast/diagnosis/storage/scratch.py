"""Finding and removing a run's declared scratch, and nothing else (STOR-03, STOR-04, ETIQ-05).

Every step goes by directory descriptors from the run directory or the working directory down, never through a link and
never onto another file system, so that a link put in the way between look and act leads nowhere. A thing is removed
only while it is still the one that was looked at (device and inode), owned by this account, and open in no process.

The run directory belongs to one run. The working directory may be shared, so there scratch is only what changed while
this run was alive, and only if no other run was at work in it meanwhile: otherwise nothing of it is touched.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.core.job.scratch import (
    KeepReason,
    ScratchItem,
    ScratchPlan,
    ScratchRoot,
    count_parts,
    find_pattern_problem,
    is_checkpoint,
    is_chosen,
    matches,
    may_lead,
    plan_pruning,
)
from holdfast.host.clock import monotonic_s
from holdfast.host.files.files import DIRECTORY, list_entries, read_mount
from holdfast.host.formats.readable import find_damage
from holdfast.host.process.offload import Offload, OffloadFailed
from holdfast.model import wire
from holdfast.model.ids import is_run_id
from holdfast.model.record import field, record, replace

from .keep import hold_in_run, hold_in_workdir, keep_linked, list_declared
from .neighbours import find_neighbour, list_open_files
from .remove import open_parent, remove_item

if TYPE_CHECKING:
    from holdfast.model.job import JobSpec

MOST_ENTRIES = 200_000
WALK_WITHIN_S = 20.0
DEEPEST = 64
_JUDGED = (".npz", ".safetensors")
_JUDGED_AS_ZIP = (".pt", ".pth", ".ckpt", ".bin")
"""Formats whose wholeness can be told (`formats.readable`): the second only when they are zip archives, as torch writes
them since 1.6. An older file, or one of zeros that a crash left, cannot be told to be whole."""


@record
class ScratchSurvey:
    """What a look at the declared scratch found: the plan, and in words what was left out and why."""

    plan: ScratchPlan
    left_out: tuple[str, ...] = ()


@record
class PrunedScratch:
    """What was removed. `freed_bytes` and `files` count what is gone, `failed` says what is still there and why."""

    removed: tuple[str, ...] = ()
    freed_bytes: int = 0
    files: int = 0
    kept: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


@record(frozen=False)
class _Walk:
    """One walk below one root. `chosen` is where links lead that are named best, last or final."""

    root: ScratchRoot
    top: str
    patterns: tuple[str, ...]
    mount: int
    held: Callable[[ScratchItem, int], KeepReason | None]
    deadline_s: float
    entries: int = 0
    items: list[ScratchItem] = field(default_factory=list)
    chosen: set[str] = field(default_factory=set)

    def count(self) -> None:
        """One more entry; raises when the walk has become too long."""
        self.entries += 1
        if self.entries > MOST_ENTRIES or monotonic_s() > self.deadline_s:
            raise TimeoutError


def find_scratch(run_dir: str, spec: JobSpec, *, patterns: tuple[str, ...] | None = None) -> ScratchSurvey:
    """What a run's declared scratch is now, and what of it would go; removes nothing.

    `patterns` are looked for instead of the declared ones. A walk that does not come to its end plans nothing for
    that directory: which checkpoint is the newest could not be told.
    """
    wanted = spec.disk.scratch if patterns is None else patterns
    wanted = tuple(pattern for pattern in wanted if not find_pattern_problem(pattern))
    if not wanted:
        return ScratchSurvey(ScratchPlan())
    spec = _resolve(spec)
    opened = list_open_files(os.stat(run_dir).st_uid)
    declared = list_declared(spec, run_dir)
    left_out: list[str] = []
    chosen: set[str] = set()
    items = _look(
        ScratchRoot.RUN, run_dir, wanted, hold_in_run(spec, run_dir, declared, opened), left_out=left_out, chosen=chosen
    )
    window, problem = find_neighbour(run_dir, spec.workdir)
    if not os.path.isdir(spec.workdir):
        left_out.append(f"{spec.workdir}: is not there")
    elif problem:
        left_out.append(f"{spec.workdir}: {problem}")
    elif not os.path.samefile(spec.workdir, run_dir):
        held = hold_in_workdir(spec.workdir, window, declared, opened)
        items += _look(ScratchRoot.WORKDIR, spec.workdir, wanted, held, left_out=left_out, chosen=chosen)
    return ScratchSurvey(
        plan_pruning(
            keep_linked(items, chosen, {root: os.path.realpath(_top(root, run_dir, spec)) for root in ScratchRoot})
        ),
        tuple(left_out),
    )


def prune_scratch(run_dir: str, spec: JobSpec, *, patterns: tuple[str, ...] | None = None) -> PrunedScratch:
    """Remove what `find_scratch` plans. The run must have ended, or its tree be empty: this does not look.

    Does not raise for what it meets; may block on a file system that hangs: see `prune_within`.
    """
    spec = _resolve(spec)
    try:
        found = find_scratch(run_dir, spec, patterns=patterns)
    except OSError as error:
        return PrunedScratch(failed=(f"{run_dir}: {error.strerror}",))
    removed, failed, freed, files = [], [], 0, 0
    for item in found.plan.victims:
        path = f"{_top(item.root, run_dir, spec)}/{item.path}"
        try:
            remove_item(_top(item.root, run_dir, spec), item)
        except OSError as error:
            failed.append(f"{path}: {error.strerror}")
            continue
        removed.append(path)
        freed, files = freed + item.size_bytes, files + item.files
    wanted = spec.disk.scratch if patterns is None else patterns
    _remove_empty(run_dir, spec, found.plan.victims, wanted)
    kept = tuple(f"{_top(k.item.root, run_dir, spec)}/{k.item.path}: {k.why.value}" for k in found.plan.kept)
    return PrunedScratch(tuple(removed), freed, files, kept, tuple(failed), found.left_out)


def prune_within(
    run_dir: str, spec: JobSpec, limit_s: float, *, patterns: tuple[str, ...] | None = None
) -> PrunedScratch:
    """As `prune_scratch`, in a disposable child that is given up after `limit_s` seconds."""
    try:
        answer = Offload(lambda: wire.encode(prune_scratch(run_dir, spec, patterns=patterns))).wait(limit_s)
        return wire.decode(PrunedScratch, answer)
    except (OffloadFailed, wire.WireError, OSError) as error:
        return PrunedScratch(failed=(f"{run_dir}: {error}; some of it may have been removed",))


def _resolve(spec: JobSpec) -> JobSpec:
    """The job with the real path of its working directory: it may be given through a link, what is below may not."""
    return replace(spec, workdir=os.path.realpath(spec.workdir))


def _top(root: ScratchRoot, run_dir: str, spec: JobSpec) -> str:
    return run_dir if root is ScratchRoot.RUN else spec.workdir


def _look(
    root: ScratchRoot,
    top: str,
    patterns: tuple[str, ...],
    held: Callable[[ScratchItem, int], KeepReason | None],
    *,
    left_out: list[str],
    chosen: set[str],
) -> list[ScratchItem]:
    try:
        descriptor = os.open(top, DIRECTORY)
    except OSError as error:
        left_out.append(f"{top}: {error.strerror}")
        return []
    try:
        walk = _Walk(root, top, patterns, read_mount(descriptor), held, monotonic_s() + WALK_WITHIN_S)
        _walk(walk, descriptor, "", 0)
    except TimeoutError:
        left_out.append(
            f"{top}: more than {MOST_ENTRIES} entries or {WALK_WITHIN_S:g} s to walk: nothing is planned there"
        )
        return []
    except OSError as error:
        left_out.append(f"{top}: {error.strerror}: nothing is planned there")
        return []
    finally:
        os.close(descriptor)
    chosen |= walk.chosen
    return walk.items


def _walk(walk: _Walk, directory: int, prefix: str, depth: int, *, inside: bool = False) -> None:
    """`inside`: the directory is a part of something that goes or stays as a whole."""
    for name, facts in list_entries(directory):
        walk.count()
        path = f"{prefix}{name}"
        named = any(matches(path, pattern) for pattern in walk.patterns)
        if stat.S_ISLNK(facts.st_mode) and is_chosen(name):
            walk.chosen.add(os.path.realpath(f"{walk.top}/{path}"))
        if not stat.S_ISDIR(facts.st_mode):
            if named:
                _take_file(walk, path, facts, inside=inside)
            continue
        leads = named or any(may_lead(path, pattern) for pattern in walk.patterns)
        if not leads or depth >= DEEPEST:
            continue
        child = os.open(name, DIRECTORY, dir_fd=directory)
        try:
            if walk.root is ScratchRoot.WORKDIR and is_run_id(name) and _has(child, wire.RUN):
                continue  # a run directory, ours or another's: what is below is not the working directory's
            if read_mount(child) != walk.mount:
                continue
            if named and is_checkpoint(name) and not inside:
                _take_directory(walk, path, child)
            else:
                whole = is_checkpoint(name) or (is_chosen(name) and not _is_written(name, walk.patterns))
                _walk(walk, child, f"{path}/", depth + 1, inside=inside or whole)
        finally:
            os.close(child)


def _is_written(name: str, patterns: tuple[str, ...]) -> bool:
    """Whether a pattern has this very name: then somebody meant it."""
    return any(name in pattern.split("/") for pattern in patterns)


def _has(directory: int, name: str) -> bool:
    try:
        return stat.S_ISREG(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode)
    except OSError:
        return False


def _take_file(walk: _Walk, path: str, facts: os.stat_result, *, inside: bool) -> None:
    item = ScratchItem(walk.root, path, facts.st_blocks * 512, 1, facts.st_mtime_ns, facts.st_dev, facts.st_ino)
    if not stat.S_ISREG(facts.st_mode):
        walk.items.append(replace(item, held=KeepReason.SPECIAL))
        return
    held = walk.held(item, facts.st_uid) or (KeepReason.PART if inside else None)
    whole = None if held else _judge(f"{walk.top}/{path}", facts)
    walk.items.append(replace(item, held=held, whole=whole))


def _take_directory(walk: _Walk, path: str, directory: int) -> None:
    """A checkpoint's directory counts as one thing: it goes or stays as a whole."""
    facts = os.fstat(directory)
    files: list[tuple[str, os.stat_result]] = []
    _gather(walk, directory, path, files, 0)
    size = sum(seen.st_blocks * 512 for _, seen in files)
    newest = max((seen.st_mtime_ns for _, seen in files), default=facts.st_mtime_ns)
    item = ScratchItem(walk.root, path, size, len(files), newest, facts.st_dev, facts.st_ino, is_directory=True)
    item = replace(item, parts=count_parts([inner[len(path) + 1 :] for inner, _ in files]))
    held = walk.held(item, facts.st_uid)
    for inner, seen in files:
        part = ScratchItem(walk.root, inner, 0, 1, seen.st_mtime_ns, seen.st_dev, seen.st_ino)
        held = held or (KeepReason.SPECIAL if not stat.S_ISREG(seen.st_mode) else walk.held(part, seen.st_uid))
    whole = None if held else _judge_all(walk.top, files)
    walk.items.append(replace(item, held=held, whole=whole))


def _judge_all(top: str, files: list[tuple[str, os.stat_result]]) -> bool | None:
    """Whether every file in it that looks like a checkpoint is whole; None without any, or if one cannot be judged."""
    verdicts = [_judge(f"{top}/{path}", facts) for path, facts in files if is_checkpoint(path.rpartition("/")[2])]
    if False in verdicts:
        return False
    return None if None in verdicts or not verdicts else True


def _gather(walk: _Walk, directory: int, path: str, files: list[tuple[str, os.stat_result]], depth: int) -> None:
    for name, facts in list_entries(directory):
        walk.count()
        if not stat.S_ISDIR(facts.st_mode):
            files.append((f"{path}/{name}", facts))
            continue
        if depth >= DEEPEST:
            raise OSError(errno.ELOOP, "too deep", f"{path}/{name}")
        child = os.open(name, DIRECTORY, dir_fd=directory)
        try:
            if read_mount(child) != walk.mount:
                raise OSError(errno.EXDEV, "something else is mounted inside a checkpoint", f"{path}/{name}")
            _gather(walk, child, f"{path}/{name}", files, depth + 1)
        finally:
            os.close(child)


def _judge(path: str, facts: os.stat_result) -> bool | None:
    """Whether a checkpoint file is whole by its structure; None where that cannot be judged. An empty one is not."""
    name = path.lower()
    if not name.endswith(_JUDGED + _JUDGED_AS_ZIP):
        return None
    try:
        if facts.st_size and name.endswith(_JUDGED_AS_ZIP) and not _is_zip(path):
            return None
        return facts.st_size > 0 and find_damage(path) is None
    except OSError:
        return None


def _is_zip(path: str) -> bool:
    with open(path, "rb") as file:
        return file.read(4) == b"PK\x03\x04"


def _remove_empty(run_dir: str, spec: JobSpec, victims: tuple[ScratchItem, ...], patterns: tuple[str, ...]) -> None:
    """Directories that are named by a pattern and are empty now hold inodes for nothing."""
    places = {(item.root, item.path.rpartition("/")[0]) for item in victims}
    for root, path in sorted(places, key=lambda place: -place[1].count("/")):
        current = path
        while current and any(matches(current, pattern) for pattern in patterns):
            try:
                parent, name = open_parent(_top(root, run_dir, spec), current)
            except OSError:
                break
            try:
                os.rmdir(name, dir_fd=parent)
            except OSError:
                break
            finally:
                os.close(parent)
            current = current.rpartition("/")[0]
