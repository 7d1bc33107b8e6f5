"""The entry ``remains``: what is only here of runs that have ended, for the gate of ``holdfast teardown``.

| words | answer |
|---|---|
| ``ID...`` | ``runs``: a `Remains` of each id; one that is not here any more is left out |
| ``--tree TREE ID`` | ``manifest``: that of the tree of code which this run was begun with |

A reader: it changes nothing.
"""

from __future__ import annotations

import os
import subprocess
import time
from functools import lru_cache

from holdfast.agent.view.find import find_run
from holdfast.agent.view.observe import list_attempts
from holdfast.agent.view.source_change import list_git, read_origin
from holdfast.host.files import files
from holdfast.host.files.code import store
from holdfast.host.files.snapshot import GIT
from holdfast.model import wire
from holdfast.model.errors import NoSuchRun, StorageError, UsageError
from holdfast.model.ids import is_run_id
from holdfast.model.origin import GitFacts
from holdfast.model.teardown import NO_RECORD, Remains

from .answer import answer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

MOST_RUNS = 5000
MOST_DIRECTORIES = 200_000
LONGEST_LOOK_S = 60.0
MOST_OFFLINE = 50
UNREADABLE = "unreadable"
MOST_MANIFEST = 6 << 20
"""A desk takes an answer of 8 MiB."""
GIT_S = 5.0
MOST_STATES = 16
"""Of that many states of the repository, the newest, it is asked whether a remote has the commit, and of the first."""
OFFLINE = "offline-run-"
SYNCED = ".synced"
"""wandb keeps a run that it has not sent in ``wandb/offline-run-TIME-ID/``, and `wandb sync` leaves ``ID.wandb.synced``
beside the run's file there. Source: wandb 0.16 to 0.19, wandb/sync/sync.py (`SYNCED_SUFFIX`)."""


def main(words: list[str]) -> int:
    """Answer once; the exit code."""
    return answer(lambda: _answer(words))


def _answer(words: list[str]) -> dict[str, object]:
    if words[:1] == ["--tree"] and len(words) == 3:
        return {"manifest": _read_manifest(words[1], words[2])}
    if not words or len(words) > MOST_RUNS or not all(is_run_id(word) for word in words):
        raise UsageError("agent remains takes ids of runs, or --tree TREE ID")
    end = time.monotonic() + LONGEST_LOOK_S
    found = {}
    for run_id in dict.fromkeys(words):
        try:
            found[run_id] = look(find_run(run_id).run_dir, end)
        except NoSuchRun:
            continue
    return {"runs": found}


def look(run_dir: str, end: float) -> Remains:
    """What is in the directory of a run, until `end` (monotonic)."""
    origin = read_origin(run_dir)
    offline, problem = list[str](), ""
    unread: list[OSError] = []
    for number, path in enumerate(_walk(run_dir, unread.append)):
        if number >= MOST_DIRECTORIES or time.monotonic() > end:
            problem = f"it has too many directories to be looked at in {LONGEST_LOOK_S:g} s"
            break
        if _is_unsent(path) and len(offline) < MOST_OFFLINE:
            offline.append(path)
    offline += _list_unsent_elsewhere(origin, run_dir, unread.append)
    if unread:
        problem = f"{unread[0].filename} cannot be read: {unread[0].strerror}"
    problem = problem if origin else NO_RECORD
    code: dict[str, Any] = {}
    try:
        code = _read_code(origin, run_dir)
    except (OSError, wire.WireError) as error:
        problem = problem or f"what code its attempts ran cannot be read: {error}"
    return Remains(
        run_dir,
        tuple(offline),
        problem=problem,
        **code,
        **_read_results(origin, run_dir),
    )


def _walk(top: str, refused: Callable[[OSError], None]) -> Iterator[str]:
    """The directories below, at any depth."""
    for directory, names, _ in os.walk(top, onerror=refused):
        for name in names:
            yield f"{directory}/{name}"


def _is_unsent(path: str) -> bool:
    if not os.path.basename(path).startswith(OFFLINE):
        return False
    try:
        return not any(name.endswith(SYNCED) for name in os.listdir(path))
    except OSError:
        return True


