"""A directory from which any interpreter of the job can ``import holdfast.training``: only `holdfast` is in it.

The job gets it behind its own ``PYTHONPATH``, so whatever else lay beside the package (a site-packages directory full
of another interpreter's libraries) must not come along. A source checkout's ``src/`` is such a directory already.
Otherwise the package is copied, once for each version of it, into the user's own cache:

    $XDG_CACHE_HOME (or ~/.cache) / holdfast / bundle-<16 hex> / holdfast

The name is made from the version and from every file's relative name, size and modification time, which takes a walk
and no reading. A copy is built aside, synced, and renamed: two runs that start at once make two and one of them stays.
The whole package is copied, not the training library alone, because an entry of ``PYTHONPATH`` comes before an
interpreter's own site-packages: a job that calls an installed `holdfast` would otherwise find half of it.

Copies of older versions stay: a job that runs may import from one at any time. They can be removed by hand when no run
is live.
"""

from __future__ import annotations

import errno
import os
import stat
import zlib
from collections.abc import Iterator, Mapping

import holdfast
from holdfast import __version__
from holdfast.host.files import files
from holdfast.host.files.ownership import describe_weakness

PACKAGE = os.path.dirname(os.path.abspath(holdfast.__file__))
NAME = "holdfast"
SKIPPED = "__pycache__"
PRIVATE = 0o700
MOST_BYTES = 16 * 1024**2
"""No file of the package is near this size; something that is, is not ours."""


def find_library(environ: Mapping[str, str], package: str = PACKAGE) -> str:
    """The directory to put on the job's search path; a copy is made when there is none yet.

    Raises:
        OSError: the cache cannot be written, or is not this account's alone.
    """
    parent = os.path.dirname(package)
    if os.path.basename(package) == NAME and _holds_nothing_else(parent):
        return parent
    sources = sorted(_list_sources(package))
    if not sources:
        raise FileNotFoundError(errno.ENOENT, "the package is not a directory of files", package)
    place = _open_cache(environ)
    bundle = f"{place}/bundle-{_fingerprint(sources)}"
    if os.path.lexists(bundle):
        _require_private(bundle)
        return bundle
    return _build(place, bundle, package, sources)


def _holds_nothing_else(directory: str) -> bool:
    """Whether nothing but our package can be imported from a directory; names with a leading dot cannot."""
    return all(name in (NAME, SKIPPED) or name.startswith(".") for name in os.listdir(directory))


def _list_sources(package: str, prefix: str = "") -> Iterator[tuple[str, int, int]]:
    """Relative name, bytes and modification time (nanoseconds) of each file of the package; links are left out."""
    try:
        entries = list(os.scandir(f"{package}/{prefix}"))
    except NotADirectoryError:
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            if entry.name != SKIPPED:
                yield from _list_sources(package, f"{prefix}{entry.name}/")
        elif entry.is_file(follow_symlinks=False) and not entry.name.endswith((".pyc", ".pyo")):
            facts = entry.stat(follow_symlinks=False)
            yield f"{prefix}{entry.name}", facts.st_size, facts.st_mtime_ns


def _fingerprint(sources: list[tuple[str, int, int]]) -> str:
    """64 bits that tell versions apart. No secret is kept by them: who can write the cache is its owner.

    Not a cryptographic hash: loading one costs more (13 ms for hashlib with OpenSSL) than everything else here.
    """
    text = "\0".join([__version__, *(f"{name}\0{size}\0{modified}" for name, size, modified in sources)])
    data = os.fsencode(text)
    return f"{zlib.crc32(data):08x}{zlib.crc32(data[::-1]):08x}"


def _open_cache(environ: Mapping[str, str]) -> str:
    """Our own directory in the user's cache.

    Source for the places: XDG Base Directory Specification; relative paths in its variables are to be ignored.
    """
    base = environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):
        home = environ.get("HOME", "")
        if not os.path.isabs(home):
            raise FileNotFoundError(errno.ENOENT, "neither XDG_CACHE_HOME nor HOME names a place for it")
        base = os.path.join(home, ".cache")
    os.makedirs(base, mode=PRIVATE, exist_ok=True)
    weakness = describe_weakness(base)
    if weakness:
        raise PermissionError(errno.EPERM, f"another account could put files there: {weakness}", base)
    place = f"{base}/{NAME}"
    _make_private(place)
    return place


def _make_private(path: str) -> None:
    try:
        os.mkdir(path, PRIVATE)
    except FileExistsError:
        _require_private(path)


def _require_private(path: str) -> None:
    facts = os.lstat(path)
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid() or stat.S_IMODE(facts.st_mode) != PRIVATE:
        raise PermissionError(errno.EPERM, "not a directory of this account with mode 0700", path)


def _build(place: str, bundle: str, package: str, sources: list[tuple[str, int, int]]) -> str:
    """Copy aside and rename; whoever comes second takes what the first has made."""
    aside = f"{place}/.{os.path.basename(bundle)}.{os.getpid()}.{os.urandom(4).hex()}"
    os.mkdir(aside, PRIVATE)
    try:
        _copy(package, f"{aside}/{NAME}", [name for name, _, _ in sources])
        if sorted(_list_sources(package)) != sources:
            raise OSError(errno.EBUSY, "changed while it was copied", package)
        files.sync_directory(aside)
        os.rename(aside, bundle)
    except OSError as error:
        files.remove_tree(aside)
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        _require_private(bundle)
        return bundle
    files.sync_directory(place)
    return bundle


def _copy(package: str, target: str, names: list[str]) -> None:
    directories = {""}
    for name in names:
        while name:
            name = name.rpartition("/")[0]  # noqa: PLW2901 - climbing up
            directories.add(name)
    for directory in sorted(directories):
        os.mkdir(f"{target}/{directory}", PRIVATE)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    for name in names:
        data = files.read_bytes(f"{package}/{name}", limit=MOST_BYTES)
        descriptor = os.open(f"{target}/{name}", flags, 0o600)
        try:
            files.write_all(descriptor, data)
        finally:
            os.close(descriptor)
    # All are written before the first is synced: the disk then takes most of them in one go.
    for name in names:
        descriptor = os.open(f"{target}/{name}", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    for directory in sorted(directories):
        files.sync_directory(f"{target}/{directory}")
