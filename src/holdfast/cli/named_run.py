"""The run that a person named on the command line, looked for before anything else is done."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from holdfast.agent.view.find import FoundRun, find_run, is_own, refuse_copy, require_own, require_readable
from holdfast.agent.view.newer import find_newer
from holdfast.agent.view.observe import list_attempts
from holdfast.agent.view.runs.roots import list_roots
from holdfast.model.errors import NoSuchRun, StorageError
from holdfast.model.run import SCHEMA

from .render import note

if TYPE_CHECKING:
    from holdfast.agent.queue.view.group_runs import GroupRuns


def find_own(name: str, runs: str | None) -> FoundRun:
    """A run to act on; which one it is, is said where several have the name.

    Does not return where a newer holdfast wrote the run: this process then becomes that one, with the same words.

    Raises:
        HoldfastError: there is none, it belongs to somebody else, is closed, or nothing here reads it.
    """
    found = find_any(name, runs)
    _take_own(found)
    return found


def find_to_stop(name: str, runs: str | None) -> FoundRun:
    """A run to stop: as `find_own`; root finds those of other accounts, too.

    Raises:
        HoldfastError: as `find_own`.
    """
    found = find_any(name, runs)
    refuse_copy(found.run_dir)
    if is_own(found) or os.geteuid() != 0:
        _take_own(found)
    return found


def _take_own(found: FoundRun) -> None:
    require_own(found)
    require_readable(found)
    _hand_over_newer(found)


def _hand_over_newer(found: FoundRun) -> None:
    """Become the holdfast that wrote the run, if that is a newer one: only it knows what its records mean.

    Raises:
        StorageError: it is newer, and no bundle here reads it.
    """
    attempts = list_attempts(found.run_dir)
    newer = find_newer(found.run_dir, attempts[-1] if attempts else 0)
    if newer is None:
        return
    if newer.script is None:
        raise StorageError(
            f"{found.run_id} was written by a newer holdfast ({newer.version}, format {newer.number}; this one reads "
            f"up to {SCHEMA}), and no bundle of it is below {os.path.dirname(found.run_dir)}",
            hint="type the same with the holdfast that started it",
        )
    python = sys.executable
    os.execv(python, [python, "-X", "utf8", "-I", "-S", newer.script, "--", *sys.argv[1:]])


def find_readable(name: str, runs: str | None) -> FoundRun:
    """A run to look into; as `find_own`, and another account's where its owner lets everybody read.

    Raises:
        HoldfastError: there is none, or it is closed.
    """
    found = find_any(name, runs)
    require_readable(found)
    return found


def find_ending(name: str, runs: str | None) -> FoundRun:
    """A run whose end is waited for; as `find_readable`, but no copy that was taken before it.

    Raises:
        HoldfastError: there is none, it is closed, or never ends here.
    """
    found = find_readable(name, runs)
    refuse_copy(found.run_dir, live_only=True)
    return found


def find_any(name: str, runs: str | None) -> FoundRun:
    """A run, whether it can be looked into or not.

    Raises:
        HoldfastError: there is none.
    """
    found = find_run(name, root=runs)
    if found.notice:
        note(found.notice)
    return found


def means_group(name: str) -> bool:
    """Whether it is ``GROUP/``."""
    return name.endswith("/") and name.count("/") == 1


def find_group(name: str, runs: str | None) -> GroupRuns:
    """The runs of the jobs of ``GROUP/``.

    Raises:
        HoldfastError: there is no such group, or it cannot be read.
    """
    from holdfast.agent.queue.view.group_runs import find_group_runs  # lazy: the queue, which a run does not need

    return find_group_runs(name, list_roots(runs))


def list_named_ids(name: str, runs: str | None) -> tuple[str, ...]:
    """The ids of the runs that ``GROUP/`` or ``GROUP/NAME`` mean; the name itself where it is neither.

    Raises:
        NoSuchRun: there is no such group or job, or it has no run.
        NotPermitted: it is the copy of a run.
        HoldfastError: it cannot be read.
    """
    if means_group(name):
        return list_group_ids(name, runs)
    if name.count("/") != 1 or "*" in name or ":" in name:
        return (name,)
    found = find_any(name, runs)
    refuse_copy(found.run_dir)
    return (found.run_id,)


def list_group_ids(name: str, runs: str | None) -> tuple[str, ...]:
    """The ids of the runs of ``GROUP/``.

    Raises:
        NoSuchRun: there is no such group, or it has no run.
        HoldfastError: it cannot be read.
    """
    group = find_group(name, runs)
    ids = tuple(os.path.basename(path) for path in group.run_dirs if os.path.isdir(path))
    if not ids:
        why = f"the runs of {name} were removed (holdfast rm)" if group.removed else f"no job of {name} has a run"
        raise NoSuchRun(why, hint=f"holdfast queue ls {name.rstrip('/')}")
    return ids
