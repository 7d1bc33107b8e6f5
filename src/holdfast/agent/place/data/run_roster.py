"""The roster of a run at its source: every file of its directory, with what is not pulled, and why.

Hashes are remembered by size, times and inode, so that a roster of what nobody touched since costs one look a file. A
run's job, which may have been anybody's code, wrote what is here: nothing is followed out of the directory, nothing
but regular files is opened, and what cannot be read is named, never passed over.
"""

from __future__ import annotations

import glob
import hashlib
import os
import stat
from contextlib import closing
from typing import TYPE_CHECKING

from holdfast.agent.view.observe import observe_run
from holdfast.agent.view.run_view import RunView
from holdfast.agent.view.runs.proven_results import find_proven
from holdfast.core.code.manifest import (
    DIRECTORY,
    DIRECTORY_SUM,
    EXECUTABLE,
    FILE,
    LINK,
    RUN_FORMAT,
    CodeEntry,
    Manifest,
    build_manifest,
    check_path,
    encode_path,
    hash_link,
    leads_out,
)
from holdfast.core.control_characters import one_line
from holdfast.core.digest import sha256_hex
from holdfast.core.pull.choose import CONTROL, Choice
from holdfast.core.pull.stream import MOST_FILES, OURS, UNKNOWN, About
from holdfast.host.clock import utc_now
from holdfast.host.files import fallback, files
from holdfast.host.files.code.hashes import HashMemory, Remembered, choose_run_memory, settle
from holdfast.model import wire
from holdfast.model.errors import Unsupported
from holdfast.model.receipt import GRAVE, OUTSIDE, TAKEN, UNREAD, LeftOut
from holdfast.model.record import record
from holdfast.model.run import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
ELSEWHERE = "outside"
"""In a copy: what belongs to the run and lies outside of its directory, each file below here by its whole path."""
CHUNK = 1 << 18
MOST_LEFT_OUT = 1000
LONGEST_WHY = 300


@record
class Found:
    """One file, link or empty directory of a run, at `path` below `top`. `target` is a link's."""

    path: str
    seen: os.stat_result
    top: str
    target: str | None = None
    inside: str = ""
    """Where it lies below `top`, where that is not `path`."""

    @property
    def kind(self) -> str:
        """As manifests have it."""
        if self.target is not None:
            return LINK
        if stat.S_ISDIR(self.seen.st_mode):
            return DIRECTORY
        return EXECUTABLE if self.seen.st_mode & stat.S_IXUSR else FILE

    @property
    def size(self) -> int:
        """Bytes of what is sent."""
        if self.target is not None:
            return len(os.fsencode(self.target))
        return 0 if stat.S_ISDIR(self.seen.st_mode) else self.seen.st_size

    @property
    def sum(self) -> str | None:
        """What stands for the hash of what has none; None of a file."""
        if self.target is not None:
            return hash_link(os.fsencode(self.target))
        return DIRECTORY_SUM if stat.S_ISDIR(self.seen.st_mode) else None


