"""Finding runs: from a name that somebody gave to a run directory.

A run answers to its id, to a unique beginning of it, to its human name (of several the one that lives, else the newest,
with a notice), to the path of its directory, and to its job's name in the queue, GROUP/NAME. Only directory names are
read for it: no database but the list of remembered roots (and, for such a name, the queue), and no run file unless
several runs have the name.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from holdfast.core.near import find_near
from holdfast.host.files import files
from holdfast.host.formats.copy_mark import describe_mark, find_copy, read_mark
from holdfast.host.process.processes import user_name
from holdfast.model import wire
from holdfast.model.errors import HoldfastError, NoSuchRun, NotPermitted, UsageError
from holdfast.model.ids import is_name, is_run_id, name_of
from holdfast.model.queue import DEFAULT_GROUP
from holdfast.model.record import record

from .runs.roots import list_roots

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from holdfast.model.lease import LeaseRecord


@record
class FoundRun:
    """A run that was found: where it is, its id, and a sentence about how, when that needs one.

    `unique` is False for one of several that have the name.
    """

    run_dir: str
    run_id: str
    root: str
    notice: str | None = None
    unique: bool = True


def find_run(text: str, *, root: str | None = None) -> FoundRun:
    """The run that `text` names; `root` restricts the search to one runs root.

    Raises:
        NoSuchRun: nothing answers to it.
        NotPermitted: it is another account's.
        UsageError: it is the beginning of several ids, or the name of several runs that have not ended.
    """
    if "/" in text:
        return _find_path(text)
    roots = list_roots(root)
    if is_run_id(text):
        for place in roots:
            if _is_directory(f"{place}/{text}"):
                return FoundRun(f"{place}/{text}", text, place)
    runs = sorted(_list_runs(roots), reverse=True)
    if is_run_id(text):
        return _look_elsewhere(text, roots, runs)
    named = [(run_id, place) for run_id, place in runs if name_of(run_id) == text]
    if named:
        return _choose(text, named)
    begun = [(run_id, place) for run_id, place in runs if run_id.startswith(text)] if text else []
    if len(begun) > 1:
        shown = ", ".join(run_id for run_id, _ in begun[:5]) + (", ..." if len(begun) > 5 else "")
        raise UsageError(f"{len(begun)} runs begin with {text!r}: {shown}", hint="type more of the id, or its name")
    if not begun:
        return _look_elsewhere(text, roots, runs)
    run_id, place = begun[0]
    return FoundRun(f"{place}/{run_id}", run_id, place)


def is_own(found: FoundRun) -> bool:
    """Whether a run belongs to this account."""
    return os.stat(found.run_dir).st_uid == os.geteuid()


def require_own(found: FoundRun) -> None:
    """Refuse to act on a run of another account, also for root: its owner acts, nobody else. Nor on a copy.

    Raises:
        NotPermitted: it belongs to somebody else, or is a copy.
    """
    refuse_copy(found.run_dir)
    if not is_own(found):
        raise _foreign(found.run_id, os.stat(found.run_dir).st_uid)


def refuse_copy(run_dir: str, *, live_only: bool = False) -> None:
    """Refuse to act on the copy of a run; with `live_only` one that was taken before its end, which never comes here.

    Raises:
        NotPermitted: it is one.
    """
    mark = find_copy(run_dir, _read_run_id(run_dir))
    if mark is None or (live_only and not mark.live):
        return
    if not mark.place:
        hint = f"name that run; if it was renamed, call its directory {mark.run_id} again"
        raise NotPermitted(f"{run_dir} is a {describe_mark(mark)}", hint=hint)
    raise NotPermitted(
        f"{run_dir} is a {describe_mark(mark)}, and not the run itself",
        hint=f"name the run: {mark.place}:{mark.run_id}",
    )


def _read_run_id(run_dir: str) -> object:
    """The id in a run's record; None when that cannot be read, which others say."""
    try:
        return wire.parse_object(files.read_bytes(f"{run_dir}/{wire.RUN}"), wire.RUN).get("run_id")
    except (OSError, wire.WireError):
        return None


def require_readable(found: FoundRun) -> None:
    """Refuse to look into what cannot be looked into: closed is not empty.

    Raises:
        NotPermitted: it belongs to somebody else, or its owner has closed it.
    """
    if not is_closed(found.run_dir):
        return
    require_own(found)
    raise own_closed(found.run_dir)


def is_closed(run_dir: str) -> bool:
    """Whether this account cannot look into a directory."""
    return not os.access(run_dir, os.R_OK | os.X_OK, effective_ids=True)


