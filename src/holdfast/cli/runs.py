"""Finding runs: from what a person typed to a run directory.

A run answers to its id, to a unique beginning of it, to its human name (the newest of several, with a notice), to
the path of its directory, and to its cell's name in the queue, GROUP/NAME. Only directory names are read for it: no
database but the list of remembered roots (and, for such a name, the queue), no run file.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from holdfast.model.errors import NoSuchRun, NotPermitted, UsageError
from holdfast.model.ids import is_run_id, name_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.model.lease import LeaseRecord


class Found(NamedTuple):
    """A run that was found: where it is, its id, and a sentence about how, when that needs one."""

    run_dir: str
    run_id: str
    root: str
    notice: str | None = None


def default_root() -> str:
    """The runs root without ``--runs``: ``$HOLDFAST_RUNS``, else ``~/.local/share/holdfast/runs``."""
    return os.path.abspath(os.environ.get("HOLDFAST_RUNS") or os.path.expanduser("~/.local/share/holdfast/runs"))


def choose_root(runs: str | None, *, remember: bool = True) -> str:
    """The runs root of a new run; one that was named is remembered, so that the other verbs find its runs."""
    if runs is None:
        return default_root()
    root = os.path.abspath(os.path.expanduser(runs))
    if remember:
        from holdfast.store.index import Index

        with Index() as index:
            index.remember_root(root)
    return root


def list_roots(chosen: str | None = None) -> list[str]:
    """Where runs may be: `chosen` alone when given, else the default root and every remembered one."""
    if chosen is not None:
        return [os.path.abspath(chosen)]
    from holdfast.store.index import Index

    with Index() as index:
        return list(dict.fromkeys([default_root(), *index.roots()]))


def find(text: str, *, root: str | None = None) -> Found:
    """The run that `text` names; `root` restricts the search to one runs root.

    Raises:
        NoSuchRun: nothing answers to it.
        NotPermitted: it is another account's.
        UsageError: it is the beginning of several ids.
    """
    if "/" in text:
        return _find_path(text)
    roots = list_roots(root)
    if is_run_id(text):
        for place in roots:
            if _is_directory(f"{place}/{text}"):
                return Found(f"{place}/{text}", text, place)
    runs = sorted(_list_runs(roots), reverse=True)
    if is_run_id(text):
        raise _missing(text, roots, runs)
    named = [(run_id, place) for run_id, place in runs if name_of(run_id) == text]
    if named:
        return _newest(text, named)
    begun = [(run_id, place) for run_id, place in runs if run_id.startswith(text)] if text else []
    if len(begun) > 1:
        shown = ", ".join(run_id for run_id, _ in begun[:5]) + (", ..." if len(begun) > 5 else "")
        raise UsageError(f"{len(begun)} runs begin with {text!r}: {shown}", hint="type more of the id, or its name")
    if not begun:
        raise _missing(text, roots, runs)
    run_id, place = begun[0]
    return Found(f"{place}/{run_id}", run_id, place)


def require_own(found: Found) -> None:
    """Refuse to act on a run of another account, also for root: its owner acts, nobody else.

    Raises:
        NotPermitted: it belongs to somebody else.
    """
    owner = os.stat(found.run_dir).st_uid
    if owner != os.geteuid():
        raise _foreign(found.run_id, owner)


def require_readable(found: Found) -> None:
    """Refuse to look into what cannot be looked into: closed is not empty.

    Raises:
        NotPermitted: it belongs to somebody else, or its owner has closed it.
    """
    if os.access(found.run_dir, os.R_OK | os.X_OK, effective_ids=True):
        return
    require_own(found)
    raise NotPermitted(f"{found.run_dir} is closed to its own account", hint=f"chmod u+rwx {found.run_dir}")


def complete(incomplete: str) -> list[tuple[str, str]]:
    """Ids and names that begin with `incomplete`, newest first, as (word, help): for shell completion."""
    words: dict[str, str] = {}
    for run_id, _ in sorted(_list_runs(list_roots()), reverse=True):
        for word, about in ((name_of(run_id), f"newest: {run_id}"), (run_id, "")):
            if word.startswith(incomplete) and (word != name_of(run_id) or incomplete[:1] not in "0123456789"):
                words.setdefault(word, about)
    return list(words.items())[:50]


def _newest(text: str, named: list[tuple[str, str]]) -> Found:
    run_id, place = named[0]
    notice = None
    if len(named) > 1:
        notice = f"{len(named)} runs are named {text!r}; this is the newest, {run_id}"
    return Found(f"{place}/{run_id}", run_id, place, notice)


def _find_path(text: str) -> Found:
    path = os.path.abspath(text)
    root, run_id = os.path.split(path)
    if not is_run_id(run_id):
        cell = _find_cell(text)
        if cell is not None:
            return cell
        raise NoSuchRun(
            f"{text} is neither a run's directory (its name is no run id) nor a cell of the queue",
            hint="holdfast ls lists the runs, holdfast queue ls the cells",
        )
    try:
        os.lstat(path)
    except FileNotFoundError:
        raise NoSuchRun(f"there is no {path}", hint="holdfast ls lists the runs") from None
    except PermissionError as error:
        raise NotPermitted(f"{path} is not open to this account", hint="ask its owner") from error
    return Found(path, run_id, root)


def _find_cell(label: str) -> Found | None:
    """The run of the cell that is called GROUP/NAME in this account's queue; None when there is no such cell.

    Raises:
        NoSuchRun: the cell has no run directory.
    """
    from holdfast.store.queue import queue_directory

    group, _, name = label.partition("/")
    if not group.strip(".") or not name or "/" in name or not os.path.isdir(queue_directory()):
        return None
    from .queueing.opening import open_queue

    try:
        with open_queue() as queue:
            cell = queue.find([label])[0]
    except UsageError:
        return None
    if cell.lean:
        from holdfast.agent.queueing.lean import log_path

        raise NoSuchRun(f"{label} is a lean cell, which has no run directory", hint=f"its output is {log_path(cell)}")
    if cell.run_id is None:
        raise NoSuchRun(f"{label} has no run yet: it is {cell.state.value}", hint=f"holdfast queue show {label}")
    return Found(f"{cell.runs_root}/{cell.run_id}", cell.run_id, cell.runs_root)


def _list_runs(roots: Iterable[str]) -> list[tuple[str, str]]:
    found = []
    for root in roots:
        try:
            names = os.listdir(root)
        except OSError:
            continue
        found += [(name, root) for name in names if is_run_id(name)]
    return found


def _is_directory(path: str) -> bool:
    import stat

    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False


def _missing(text: str, roots: list[str], runs: list[tuple[str, str]]) -> NoSuchRun | NotPermitted:
    leased = _find_lease(text)
    if leased is not None and leased.uid != os.geteuid():
        return _foreign(leased.run_id, leased.uid)
    if leased is not None:
        pid = leased.supervisor.pid
        return NoSuchRun(
            f"{leased.run_id} has a lease, and its run directory {leased.run_dir} cannot be seen from here",
            hint=f"if that disk is gone for good, `kill -TERM {pid}` (its supervisor) stops the run",
        )
    import difflib

    names = list(dict.fromkeys(name_of(run_id) for run_id, _ in runs))
    near = difflib.get_close_matches(text, names, n=1)
    hint = f"did you mean {near[0]}?" if near else "holdfast ls lists the runs; --runs DIR looks elsewhere"
    return NoSuchRun(f"no run answers to {text!r} under {', '.join(roots)}", hint=hint)


def _find_lease(text: str) -> LeaseRecord | None:
    """A run that lives is known by its public lease record, though its directory is closed to us, or gone."""
    from holdfast.host import lease_records
    from holdfast.model.errors import HoldfastError

    from .cards import open_existing_area

    try:
        area = open_existing_area()
        records = () if area is None else lease_records.read_records(area)[0]
    except (HoldfastError, OSError):
        # It only makes a refusal more precise; the plain one stands without it.
        return None
    for found in records:
        if found.record.run_id == text or (found.record.uid == os.geteuid() and name_of(found.record.run_id) == text):
            return found.record if lease_records.judge(found).holds else None
    return None


def _foreign(run_id: str, uid: int) -> NotPermitted:
    from holdfast.host.processes import user_name

    owner, me = user_name(uid), user_name(os.geteuid())
    return NotPermitted(
        f"{run_id} belongs to {owner}; you are {me}",
        hint=f"ask {owner}: only the owner of a run may act on it",
        details={"owner": owner, "run_id": run_id},
    )