class Opener:
    """Opens files of a tree by descriptors, one directory after the other: never through a link.

    The directory of the last file stays open, for the next one is mostly in it.
    """

    def __init__(self) -> None:
        """Nothing is open."""
        self._directory, self._descriptor = "", -1

    def open(self, found: Found) -> int:
        """A descriptor of a file.

        Raises:
            OSError: it cannot be opened, or there is a link on the way to it.
        """
        inside, _, name = (found.inside or found.path).rpartition("/")
        directory = f"{found.top}/{inside}"
        if directory != self._directory:
            self.close()
            self._descriptor = _open_directory(found.top, inside)
            self._directory = directory
        return os.open(name, READ, dir_fd=self._descriptor)

    def close(self) -> None:
        """Give back what is open."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._directory, self._descriptor = "", -1


def _open_directory(top: str, inside: str) -> int:
    descriptor = os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for part in inside.split("/") if inside else ():
        try:
            below = os.open(part, files.DIRECTORY, dir_fd=descriptor)
        finally:
            os.close(descriptor)
        descriptor = below
    return descriptor


class LeftOuts:
    """What is no part of a roster: of each reason the first in words, and how many there are more."""

    def __init__(self) -> None:
        """Nothing yet."""
        self.more: dict[str, int] = {}
        self._grave: list[LeftOut] = []
        self._other: list[LeftOut] = []

    def add(self, path: str, reason: str, detail: str = "") -> None:
        """One more."""
        rows = self._grave if reason.startswith(GRAVE) else self._other
        if len(rows) < MOST_LEFT_OUT:
            rows.append(LeftOut(one_line(path, LONGEST_WHY), one_line(reason + detail, LONGEST_WHY)))
        else:
            self.more[reason] = self.more.get(reason, 0) + 1

    @property
    def named(self) -> tuple[LeftOut, ...]:
        """Those in words, what closes a gate first."""
        return (*self._grave, *self._other)


def open_memory(run_dir: str, environ: Mapping[str, str]) -> HashMemory:
    """What the files of a run hashed to."""
    return HashMemory(choose_run_memory(environ, run_dir))


def walk_run(view: RunView, left_out: LeftOuts, *, tell: Callable[[], None] = lambda: None) -> list[Found]:
    """All that is pulled of a run, its records first; `tell` is called at each.

    Raises:
        Unsupported: there are more files than can be pulled one by one.
    """
    found: list[Found] = []
    roots = tuple(_list_outside(view, left_out))
    for one in _walk(view.run_dir, "", left_out, roots):
        tell()
        found.append(one)
        if len(found) > MOST_FILES:
            raise Unsupported(
                f"{os.path.basename(view.run_dir)} has more than {MOST_FILES} files",
                hint="pack what a job writes by the thousand (tar, zip, webdataset) before the run is pulled",
            )
    taken = any(one.path.partition("/")[0] == ELSEWHERE for one in found)
    for root in roots:
        if taken:
            left_out.add(root, OUTSIDE, f": it would come below {ELSEWHERE}/, and the run has that name itself")
            continue
        before = len(found)
        for one in _walk(root, f"{ELSEWHERE}{root}", left_out):
            tell()
            found.append(one)
            if len(found) > MOST_FILES:
                del found[before:]
                left_out.add(root, OUTSIDE, f": with it there are more than {MOST_FILES} files; pack them there")
                break
    found.sort(key=lambda one: (CONTROL.fullmatch(one.path) is None, encode_path(one.path)))
    return found


def _list_outside(view: RunView, left_out: LeftOuts) -> Iterator[str]:
    """What belongs to the run and is not in its directory: results that it declares, records that are aside."""
    top = os.path.realpath(view.run_dir)
    aside = fallback.directory(view.run_id, view.attempt)
    roots = {os.path.realpath(aside)} if aside is not None and os.path.isdir(aside) else set[str]()
    declared = view.spec.get("artifacts")
    for text in map(str, declared if isinstance(declared, (list, tuple)) else ()):
        where = os.path.join(top, text)
        matched = [where] if os.path.lexists(where) else glob.glob(where)
        found = {real for real in map(os.path.realpath, matched) if not _is_below(real, top)}
        for real in sorted(real for real in found if _is_below(top, real)):
            left_out.add(real, OUTSIDE, f", declared as {text}: the run itself lies in it; declare what is in it")
        roots.update(real for real in found if not _is_below(top, real))
        if not matched and view.condition == Outcome.SUCCEEDED.value and not _is_below(os.path.normpath(where), top):
            left_out.add(text, OUTSIDE, ", which the job declares, and it is not there (is its disk mounted?)")
        elif not matched:
            left_out.add(text, "a result that the job declares, and that is not there")
    for root in sorted(roots):
        if not any(_is_below(root, other) for other in roots if other != root):
            yield root


def _is_below(path: str, top: str) -> bool:
    return path == top or path.startswith(f"{top.rstrip('/')}/")


def _walk(top: str, under: str, left_out: LeftOuts, roots: tuple[str, ...] = ()) -> Iterator[Found]:
    """What is in a directory, however deep it lies, or the one file `top`; `under` is where it comes in the copy.

    `roots` are what comes besides.
    """
    if under and not os.path.isdir(top):
        try:
            seen = os.lstat(top)
        except OSError as error:
            left_out.add(top, UNREAD, f": {error.strerror}")
            return
        if stat.S_ISREG(seen.st_mode):
            yield Found(under, seen, os.path.dirname(top), inside=os.path.basename(top))
        else:
            left_out.add(top, "neither a file nor a link")
        return
    real = os.path.realpath(top)
    prefixes = [""]
    while prefixes:
        prefix = prefixes.pop()
        try:
            with os.scandir(f"{top}/{prefix}") as entries:
                listed = list(entries)
            seen = os.lstat(f"{top}/{prefix}".rstrip("/"))
        except OSError as error:
            left_out.add(_name(under, prefix) or ".", UNREAD, f": {error.strerror}")
            continue
        deeper, empty = len(prefixes), True
        for one in _list_files(prefix, listed, left_out, prefixes, _Tree(top, real, under, roots)):
            empty = False
            yield one
        if empty and len(prefixes) == deeper and _name(under, prefix):
            yield Found(_name(under, prefix), seen, top)


def _name(under: str, prefix: str) -> str:
    return "/".join(part for part in (under, prefix.rstrip("/")) if part)


@record
class _Tree:
    """What is walked: `top`, which really is `real`, and comes `under` that path of the copy; `roots` come, too."""

    top: str
    real: str
    under: str
    roots: tuple[str, ...]

    def loses(self, path: str) -> bool:
        """Whether a link there stands for a checkpoint or result that lies where nothing is pulled."""
        if self.under or path.split("/", 1)[0] not in (wire.CHECKPOINTS, wire.ARTIFACTS):
            return False
        real = os.path.realpath(f"{self.real}/{path}")
        return not any(_is_below(real, top) for top in (self.real, *self.roots))


def _list_files(
    prefix: str, listed: list[os.DirEntry[str]], left_out: LeftOuts, prefixes: list[str], tree: _Tree
) -> Iterator[Found]:
    """The files and links of one directory; the directories in it are added to `prefixes`."""
    for entry in listed:
        inside = f"{prefix}{entry.name}"
        path = _name(tree.under, inside) if tree.under else inside
        if not prefix and not tree.under and entry.name in OURS:
            left_out.add(path, TAKEN, ": rename it there")
            continue
        try:
            seen = entry.stat(follow_symlinks=False)
            target = os.readlink(entry.path) if stat.S_ISLNK(seen.st_mode) else None
            check_path(encode_path(path))
        except FileNotFoundError:
            continue  # it went just now
        except (OSError, ValueError) as error:
            left_out.add(path, UNREAD, f": {error}")
            continue
        if stat.S_ISDIR(seen.st_mode):
            prefixes.append(f"{inside}/")
        elif files.is_temporary(entry.name):
            left_out.add(path, "a temporary file of a write that was under way, or was cut off")
        elif target is not None and (
            leads_out(inside, target) or not _is_below(os.path.realpath(f"{tree.real}/{inside}"), tree.real)
        ):
            if tree.loses(inside):
                how = "put there what it names, or remove the link"
                left_out.add(path, OUTSIDE, f", by a link that is not followed: {how}: {target}")
            else:
                left_out.add(path, "a link that leads out of the run", f", to {target}")
        elif target is None and not stat.S_ISREG(seen.st_mode):
            left_out.add(path, "neither a file nor a link")
        else:
            yield Found(path, seen, tree.top, target, inside)


def hash_found(opener: Opener, found: Found, memory: HashMemory, *, tell: Callable[[], None]) -> str | None:
    """The SHA-256 of a file now, from memory where nothing touched it since; None where it is gone or unreadable."""
    if found.sum is not None:
        return found.sum
    known = memory.recall(found.path, found.seen)
    if known is not None:
        return known.sha256
    try:
        descriptor = opener.open(found)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        settled_ns = settle(descriptor, tell)
        before = os.fstat(descriptor)
        digest, left = hashlib.sha256(), found.seen.st_size
        while left and (piece := os.read(descriptor, min(left, CHUNK * 4))):
            digest.update(piece)
            left -= len(piece)
            tell()
        if not left and before.st_size == found.seen.st_size:  # else it is the hash of its beginning
            keep_hash(found.path, before, descriptor, digest.hexdigest(), memory, settled_ns=settled_ns)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return None if left else digest.hexdigest()


def keep_hash(
    path: str, before: os.stat_result, descriptor: int, sha256: str, memory: HashMemory, *, settled_ns: int
) -> None:
    """Remember what was read of a file that nobody wrote meanwhile."""
    after = os.fstat(descriptor)
    if (before.st_size, before.st_mtime_ns, before.st_ctime_ns) == (
        after.st_size,
        after.st_mtime_ns,
        after.st_ctime_ns,
    ):
        memory.remember(path, after, Remembered(sha256, after.st_size), settled_ns=settled_ns)


def make_roster(
    run_dir: str,
    choice: Choice,
    memory: HashMemory,
    *,
    quick: bool = False,
    tell: Callable[[], None] = lambda: None,
) -> tuple[Manifest, About]:
    """The roster of a run as it is now, and what is said of it; `quick`: no file is read for it.

    The manifest has every file, also those that an option leaves out: what a late writer changes is seen there, too.

    Raises:
        Unsupported: there are too many files.
    """
    left_out, not_wanted, view = LeftOuts(), dict[str, tuple[int, int]](), observe_run(run_dir)
    entries = []
    with closing(Opener()) as opener:
        for found in walk_run(view, left_out, tell=tell):
            if quick and found.sum is None:
                known = memory.recall(found.path, found.seen)
                digest: str | None = UNKNOWN if known is None else known.sha256
            else:
                digest = hash_found(opener, found, memory, tell=tell)
            if digest is None:
                left_out.add(found.path, UNREAD, ", or is written now")
                continue
            why = choice.refuse(found.path)
            if why:
                count, size = not_wanted.get(why, (0, 0))
                not_wanted[why] = (count + 1, size + found.size)
            entries.append(CodeEntry(found.path, found.kind, digest, found.size))
    view = observe_run(run_dir)
    workdir = view.spec.get("workdir")
    if isinstance(workdir, str) and not f"{os.path.normpath(workdir)}/".startswith(f"{run_dir}/"):
        left_out.add("work", f"the job's working directory {workdir} is outside of the run's directory")
    roster, proven = build_manifest(entries, RUN_FORMAT), find_proven(view)
    about = About(
        run_id=view.run_id,
        attempt=view.attempt,
        made_at=utc_now(),
        live=not view.over,
        files=sum(entry.kind != DIRECTORY for entry in entries),
        bytes=roster.bytes,
        sha256=sha256_hex(roster.data),
        left_out=left_out.named,
        left_out_more=left_out.more,
        not_wanted=not_wanted,
        proven=proven.attempt,
        changed=proven.changed,
        rewritten=proven.rewritten,
    )
    return roster, about
