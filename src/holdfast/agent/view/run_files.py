"""The files of a run, live or ended: which there are, and one of them or a directory as a stream that proves itself.

A path is relative to the run's directory; ``work`` is the job's working directory, wherever that is. Nothing outside of
these two is read: links that lead out are left out, and named. A stream is lines of JSON, with contents in between:
``begin`` (how many files and bytes), then for each entry a line, for a file its bytes (as many as it had then) and a
line with their SHA-256; ``end`` with what was left out, and what is not what was proven at the end of the run.
`transfer.fetch` reads it.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterator
from typing import TYPE_CHECKING

from holdfast.agent.view.runs.proven_results import find_proven
from holdfast.core.run.recorded_results import Change
from holdfast.host.clock import epoch_s, format_utc
from holdfast.host.formats.copy_mark import read_mark
from holdfast.model import wire
from holdfast.model.errors import NoSuchName, StorageError, UsageError
from holdfast.model.record import record
from holdfast.model.run import SCHEMA

from .observe import observe_run

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

WORK = "work"
CHUNK_BYTES = 1 << 18
MOST_ENTRIES = 100_000
MOST_LISTED = 2000
MOST_LEFT_OUT = 100
LONGEST_TOLD = 24 << 10


@record
class RunFile:
    """An entry of a directory of a run: `kind` is ``file``, ``dir``, ``link`` or ``other``; `modified_at` in UTC.

    That was `age_s` ago by the box's clock.
    """

    name: str
    kind: str
    size_bytes: int
    modified_at: str
    age_s: float


@record
class FileList:
    """What is in one directory of a run, by name; `cut`: there is more than was listed."""

    run_id: str
    path: str
    directory: str
    files: tuple[RunFile, ...]
    cut: bool = False


@record
class _Entry:
    path: str
    kind: str
    place: str
    size: int = 0
    mode: int = 0
    modified: float = 0.0
    link: str = ""


def find_path(run_dir: str, path: str) -> str:
    """The real path of something of a run.

    Raises:
        NoSuchName: it is not there.
        UsageError: it is not below the run's directory or the job's working directory.
        StorageError: it is closed to us.
    """
    first, _, rest = path.strip("/").partition("/")
    top = run_dir
    if first == WORK:
        view = observe_run(run_dir)
        workdir = None if view.copy is not None else view.spec.get("workdir")  # a copy has what was in the run alone
        top, rest = (workdir, rest) if isinstance(workdir, str) else (run_dir, path)
    else:
        rest = path
    if path.startswith("/") or ".." in path.split("/"):
        raise UsageError(
            f"{path!r} is no path below a run",
            hint=f"write it as `holdfast files {os.path.basename(run_dir)}` lists it",
        )
    base = os.path.realpath(top)
    try:
        found = os.path.realpath(os.path.join(base, rest.strip("/")), strict=True)
    except OSError as error:
        run_id = os.path.basename(run_dir)
        absent = isinstance(error, (FileNotFoundError, NotADirectoryError))
        near = find_in_attempts(run_dir, path) if absent else ""
        meant = f"did you mean {near}? " if near else ""
        raise (NoSuchName if absent else StorageError)(
            f"{path or '.'}: {error.strerror}", hint=f"{meant}`holdfast files {run_id}` lists what is there"
        ) from error
    if found != base and not found.startswith(base.rstrip("/") + "/"):
        raise UsageError(f"{path} is a link out of the run, to {found}", hint="copy it by hand, if it is yours")
    return found


def find_in_attempts(run_dir: str, path: str) -> str:
    """Where in a run a file is that belongs to an attempt, such as ``output.log``: of the newest; empty: in none."""
    try:
        numbers = sorted((int(name) for name in os.listdir(f"{run_dir}/attempts") if name.isdigit()), reverse=True)
    except OSError:
        return ""
    found = (f"attempts/{number}/{path}" for number in numbers)
    return next((name for name in found if path and os.path.lexists(f"{run_dir}/{name}")), "")


def list_files(run_dir: str, path: str) -> FileList:
    """One directory of a run, or one file of it.

    Raises:
        NoSuchName, UsageError, StorageError: as of `find_path`.
    """
    found = find_path(run_dir, path)
    names = sorted(os.listdir(found)) if os.path.isdir(found) else [""]
    if not path.strip("/") and read_mark(run_dir) is None:
        names = sorted({*names, WORK})
    rows = []
    for name in names[:MOST_LISTED]:
        where = os.path.join(found, name) if name else found
        if name == WORK and not path.strip("/"):
            where = find_path(run_dir, WORK)
        try:
            seen = os.lstat(where)
        except OSError:
            continue  # it went just now
        size = seen.st_size if stat.S_ISREG(seen.st_mode) else 0
        age_s = round(max(0.0, epoch_s() - seen.st_mtime), 1)
        shown = name or os.path.basename(found)
        rows.append(RunFile(shown, _name_kind(seen.st_mode), size, format_utc(seen.st_mtime), age_s))
    return FileList(os.path.basename(run_dir), path, found, tuple(rows), len(names) > MOST_LISTED)


def send_files(run_dir: str, path: str) -> Iterator[bytes]:
    """The stream of a file or directory of a run.

    Raises:
        NoSuchName, UsageError, StorageError: as of `find_path`; or it is too much, cannot be read, or shrank meanwhile.
    """
    if not path.strip("/"):
        hint = f"`holdfast files {os.path.basename(run_dir)}` lists them; RUN/artifacts"
        raise UsageError("which file or directory of the run?", hint=hint)
    found = find_path(run_dir, path)
    yield from send_path(found, os.path.basename(path.strip("/")), changed=_find_changed(run_dir, found))


def _find_changed(run_dir: str, found: str) -> list[str]:
    """Which results below a real path are not what they were when they were proven, in words.

    What a copy does not have was not wanted, or is named by its receipt: nothing of it went away.
    """
    results = os.path.realpath(f"{run_dir}/{wire.ARTIFACTS}")
    if os.path.commonpath((results, found)) not in (results, found):
        return []
    view = observe_run(run_dir)
    changed = find_proven(view).changed
    return [
        f"{name} {how.words}"
        for name, how in changed.items()
        if f"{results}{name.removeprefix(wire.ARTIFACTS)}/".startswith(f"{found}/")
        and not (how is Change.GONE and view.copy is not None)
    ]


def send_path(found: str, name: str, *, changed: Sequence[str] = ()) -> Iterator[bytes]:
    """The stream of any file or directory, under the name `name`. Raises as `send_files`.

    `changed` says in words what of it is not what was proven at the end of its run.
    """
    entries, left_out = _gather(found)
    yield _line(
        {
            "schema": SCHEMA,
            "name": name,
            "entries": len(entries),
            "bytes": sum(entry.size for entry in entries),
            "directory": os.path.isdir(found),
        }
    )
    for entry in entries:
        head: dict[str, object] = {"path": entry.path, "kind": entry.kind, "mode": entry.mode, "mtime": entry.modified}
        if entry.kind == "link":
            yield _line({**head, "link": entry.link})
        elif entry.kind == "dir":
            yield _line(head)
        else:
            yield _line({**head, "size": entry.size})
            yield from _send_contents(entry)
    end = {"end": True, "left_out": _choose_told(left_out), "left_out_count": len(left_out)}
    yield _line({**end, "changed": _choose_told(changed), "changed_count": len(changed)})


def _choose_told(texts: Sequence[str]) -> list[str]:
    """The first of these, as many as one line of the stream takes beside as many others (`transfer.fetch`)."""
    told, left = [], LONGEST_TOLD
    for text in texts[:MOST_LEFT_OUT]:
        left -= len(json.dumps(text)) + len(", ")
        if left < 0:
            break
        told.append(text)
    return told


def _send_contents(entry: _Entry) -> Iterator[bytes]:
    digest, left = hashlib.sha256(), entry.size
    name = entry.path or os.path.basename(entry.place)
    try:
        descriptor = os.open(entry.place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise StorageError(f"{name} cannot be read: {error.strerror}", hint=_AGAIN) from error
    with open(descriptor, "rb", buffering=0) as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise StorageError(f"{name} is no file any more", hint=_AGAIN)
        while left:
            data = file.read(min(left, CHUNK_BYTES))
            if not data:
                raise StorageError(f"{name} became shorter while it was copied", hint=_AGAIN)
            digest.update(data)
            left -= len(data)
            yield data
        yield _line({"sha256": digest.hexdigest(), "grew": os.fstat(descriptor).st_size > entry.size})


_AGAIN = "it may have been replaced just now: repeat the command"


def _gather(found: str) -> tuple[list[_Entry], list[str]]:
    """All entries, each directory before what is in it, and why others are not among them."""
    entries: list[_Entry] = []
    left_out: list[str] = []
    todo = [("", found)]
    while todo:
        path, place = todo.pop()
        try:
            seen = os.lstat(place)
            kind = _name_kind(seen.st_mode)
            inside = sorted(os.listdir(place), reverse=True) if kind == "dir" else []
            link = os.readlink(place) if kind == "link" else ""
        except FileNotFoundError:
            left_out.append(f"{path}: it went away just now")
            continue
        except OSError as error:
            raise StorageError(
                f"{path or found} cannot be read: {error.strerror}", hint="see its permissions"
            ) from error
        if kind == "other" or (kind == "link" and not _stays_inside(found, place, link)):
            left_out.append(f"{path}: " + ("no file, directory or link" if kind == "other" else f"leads out to {link}"))
            continue
        size = seen.st_size if kind == "file" else 0
        entries.append(_Entry(path, kind, place, size, stat.S_IMODE(seen.st_mode) & 0o777, seen.st_mtime, link))
        if len(entries) > MOST_ENTRIES:
            raise UsageError(f"more than {MOST_ENTRIES} files are not copied at once", hint="copy parts of it")
        todo += [(f"{path}/{name}" if path else name, f"{place}/{name}") for name in inside]
    return entries, left_out


def _stays_inside(top: str, place: str, link: str) -> bool:
    target = os.path.normpath(os.path.join(os.path.dirname(place), link))
    return not link.startswith("/") and place != top and target.startswith(f"{top}/")


def _name_kind(mode: int) -> str:
    if stat.S_ISREG(mode):
        return "file"
    return "dir" if stat.S_ISDIR(mode) else "link" if stat.S_ISLNK(mode) else "other"


def _line(value: Mapping[str, object]) -> bytes:
    return json.dumps(value).encode() + b"\n"