def own_closed(run_dir: str) -> NotPermitted:
    """The refusal of a run that its own account has closed, with what opens it."""
    return NotPermitted(f"{run_dir} is closed to its own account", hint=f"chmod u+rwx {run_dir}")


def complete_run(incomplete: str) -> list[tuple[str, str]]:
    """Ids and names that begin with `incomplete`, newest first, as (word, help): for shell completion."""
    words: dict[str, str] = {}
    for run_id, _ in sorted(_list_runs(list_roots()), reverse=True):
        for word, about in ((name_of(run_id), f"newest: {run_id}"), (run_id, "")):
            if word.startswith(incomplete) and (word != name_of(run_id) or incomplete[:1] not in "0123456789"):
                words.setdefault(word, about)
    return list(words.items())[:50]


def _choose(text: str, named: list[tuple[str, str]]) -> FoundRun:
    if len(named) == 1:
        run_id, place = named[0]
        return FoundRun(f"{place}/{run_id}", run_id, place)
    from .runs.namesakes import choose_namesake  # lazy: for a name that several runs have

    run_id, place, notice = choose_namesake(text, named)
    return FoundRun(f"{place}/{run_id}", run_id, place, notice, unique=False)


def _find_path(text: str) -> FoundRun:
    path = os.path.abspath(text)
    root, run_id = os.path.split(path)
    mark = read_mark(path)
    if mark is not None:
        return FoundRun(path, mark.run_id, root, f"{text} is a {describe_mark(mark)}")
    if not is_run_id(run_id):
        job = find_job(text)
        if job is not None:
            return job
        raise NoSuchRun(
            f"{text} is neither a run's directory (its name is no run id) nor a job of the queue",
            hint=point_at_group(text, list_roots()) or "holdfast ls lists the runs, holdfast queue ls the jobs",
        )
    try:
        os.lstat(path)
    except FileNotFoundError:
        raise NoSuchRun(f"there is no {path}", hint="holdfast ls lists the runs") from None
    except PermissionError as error:
        raise NotPermitted(f"{path} is not open to this account", hint="ask its owner") from error
    return FoundRun(path, run_id, root)


def find_run_path(run: str, path: str) -> tuple[FoundRun, str]:
    """The run that ``RUN/PATH`` or, where no run is called so, ``GROUP/NAME/PATH`` names, and the path in it.

    Raises:
        HoldfastError: as of `find_run`.
        UsageError: it names a job, and nothing in its run.
    """
    try:
        return find_run(run), path
    except NoSuchRun:
        name, _, inside = path.partition("/")
        job = find_job(f"{run}/{name}")
        if job is None:
            raise
        if not inside.strip("/"):
            job_name = f"{run}/{name}"
            raise UsageError(
                f"{job_name!r} names no file of a run",
                hint=f"write {job_name}/PATH; `holdfast files {job_name}` lists what is there",
            ) from None
        return job, inside


def find_job(label: str) -> FoundRun | None:
    """The run of the job that is called GROUP/NAME in this account's queue or sweeps; None when there is no such job.

    Raises:
        NoSuchRun: the job has no run yet, or it was removed.
    """
    group, _, name = label.partition("/")
    if not group.strip(".") or not name or "/" in name:
        return None

    from .runs.by_label import find_labelled  # lazy: for GROUP/NAME alone

    found = find_labelled(label, list_roots())
    return None if found is None else FoundRun(f"{found[0]}/{found[1]}", found[1], found[0], found[2])


def _explain_job(name: str) -> NoSuchRun | None:
    """Why a job of the queue's default group that is called so has no run; None: there is none, or nothing reads it."""
    try:
        found = find_job(f"{DEFAULT_GROUP}/{name}")
    except NoSuchRun as error:
        return error
    except (HoldfastError, OSError):
        # It only makes a refusal more precise; the plain one stands without it.
        return None
    if found is None or _is_directory(found.run_dir):
        return None
    return NoSuchRun(f"the run of the job {name} has gone: {found.run_dir}", hint=f"holdfast queue show {name}")


def point_at_group(text: str, roots: Iterable[str]) -> str:
    """The commands for all jobs of a group, where a group is called so, with or without a slash at the end."""
    from .runs.by_label import is_group  # lazy: for a run that is not found

    group = text.rstrip("/")
    if not is_name(group) or not is_group(group, roots):
        return ""
    return (
        f"{group} is a group of jobs: holdfast sweep show {group}; their runs: holdfast ls {group}/; their output: "
        f"holdfast logs {group}/; to stop them all: holdfast queue cancel {group}/ --running"
    )


