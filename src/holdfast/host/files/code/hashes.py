"""What files hashed to, remembered by size, times and inode, so that an unchanged tree is not read again.

Times do not tell of a change within their own tick, so nothing is remembered of a file that was touched in the last
seconds before it was read (as git's index does; git, Documentation/technical/racy-git.txt). Nor do they tell of every
store through a memory map: the first into a page changes them, and no other until the page was written back. So a file
is written back before it is read (`settle`), and what lies in memory alone, and never is, is read each time.

A memory that is damaged, or of another format, or was made before the box began anew (its caches may be lost), is
forgotten. Runs on macOS too.
"""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING

from holdfast.core.digest import sha256_hex
from holdfast.host.files import files
from holdfast.host.files.filesystems import read_mounts
from holdfast.host.process import libc
from holdfast.model.record import record

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

FORMAT = 1
SETTLED_NS = 2_000_000_000
"""Two seconds: the coarsest times that file systems keep (FAT)."""
PIECE = 256 << 20
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def settle(descriptor: int, tell: Callable[[], None] = lambda: None) -> int:
    """Write back what is only cached of an open file; when that began (ns), 0 where it could not be done.

    From then on each change of the file changes its times. To be called before it is read; `tell` is called now and
    then. Only this file is waited for; where its disk hangs this does, as reading it would.
    """
    began = time.time_ns()
    try:
        for offset in range(0, os.fstat(descriptor).st_size, PIECE):
            libc.write_back(descriptor, offset, PIECE)
            tell()
    except AttributeError:  # no such call on this system
        return _settle_whole(descriptor, began)
    except OSError:
        return 0
    return began


def _settle_whole(descriptor: int, began: int) -> int:
    try:
        os.fsync(descriptor)
    except OSError:
        return 0
    return began


def settle_file(path: str) -> int:
    """As `settle`, of a file that is opened for it; 0 of a link."""
    try:
        descriptor = os.open(path, READ)
    except OSError:
        return 0
    try:
        return settle(descriptor)
    finally:
        os.close(descriptor)


@record
class Remembered:
    """One file: SHA-256 and size of what is sent of it, and words about it that its reader put there."""

    sha256: str
    size: int
    notes: str = ""


class HashMemory:
    """Remembered hashes of one tree, in a file of its own. Not for several threads."""

    def __init__(self, path: str, *, epoch: str = "") -> None:
        """Read what is remembered in `path`; `epoch` is what must not have changed since (a boot id)."""
        self._path, self._epoch = path, epoch
        self._known: dict[str, list[object]] = _read(path, epoch)
        self._used: dict[str, list[object]] = {}
        self._never_written_back = _list_memory_devices()
        self._changed = False

    def recall(self, path: str, seen: os.stat_result) -> Remembered | None:
        """What the file at `path`, with these facts, held when it was last read, also by us; None: not known."""
        kept = self._used.get(path) or self._known.get(path)
        if kept is None or kept[:4] != _facts(seen):
            return None
        self._used[path] = kept
        return Remembered(str(kept[4]), int(str(kept[5])), str(kept[6]))

    def remember(self, path: str, seen: os.stat_result, found: Remembered, *, settled_ns: int) -> None:
        """Keep what was read of a file that had these facts before and after, and was settled at `settled_ns`."""
        self._changed = True
        is_old = max(seen.st_mtime_ns, seen.st_ctime_ns) < settled_ns - SETTLED_NS
        if is_old and seen.st_dev not in self._never_written_back:
            self._used[path] = [*_facts(seen), found.sha256, found.size, found.notes]

    def save(self) -> None:
        """Keep what was used since it was opened; where that cannot be written the next look costs more."""
        if not self._changed and len(self._used) == len(self._known):
            return
        data = json.dumps({"format": FORMAT, "epoch": self._epoch, "files": self._used}, separators=(",", ":"))
        try:
            os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
            files.commit(self._path, data.encode("ascii"), durable=False)
        except OSError:
            return


def choose_memory(environ: Mapping[str, str], name: str) -> str:
    """Where a memory of this name is kept: below ``XDG_CACHE_HOME`` if absolute, else ``~/.cache``."""
    base = environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):
        base = f"{environ.get('HOME') or os.path.expanduser('~')}/.cache"
    return f"{base}/holdfast/code/{name}.json"


def choose_run_memory(environ: Mapping[str, str], run_dir: str) -> str:
    """Where is kept what the files of a run hashed to; it goes with the run."""
    return choose_memory(environ, f"run-{sha256_hex(os.fsencode(os.path.realpath(run_dir)))[:16]}")


def _list_memory_devices() -> frozenset[int]:
    """The devices of file systems in memory, whose files nothing writes back."""
    numbers = (mount.device.split(":") for mount in read_mounts() if mount.is_memory and mount.device)
    return frozenset(os.makedev(int(major), int(minor)) for major, minor in numbers)


def _facts(seen: os.stat_result) -> list[object]:
    return [seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns, seen.st_ino]


def _read(path: str, epoch: str) -> dict[str, list[object]]:
    try:
        found = json.loads(files.read_bytes(path, limit=64 * 1024**2))
        if found["format"] != FORMAT or found["epoch"] != epoch:
            return {}
        known = found["files"]
        if all(len(kept) == 7 and len(str(kept[4])) == 64 and isinstance(kept[5], int) for kept in known.values()):
            return dict(known)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    return {}
