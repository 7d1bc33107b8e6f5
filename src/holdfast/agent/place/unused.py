"""Removes the bundles and code trees of this account that nothing below the runs root needs any more.

A bundle is needed while an unfinished run names it (``run.json``), an entry of a clock calls it (patrol, queue), or a
process uses it; a code tree while any run directory or a job of the queue names it, or a process uses it. Either also
while it was used in the last week, whoever did. Where something cannot be read nothing is removed: unreadable is not
unused. On a network file system other machines' processes are not to be seen, so there a bundle must have been unused
for long.

What goes is renamed aside first and looked at again: who used it in between gets it back.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

from holdfast.agent.patrol import schedule
from holdfast.agent.view.observe import observe_run
from holdfast.agent.view.runs.roots import list_roots
from holdfast.host.files import files
from holdfast.host.files.code import store
from holdfast.host.files.filesystems import is_local
from holdfast.host.formats.own_bundle import find_own_bundle, find_own_root
from holdfast.host.process.processes import list_pids, read_uid
from holdfast.model import wire
from holdfast.model.errors import StorageError
from holdfast.model.ids import is_run_id
from holdfast.model.runs_root import bundles_dir
from holdfast.store.paths import default_root, queue_directory
from holdfast.store.queue.journal import list_ordered_trees

WEEK_S = 7 * 86400.0
UNSEEN_S = 60 * 86400.0
"""How long unused on a file system where other machines may use it."""
OLD = ".old-"
ASIDE_S = 3600.0
CALL = ".call-"
"""What lies there for one call of a desk (`cli.placed.desk_files`)."""
CALL_S = 2 * 86400.0
MOST_RECORD_BYTES = 8 << 20


def remove_unused(root: str | None = None, *, now_s: float | None = None) -> dict[str, Any]:
    """``removed`` and ``kept`` (path to reason), of bundles and code trees below `root`, else below the place's own."""
    root = root or find_own_root() or default_root()
    now = time.time() if now_s is None else now_s
    bundles, trees = bundles_dir(root, os.geteuid()), store.trees_dir(root)
    age_s = WEEK_S if is_local(root) else UNSEEN_S
    kept: dict[str, str] = {}
    old = [path for path in _list(bundles) if _is_old(path, now - age_s, kept)]
    old_trees = [path for path in _list(trees) if _is_old(path, now - age_s, kept)]
    kept.update({path: "this very one" for path in old if os.path.basename(path) == find_own_bundle()})
    candidates = [path for path in (*old, *old_trees) if path not in kept]
    if candidates:
        try:
            kept.update(_find_users(candidates, root))
        except (OSError, StorageError) as error:
            kept.update(dict.fromkeys(candidates, f"what uses it cannot be told: {error}"))
    removed = [path for path in candidates if path not in kept and _remove(path, now - age_s)]
    for directory in (bundles, trees):
        _finish(directory)
    return {"removed": removed, "kept": kept}


def _list(directory: str) -> list[str]:
    try:
        return sorted(entry.path for entry in os.scandir(directory) if not entry.name.startswith("."))
    except OSError:
        return []


def _is_old(path: str, before_s: float, kept: dict[str, str]) -> bool:
    try:
        old = os.stat(path, follow_symlinks=False).st_mtime < before_s
    except OSError as error:
        kept[path] = f"cannot be looked at: {error.strerror}"
        return False
    if not old:
        kept[path] = "used lately"
    return old


def _find_users(candidates: list[str], root: str) -> dict[str, str]:
    """Why some of these directories are needed; nothing that cannot be read is passed over.

    Raises:
        OSError, StorageError: runs, the queue or clock entries cannot be read.
    """
    found: dict[str, str] = {}
    wanted = {os.path.basename(path): path for path in candidates}
    for path, reason in _list_named(wanted, root):
        found.setdefault(path, reason)
    for tree in list_ordered_trees(queue_directory()):
        if tree in wanted:
            found.setdefault(wanted[tree], "a job of the queue needs it")
    entries = schedule.read_entries()
    found.update({path: "an entry of a clock calls it" for path in candidates if path in entries})
    left = [path for path in candidates if path not in found]
    for pid, text in _list_processes():
        for path in left:
            if os.fsencode(path) in text:
                found.setdefault(path, f"process {pid} uses it")
    return found


def _list_named(wanted: dict[str, str], root: str) -> Iterator[tuple[str, str]]:
    """Directories that runs of this account name, with the reason."""
    for runs in dict.fromkeys([root, *list_roots()]):
        try:
            names = os.listdir(runs)
        except FileNotFoundError:
            continue
        for name in filter(is_run_id, names):
            run_dir = f"{runs}/{name}"
            try:
                if os.stat(run_dir, follow_symlinks=False).st_uid != os.geteuid():
                    continue
                data = files.read_bytes(f"{run_dir}/{wire.RUN}", limit=MOST_RECORD_BYTES)
            except FileNotFoundError:
                continue  # no run, or one that is being removed
            try:
                origin = wire.parse_object(data, wire.RUN)
            except wire.WireError as error:
                raise StorageError(f"{run_dir}: {error}") from error
            code, bundle = origin.get("code"), str(origin.get("bundle"))
            if isinstance(code, dict) and str(code.get("tree")) in wanted:
                yield wanted[str(code["tree"])], f"run {name} has its code"
            if bundle in wanted and not observe_run(run_dir).over:
                yield wanted[bundle], f"run {name} has not ended"


def _list_processes() -> Iterator[tuple[int, bytes]]:
    """Command line, environment and working directory of each other process of this account that we may read."""
    for pid in list_pids():
        if pid == os.getpid() or read_uid(pid) != os.geteuid():
            continue
        texts = []
        for name in ("cmdline", "environ"):
            try:
                with open(f"/proc/{pid}/{name}", "rb") as file:
                    texts.append(file.read())
            except OSError:
                continue
        try:
            texts.append(os.fsencode(os.readlink(f"/proc/{pid}/cwd")))
        except OSError:
            pass
        yield pid, b"\0".join(texts)


def _remove(path: str, before_s: float) -> bool:
    """Rename aside and remove; False when somebody used it meanwhile, or it cannot be renamed."""
    aside = f"{os.path.dirname(path)}/{OLD}{os.path.basename(path)}-{os.getpid()}-{os.urandom(4).hex()}"
    try:
        os.rename(path, aside)
        if os.stat(aside).st_mtime >= before_s:
            os.rename(aside, path)
            return False
    except OSError:
        return False
    _remove_quietly(aside)
    return True


def _finish(directory: str) -> None:
    """Remove what was left by a removal or a call that was killed, not what another one works with just now."""
    for prefix, age_s in ((OLD, ASIDE_S), (CALL, CALL_S)):
        try:
            entries = [entry for entry in os.scandir(directory) if entry.name.startswith(prefix)]
            left = [one.path for one in entries if one.stat(follow_symlinks=False).st_ctime < time.time() - age_s]
        except OSError:
            return
        for path in left:
            _remove_quietly(path)


def _remove_quietly(path: str) -> None:
    """What cannot be removed now goes with a later removal."""
    try:
        store.remove_tree(path)
    except OSError:
        return