def _list_runs(roots: Iterable[str]) -> list[tuple[str, str]]:
    """Ids with the first root that has them: one root may be known by two names."""
    found: dict[str, str] = {}
    for root in roots:
        try:
            names = os.listdir(root)
        except OSError:
            continue
        for name in filter(is_run_id, names):
            found.setdefault(name, root)
    return list(found.items())


def _is_directory(path: str) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False


def _find_foreign(leased: LeaseRecord) -> FoundRun | None:
    """The run of another account, where its directory is the one that its lease names, and open to us."""
    root, run_id = os.path.split(leased.run_dir)
    try:
        owner = os.lstat(leased.run_dir).st_uid
    except OSError:
        return None
    readable = os.access(leased.run_dir, os.R_OK | os.X_OK, effective_ids=True)
    named = run_id == leased.run_id and owner == leased.uid
    return FoundRun(leased.run_dir, run_id, root) if named and readable else None


def _look_elsewhere(text: str, roots: list[str], runs: list[tuple[str, str]]) -> FoundRun:
    """A run that is under none of our roots: of another account, by its lease or, for root, in its directory.

    Raises:
        NoSuchRun: there is none.
        NotPermitted: it is another account's, and closed.
    """
    found = _missing(text, roots, runs)
    if isinstance(found, FoundRun):
        return found
    raise found


def _missing(text: str, roots: list[str], runs: list[tuple[str, str]]) -> FoundRun | NoSuchRun | NotPermitted:
    leased = _find_lease(text)
    if leased is not None and leased.uid != os.geteuid():
        return _find_foreign(leased) or _foreign(leased.run_id, leased.uid)
    if leased is None and os.geteuid() == 0 and is_run_id(text):
        from .runs.accounts import find_of_account  # lazy: for root alone

        found = find_of_account(text)
        if found is not None:
            return FoundRun(found, text, os.path.dirname(found))
    if leased is not None:
        pid = leased.supervisor.pid
        return NoSuchRun(
            f"{leased.run_id} has a lease, and its run directory {leased.run_dir} cannot be seen from here",
            hint=f"if that disk is gone for good, `kill -TERM {pid}` (its supervisor) stops the run",
        )
    if is_name(text) and (job := _explain_job(text)) is not None:
        return job
    names = list(dict.fromkeys(name_of(run_id) for run_id, _ in runs))
    near = find_near(text, names)
    hint = f"did you mean {near}?" if near else "holdfast ls lists the runs; --runs DIR looks elsewhere"
    if "*" in text:
        hint = f"here a run is named, and none by a pattern; holdfast ls {text!r} lists those that match"
    if text and read_mark(text) is not None:
        hint = f"the copy that is here is named with its path: ./{text}"
    hint = point_at_group(text, roots) or hint
    there = [root for root in roots if os.path.isdir(root)] or roots[:1]
    where = "; ".join([", ".join(there), *_list_closed(roots)])
    return NoSuchRun(f"no run answers to {text!r} under {where}", hint=hint)


def _list_closed(roots: Iterable[str]) -> Iterator[str]:
    """What is to be said of roots that cannot be looked into: closed is not empty."""
    for root in roots:
        try:
            os.scandir(root).close()
        except FileNotFoundError:
            continue
        except OSError as error:
            yield f"{root} cannot be read: {error.strerror}"


def _find_lease(text: str) -> LeaseRecord | None:
    """A run that lives is known by its public lease record, though its directory is closed to us, or gone."""
    from holdfast.host.lease import area, records  # lazy: for a run that is not found

    try:
        published = area.open_existing_area()
        listed = () if published is None else records.read_records(published)[0]
    except (HoldfastError, OSError):
        # It only makes a refusal more precise; the plain one stands without it.
        return None
    # Anybody can write a record with anybody's run id: ours comes first.
    for found in sorted(listed, key=lambda found: found.record.uid != os.geteuid()):
        own = found.record.uid == os.geteuid() and name_of(found.record.run_id) == text
        if (own or found.record.run_id == text) and records.judge_record(found).holds:
            return found.record
    return None


def _foreign(run_id: str, uid: int) -> NotPermitted:
    owner, me = user_name(uid), user_name(os.geteuid())
    return NotPermitted(
        f"{run_id} belongs to {owner}; you are {me}",
        hint=f"ask {owner}: only its owner may act on a run, and root may stop it with --reason",
        details={"owner": owner, "run_id": run_id},
    )
