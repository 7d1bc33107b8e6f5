"""Removing ended runs, and nothing else.

Removed is a directory that holdfast made: directly inside a runs root, named by a run id, owned by this account, no
symbolic link, with a `run.json` (or nothing but what is made before it) and nothing of the run alive, in which nothing
is mounted. It is first renamed out of the list in one step, then emptied by directory descriptors that never follow a
link and never enter another mount; links inside are removed as links. What its supervisors kept in memory, where the
disk took no record, goes once it has left the list. An interrupted removal leaves a ``.removing-`` directory, and an
interrupted making a hidden one: the next removal under that root and `reconcile` take them along.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import stat
from collections import Counter
from typing import TYPE_CHECKING

from holdfast.agent.kept_environment import ENDING, drop_environment
from holdfast.agent.view import observe
from holdfast.agent.view.find import find_run, is_closed, own_closed
from holdfast.agent.view.runs.listing import RunFilter, has_name, read_runs
from holdfast.agent.view.runs.roots import list_roots
from holdfast.agent.view.runs.row import build_row
from holdfast.core.queue.words import name_labels
from holdfast.host import clock
from holdfast.host.contain.create import find_group
from holdfast.host.files import fallback, files, trees
from holdfast.host.files.code.hashes import choose_run_memory
from holdfast.host.files.files import is_temporary
from holdfast.host.files.filesystems import read_mounts
from holdfast.host.formats.copy_mark import describe_mark, read_mark
from holdfast.host.process import processes
from holdfast.model import wire
from holdfast.model.errors import HoldfastError, NoSuchRun, NotPermitted, StorageError, UsageError
from holdfast.model.ids import is_run_id
from holdfast.model.queue import DEFAULT_GROUP
from holdfast.model.record import record
from holdfast.store.paths import default_root

from .act import PUT_BACK
from .create import sweep_run
from .run_lock import hold_run_lock
from .settle import settle_vanished

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Sequence

    from holdfast.agent.view.run_view import RunView
    from holdfast.agent.view.runs.listing import RunLine

PREFIX = ".removing-"
_MADE = frozenset({wire.SNAPSHOT, wire.ARTIFACTS, wire.CHECKPOINTS, wire.ATTEMPTS, wire.HANDBOOK, wire.RUN_LOCK})
"""What a maker of a run, killed before it wrote `run.json`, may have left."""


@record
class RemovableRun:
    """A run that may be removed: how many files it has, and how many bytes of disk they take.

    `ordered_by` is as in `RunOrigin`; `failure` and `ended_at` as in a list of runs. `group` is the sweep or group of
    the queue of which it is a job, else empty.
    """

    run_dir: str
    run_id: str
    condition: str
    files: int
    size_bytes: int
    ordered_by: str = ""
    failure: str = ""
    ended_at: str | None = None
    group: str = ""


@record
class Removal:
    """Runs that may be removed, what was refused, in words, and whether they were removed.

    `notes` say what else loses by it.
    """

    runs: tuple[RemovableRun, ...]
    removed: bool
    refused: tuple[str, ...]
    notes: tuple[str, ...] = ()


@record
class Examined:
    """What was found of runs that are to be removed: those that may be, each with its runs root, and the refusals."""

    passed: tuple[tuple[RemovableRun, str], ...]
    refused: tuple[HoldfastError, ...]

    def describe(self, *, removed: bool) -> Removal:
        """The same for programs."""
        runs = tuple(one for one, _ in self.passed)
        refused, notes = (str(error) for error in self.refused), _describe_groups(runs, removed=removed)
        return Removal(runs, removed, tuple(refused), tuple(notes))


def _describe_groups(runs: Sequence[RemovableRun], *, removed: bool) -> Iterator[str]:
    """That the tables of sweeps and groups lose these runs, and how to keep the numbers as long as they are there."""
    for group, count in Counter(one.group for one in runs if one.group).items():
        jobs = ("was a job" if removed else "is a job") if count == 1 else ("were jobs" if removed else "are jobs")
        loses = "has lost" if removed else "loses"
        words = f"{count} of them {jobs} of group {group}: its table (holdfast sweep show) {loses} their numbers"
        yield words if removed else f"{words}; to keep them, before: holdfast sweep export {group} {group}.csv"


def examine_all(names: Sequence[str], runs: str | None, *, dry_run: bool = False) -> Examined:
    """Look at every run before anything is removed; `runs` restricts the search to one runs root.

    A run that vanished is settled first, unless it is a `dry_run`, which changes nothing.
    """
    passed: dict[str, tuple[RemovableRun, str]] = {}
    refused: list[HoldfastError] = []
    roots = [*list_roots(runs), default_root()]
    for name in names:
        try:
            found = find_run(name, root=runs)
            if not found.unique:
                raise UsageError(f"{name!r} is not one run: {found.notice}", hint="give its whole id")
            refuse_removing(found.run_dir)
            if found.root not in roots:
                raise UsageError(f"{found.run_dir} is outside of the runs roots", hint=f"say --runs {found.root}")
            passed[found.run_dir] = check_removable(found.run_dir, root=found.root, dry_run=dry_run), found.root
        except HoldfastError as error:
            refused.append(error)
    return Examined(tuple(passed.values()), tuple(refused))


def refuse_removing(run_dir: str) -> None:
    """Refuse to remove a copy: it may be all that is left of the run, and is a directory as any other.

    Raises:
        NotPermitted: it is one.
    """
    mark = read_mark(run_dir)
    if mark is not None:
        raise NotPermitted(
            f"{run_dir} is a {describe_mark(mark)}, and not the run itself",
            hint=f"rm -r {shlex.quote(run_dir)} removes the copy, holdfast rm {mark.place}:{mark.run_id} the run",
        )


def find_ended(names: Sequence[str], states: Sequence[str], older_s: float | None, runs: str | None) -> list[str]:
    """The directories of ended runs of these names and states whose end is at least so long ago; no copies.

    Without a name, or without a state, it is those of all; a name is as in `RunFilter`.

    Raises:
        UsageError: there is no such state, or it is that of runs that have not ended; or none of what names alone say
            has ended.
        NoSuchRun: no run has one of the names, or matches a pattern that stands for itself.
    """
    found = read_runs(runs, default_root(), RunFilter(tuple(states), tuple(names)), None).runs
    live = [line for line in found if not line.ended]
    if states and live:
        names = ", ".join(sorted({line.condition for line in live}))
        raise UsageError(f"runs that are {names} have not ended", hint="holdfast stop ends one")
    if not states and older_s is None:
        _require_ended(names, found)
    now_s = clock.epoch_s()
    ages_s = {line.run_dir: clock.find_age(line.ended_at, now_s) for line in found if line.ended}
    old = (one for one, age_s in ages_s.items() if older_s is None or (age_s is not None and age_s >= older_s))
    return [one for one in old if read_mark(one) is None]


def _require_ended(names: Sequence[str], found: Sequence[RunLine]) -> None:
    """Refuse patterns that match nothing, and names of runs of which none has ended."""
    for name in names:
        if not any(has_name(line.run_id, name) for line in found):
            raise NoSuchRun(f"no run matches {name!r}", hint="holdfast ls --all lists the runs")
    if found and not any(line.ended for line in found):
        labels = name_labels([line.run_id for line in found])
        raise UsageError(f"none of what is named has ended: {labels}", hint="holdfast stop ends one")


def remove_all(examined: Examined) -> Removal:
    """Remove what was examined; one refusal leaves all of it.

    Raises:
        HoldfastError: the first refusal, with the others in words; or one cannot be removed, see `remove_run`.
    """
    require_passed(examined)
    for candidate, root in examined.passed:
        remove_run(candidate, root=root)
        sweep_root(root)
    return examined.describe(removed=True)


def require_passed(examined: Examined) -> None:
    """Refuse to remove some of what was named.

    Raises:
        HoldfastError: the first refusal, with the others in words.
    """
    if not examined.refused:
        return
    first, *others = examined.refused
    more = f"; and {len(others)} more: {'; '.join(map(str, others))}" if others else ""
    raise type(first)(f"nothing was removed: {first}{more}", hint=first.hint, details=first.details)


def check_removable(run_dir: str, *, root: str, dry_run: bool = False) -> RemovableRun:
    """Check that a run may be removed, and measure it; in a `dry_run` also one that would have to be settled first.

    Raises:
        UsageError: it has not ended, or is not a run of holdfast directly inside `root`.
        NotPermitted: it belongs to somebody else, or is closed to its own account.
        StorageError: it is a link, leads out of the root, its record is damaged, or something is mounted in it.
    """
    run_id = os.path.basename(run_dir)
    _check_place(run_dir, root)
    if is_closed(run_dir):
        raise own_closed(run_dir)
    view = observe.observe_run(run_dir) if dry_run else settle_vanished(run_dir)
    if not view.record and not _is_unfinished(run_dir):
        by_hand = f"see with ps that nothing of it lives, then rm -r {run_dir}"
        if (broken := view.find_unreadable(wire.RUN)) and os.path.lexists(broken.path):
            raise StorageError(f"what {run_id} is cannot be told: {broken.words}", hint=f"{PUT_BACK}, or {by_hand}")
        raise UsageError(f"{run_dir} has no readable {wire.RUN}: it is not known to be a run", hint="remove it by hand")
    if not view.over and view.attempt and not (dry_run and view.vanished):
        by_hand = f"whether it has ended cannot be told: see with ps that nothing of it lives, then rm -r {run_dir}"
        raise UsageError(
            f"{run_id} has not ended: it is {view.condition}" + (f" ({view.note})" if view.note else ""),
            hint=by_hand if view.state is None and not view.supervised else f"holdfast stop {run_id}",
        )
    members = processes.find_marked(run_id)
    if members or view.supervised:
        pids = ", ".join(str(member.pid) for member in members) or "its supervisor"
        raise UsageError(f"processes of {run_id} are still there: {pids}", hint=f"holdfast show {run_id}")
    files, size = _measure(run_dir)
    row = build_row(view, root)
    return RemovableRun(
        run_dir,
        run_id,
        view.condition,
        files,
        size,
        view.ordered_by,
        row.failure,
        row.ended_at,
        _read_group(view),
    )


def _read_group(view: RunView) -> str:
    """The group of the job that a run is of; empty for none, and for the default one, which compares nothing."""
    queued, env = view.record.get("queued"), view.spec.get("env")
    group = queued.get("group") if isinstance(queued, dict) else None
    if group is None and isinstance(env, dict):
        # Of a sweep that a scheduler runs its jobs know it by this alone.
        group = env.get("HOLDFAST_GROUP")
    return group if isinstance(group, str) and group != DEFAULT_GROUP else ""


def remove_run(candidate: RemovableRun, *, root: str) -> None:
    """Remove a run that `check_removable` has passed.

    Raises:
        ResourceBusy: somebody restarts it at this moment.
        StorageError: something in it cannot be removed; what is left lies in a ``.removing-`` directory.
    """
    with hold_run_lock(candidate.run_dir, what="remove it"):
        if not observe.observe_run(candidate.run_dir).over and observe.list_attempts(candidate.run_dir):
            raise UsageError(
                f"{candidate.run_id} was started again meanwhile", hint=f"holdfast show {candidate.run_id}"
            )
        for number in observe.list_attempts(candidate.run_dir):
            if (group := find_group(f"{candidate.run_id}.{number}")) is not None:
                group.remove()
        files.remove_quietly(choose_run_memory(os.environ, candidate.run_dir))
        # The root may be a link that its owner made; what is in it is not followed.
        root, aside = os.path.realpath(root), f"{PREFIX}{candidate.run_id}"
        try:
            parent = os.open(root, files.DIRECTORY)
        except OSError as error:
            raise StorageError(f"{root}: {error.strerror}", hint="nothing was removed") from error
        try:
            try:
                os.rename(candidate.run_id, aside, src_dir_fd=parent, dst_dir_fd=parent)
            except OSError as error:
                raise StorageError(
                    f"{candidate.run_dir} could not be removed: {error.strerror}", hint="it is whole; see the directory"
                ) from error
            _clear_memory(candidate.run_id)
            with contextlib.suppress(FileNotFoundError):  # another removal under this root has taken it along
                files.remove_child(parent, aside, os.path.join(root, aside))
        except OSError as error:
            raise StorageError(
                f"{candidate.run_id} could not be removed whole: {error.filename}: {error.strerror}",
                hint=f"what is left lies in {root}/{aside}",
            ) from error
        finally:
            os.close(parent)


def _clear_memory(run_id: str) -> None:
    """Remove what supervisors of a removed run kept in memory, unless another directory of this name may need it."""
    if any(os.path.lexists(f"{root}/{run_id}") for root in list_roots()):
        return
    for kept_of, attempt in fallback.list_aside():
        if kept_of == run_id:
            fallback.clear(run_id, attempt)
    drop_environment(run_id)


def list_unfinished(root: str) -> list[str]:
    """Names of what was left under `root` by a removal that was interrupted, or by a maker that was killed long ago."""
    try:
        root = os.path.realpath(root)
        names = [name for name in os.listdir(root) if name.startswith(PREFIX) and is_run_id(name[len(PREFIX) :])]
        names = [name for name in names if os.lstat(f"{root}/{name}").st_uid == os.geteuid()]
    except OSError:
        names = []
    return [*names, *(name for name in trees.list_stale(root) if is_run_id(name[1:].rsplit(".", 3)[0]))]


def sweep_root(root: str) -> int:
    """Remove what `list_unfinished` names, as far as that can be; answers how many went."""
    return trees.remove_entries(os.path.realpath(root), list_unfinished(root))


def sweep(root: str, *, dry_run: bool = False) -> int:
    """Remove what killed commands left under `root` and in its runs; answers how many. A `dry_run` only counts."""
    try:
        names = [name for name in os.listdir(root) if is_run_id(name)]
    except OSError:
        return 0
    count = len(list_unfinished(root)) if dry_run else sweep_root(root)
    count += _sweep_memory(frozenset(names), dry_run=dry_run)
    return count + sum(sweep_run(f"{root}/{name}", dry_run=dry_run) for name in names)


def _sweep_memory(run_ids: Container[str], *, dry_run: bool) -> int:
    """Remove what supervisors of these runs left when they were killed while they kept an environment in memory."""
    memory = fallback.private_directory(fallback.MEMORY_ROOTS)
    stale = [] if memory is None else trees.list_stale(memory)
    left = [name for name in stale if ENDING in name and name[1:].partition(ENDING)[0] in run_ids]
    return len(left) if dry_run or memory is None else trees.remove_entries(memory, left)


def _check_place(run_dir: str, root: str) -> None:
    parent, name = os.path.split(os.path.abspath(run_dir))
    try:
        seen = os.lstat(run_dir)
        real_parent, real_root = os.path.realpath(parent), os.path.realpath(root)
    except OSError as error:
        raise StorageError(f"{run_dir}: {error.strerror}", hint="holdfast ls lists the runs") from error
    if stat.S_ISLNK(seen.st_mode) or not stat.S_ISDIR(seen.st_mode):
        what = "a symbolic link" if stat.S_ISLNK(seen.st_mode) else "not a directory"
        raise StorageError(
            f"{run_dir} is {what}; holdfast never made that, and does not remove it", hint="remove it by hand"
        )
    if not is_run_id(name) or real_parent != real_root:
        raise StorageError(f"{run_dir} is not a run directly inside {root}: refused", hint="holdfast ls lists the runs")
    if seen.st_uid != os.geteuid():
        raise NotPermitted(f"{run_dir} belongs to {processes.user_name(seen.st_uid)}", hint="ask its owner")


def _is_unfinished(run_dir: str) -> bool:
    """Whether nothing is there but what an earlier holdfast made before `run.json` (today's hides it)."""
    try:
        names = [name for name in os.listdir(run_dir) if not is_temporary(name)]
    except OSError:
        return False
    return set(names) <= _MADE and not observe.list_attempts(run_dir)


def _measure(run_dir: str) -> tuple[int, int]:
    below = f"{os.path.realpath(run_dir)}/"
    mounted = [mount.mount_point for mount in read_mounts() if mount.mount_point.startswith(below)]
    if mounted:
        raise StorageError(
            f"something is mounted in {run_dir}: {', '.join(mounted)}; what it shows is not the run's",
            hint=f"unmount it first: umount {mounted[-1]}",
        )
    descriptor = os.open(run_dir, files.DIRECTORY)
    try:
        return trees.measure_tree(descriptor, run_dir)
    except OSError as error:
        raise StorageError(f"{error.filename or run_dir}: {error.strerror}", hint="nothing was removed") from error
    finally:
        os.close(descriptor)