def _list_unsent_elsewhere(
    origin: dict[str, object], run_dir: str, refused: Callable[[OSError], None]
) -> Iterator[str]:
    """Unsent directories of a tracker where the job had its working directory, if that is not the run's own."""
    job = origin.get("job")
    workdir = job.get("workdir") if isinstance(job, dict) else None
    if not isinstance(workdir, str) or not os.path.isabs(workdir) or f"{workdir}/".startswith(f"{run_dir}/"):
        return
    try:
        names = sorted(os.listdir(f"{workdir}/wandb"))
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        refused(error)
        return
    yield from [path for name in names if _is_unsent(path := f"{workdir}/wandb/{name}")][:MOST_OFFLINE]


def _read_code(origin: dict[str, Any], run_dir: str) -> dict[str, Any]:
    """What is known of the code; of several states of the repository the one that shuts the gate most.

    Raises:
        OSError, WireError: a record of an attempt that may say it cannot be read.
    """
    code, snapshot, job = origin.get("code"), origin.get("snapshot"), origin.get("job")
    files_recorded = snapshot.get("files") if isinstance(snapshot, dict) else None
    workdir = job.get("workdir") if isinstance(job, dict) else None
    listed = files_recorded if isinstance(files_recorded, list) else ()
    copies = sum(isinstance(each, dict) and bool(each.get("copy")) for each in listed)
    sent = isinstance(code, dict)
    found = [facts for _, facts in list_git(run_dir, 0 if sent else max(list_attempts(run_dir), default=0), origin)]
    kept = [*found[:MOST_STATES], *found[MOST_STATES:][-1:]] or [GitFacts()]
    states = [(git, "" if sent else _find_pushed(git, workdir)) for git in kept]
    git, pushed = min(states, key=lambda state: _rate_safety(state[0], state[1], copies))
    return {
        "tree": str(code.get("tree", "")) if isinstance(code, dict) else "",
        "commit": code.get("commit") if isinstance(code, dict) else git.commit,
        "dirty": code.get("dirty") if isinstance(code, dict) else git.dirty,
        "pushed": pushed,
        "diff": bool(git.diff),
        "copies": copies,
    }


def _rate_safety(git: GitFacts, pushed: str, copies: int) -> int:
    """What opens the gate for a state (`desk.teardown.conditions`): 0 nothing, 1 a copy of its commit, 2 it is open."""
    if git.commit and (git.dirty is False or git.diff or copies):
        return 2 if pushed else 1
    return 2 if copies else 0


def _find_pushed(git: GitFacts, workdir: object) -> str:
    known = git.commit is not None and git.commit.isalnum() and isinstance(workdir, str)
    return _find_remote(workdir, git.commit) if known else ""


@lru_cache(maxsize=256)
def _find_remote(directory: str, commit: str) -> str:
    """A branch of a remote that has a commit, as the repository around `directory` says; empty: none, or unknown."""
    words = [*GIT, "-C", directory, "branch", "-r", "--contains", commit, "--format", "%(refname:short)"]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(
            words, capture_output=True, stdin=subprocess.DEVNULL, timeout=GIT_S, check=False, env=environ
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    found = done.stdout.decode("utf-8", "replace").split() if done.returncode == 0 else []
    return found[0] if found else ""


def _read_results(origin: dict[str, Any], run_dir: str) -> dict[str, Any]:
    """Where the results are to be copied, and why they are not proven there."""
    job = origin.get("job")
    stated = job.get("results") if isinstance(job, dict) else None
    to = stated.get("to") if isinstance(stated, dict) else None
    if not to:
        return {}
    newest = max(list_attempts(run_dir), default=0)
    path = f"{wire.attempt_dir(run_dir, newest)}/{wire.RESULTS}"
    try:
        found = wire.parse_object(files.read_bytes(path), path)
    except FileNotFoundError:
        return {"results": str(to)}
    except (OSError, wire.WireError) as error:
        return {"results": str(to), "results_state": UNREADABLE, "results_problem": str(error)}
    return {
        "results": str(to),
        "results_state": str(found.get("state")),
        "results_problem": str(found.get("problem") or ""),
    }


def _read_manifest(tree: str, run_id: str) -> str:
    root = os.path.dirname(find_run(run_id).run_dir)
    try:
        data = store.read_manifest(store.tree_dir(root, tree), tree).data
    except (OSError, ValueError) as error:
        raise StorageError(f"the list of the files of its code, tree {tree}, cannot be read: {error}") from error
    if len(data) > MOST_MANIFEST:
        raise StorageError(f"the list of the files of its code, tree {tree}, is too long to be sent")
    return data.decode("utf-8", "surrogateescape")
