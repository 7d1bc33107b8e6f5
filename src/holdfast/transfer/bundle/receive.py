"""The box's side of a push: looks for a bundle, or takes one from standard input, proves it, and goes on to the probe.

It runs before anything of ours is on the box: `transfer.bundle.bootstrap` sends its text, and that of the few modules
that it imports. `main` gets one dict, which `contact.contact` makes; it answers one JSON object: ``missing`` with the
runs root and whether it is ``empty``, ``error`` as of every entry, or, because this process becomes the probe, what
that answers.

    ROOT/.agent-UID/HASH            complete and proven: every file has the hash that its manifest says
    ROOT/.agent-UID/.new-HASH-...   being unpacked; removed when that fails, and later by whoever pushes next
    ROOT/.agent-UID/.bad-HASH-...   was damaged, on its way out

A bundle is renamed into place when all of it is on the disk. Files and directories are read-only but ``__pycache__``:
there Python keeps what it compiled, only of what it loads, while it loads it.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import shutil
import stat
import sys
import tarfile
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from holdfast.host.files.ownership import describe_weakness
from holdfast.model.errors import HoldfastError, NotPermitted, StorageError, UsageError, describe
from holdfast.model.runs_root import bundles_dir

MOST_PACKED_BYTES = 64 << 20
MOST_BYTES = 256 << 20
STALE_S = 3600
AS_ROOT = "as `root` of the place: in places.toml, or by holdfast place add NAME ALIAS --root DIR"
"""No push takes that long: the desk gives it up earlier."""
NEW, BAD = ".new-", ".bad-"
SYNC_THREADS = 16
"""Files synced at once: the disk takes most of them in one go."""


def main(call: dict[str, Any]) -> int:
    """Look for the bundle ``hash`` below ``root`` (None: the command line's own choice); with ``push`` take it.

    ``probe`` is the word that `hf.py` gets in the end, ``after`` that of a process of its own after a push.
    """
    os.umask(0o077)
    try:
        root = find_root(call["root"])
        base = bundles_dir(root, os.geteuid())
        target = f"{base}/{call['hash']}"
        _check(target)
        found = _describe_damage(target, call["hash"])
        if found is not None and not call["push"]:
            return _answer({"schema": 1, "missing": found, "root": root, "empty": _is_empty(root)})
        if found is not None:
            install(sys.stdin.buffer.read(MOST_PACKED_BYTES), base, call["hash"])
            _check(target)  # what was missing on the way there could have been made by another account meanwhile
            _start_beside(f"{target}/hf.py", call["after"])
    except HoldfastError as error:
        _answer({"error": describe(error)})
        return error.exit_code
    sys.stdout.flush()
    _become(f"{target}/hf.py", call["probe"])
    raise AssertionError("execv does not return")


def _become(script: str, word: str) -> None:
    os.execv(sys.executable, [sys.executable, "-X", "utf8", "-I", "-S", script, word])


def _start_beside(script: str, word: str) -> None:
    """Start a process that nobody waits for, with a session of its own; where none is to be had it is done without."""
    try:
        child = os.fork()
    except OSError:
        return
    if child:
        os.waitpid(child, 0)
        return
    try:
        os.setsid()
        if os.fork() == 0:
            null = os.open(os.devnull, os.O_RDWR)
            for number in range(3):
                os.dup2(null, number)
            os.chdir("/")
            _become(script, word)
    finally:
        os._exit(0)


def _is_empty(root: str) -> bool:
    """Whether nothing at all is below the runs root, as where its file system is not mounted."""
    try:
        return not os.listdir(root)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False


def _check(target: str) -> None:
    try:
        weakness = describe_weakness(target)
    except OSError as error:
        raise _explain(error, target) from error
    if weakness:
        raise NotPermitted(
            f"{target} cannot be used: another account could change what is run from it: {weakness}",
            hint=f"name a directory of your own {AS_ROOT}",
        )


def find_root(stated: str | None) -> str:
    """The runs root as `holdfast.store.paths.default_root` chooses it, or as the place says.

    Raises:
        UsageError: it depends on a home directory, and there is none.
    """
    environ = os.environ
    if stated is not None and not stated.startswith("~/"):
        return os.path.normpath(stated)
    if stated is None:
        runs, data = environ.get("HOLDFAST_RUNS"), environ.get("XDG_DATA_HOME", "")
        if runs:
            return os.path.abspath(runs)
        if data.startswith("/"):
            return f"{data.rstrip('/')}/holdfast/runs"
    root = os.path.expanduser(stated or "~/.local/share/holdfast/runs")
    if not root.startswith("/"):
        raise UsageError(
            "this account has no home directory there, so there is no usual place for runs",
            hint=f"name one {AS_ROOT}",
        )
    return os.path.normpath(root)


def install(packed: bytes, base: str, name: str) -> None:
    """Unpack a bundle aside, prove it, and rename it into place; another one that pushes the same is no problem.

    Raises:
        StorageError: it did not arrive whole, or the disk does not take it; nothing of it is left.
    """
    contents = _unpack(packed)
    aside = f"{base}/{NEW}{name}-{os.getpid()}-{os.urandom(4).hex()}"
    try:
        os.makedirs(base, mode=0o700, exist_ok=True)
        _remove_stale(base)
        os.mkdir(aside, 0o700)
        _write(contents, aside)
        damage = _describe_damage(aside, name)
        if damage is not None:
            raise StorageError(f"the bundle did not arrive as it was sent: {damage}", hint="repeat the command")
        _rename(aside, base, name)
    except OSError as error:
        raise _explain(error, base) from error
    finally:
        remove(aside)


def _unpack(packed: bytes) -> dict[str, bytes]:
    try:
        opener = zlib.decompressobj(31)
        data = opener.decompress(packed, MOST_BYTES)
        if not opener.eof:
            raise StorageError("the bundle did not arrive whole", hint="repeat the command")
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            members = archive.getmembers()
            contents = {}
            for member in members:
                file = archive.extractfile(member)
                parts = member.name.split("/")
                if file is None or {"", ".", ".."} & set(parts):
                    raise StorageError(f"the bundle holds {member.name!r}, which is no file of one")
                contents[member.name] = file.read()
    except (zlib.error, tarfile.TarError, EOFError) as error:
        raise StorageError(f"the bundle did not arrive as it was sent: {error}", hint="repeat the command") from error
    return contents


def _write(contents: dict[str, bytes], aside: str) -> None:
    """All files, read-only and on the disk, in directories that are read-only and on the disk."""
    directories = {aside}
    for name in contents:
        parent = os.path.dirname(f"{aside}/{name}")
        while parent not in directories:
            directories.add(parent)
            parent = os.path.dirname(parent)
    for directory in sorted(directories)[1:]:
        os.mkdir(directory, 0o700)
    for name, data in contents.items():
        descriptor = os.open(f"{aside}/{name}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o400)
        with open(descriptor, "wb") as file:
            file.write(data)
    for directory in {os.path.dirname(f"{aside}/{name}") for name in contents if name.endswith(".py")} - {aside}:
        os.mkdir(f"{directory}/__pycache__", 0o700)
    for directory in sorted(directories)[1:]:
        os.chmod(directory, 0o500)
    with ThreadPoolExecutor(SYNC_THREADS) as pool:
        list(pool.map(_sync, [*(f"{aside}/{name}" for name in contents), *directories]))


def _sync(path: str) -> None:
    """Source: fsync(2): EINVAL where this kind of file has none."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def _rename(aside: str, base: str, name: str) -> None:
    target = f"{base}/{name}"
    bad = f"{base}/{BAD}{name}-{os.path.basename(aside)[len(NEW) :]}"
    os.chmod(aside, 0o500)
    for _ in range(3):
        try:
            os.rename(aside, target)
            _sync(base)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
        if _describe_damage(target, name) is None:
            return  # somebody else pushed the same at the same time
        try:
            os.rename(target, bad)
        except FileNotFoundError:
            continue  # somebody else moves it out just now
        if _describe_damage(bad, name) is None:
            # Somebody else replaced it since we looked, and runs what is there now.
            with suppress(OSError):
                os.rename(bad, target)
        remove(bad)
    raise StorageError(f"{target} is damaged as often as it is replaced", hint="repeat the command")


def _describe_damage(target: str, name: str) -> str | None:
    """What keeps a directory from being the bundle of that name, in words; None when every file has its hash."""
    try:
        with open(f"{target}/bundle.json", "rb") as file:
            record = json.loads(file.read())
        digests, mode = dict(record["files"]), int(record["mode"])
        lines = "".join(f"{mode:04o} {digests[each]} {each}\n" for each in sorted(digests))
        if hashlib.sha256(lines.encode()).hexdigest()[: len(name)] != name:
            return "its list of files is not the one of that name"
        for each, digest in digests.items():
            with open(f"{target}/{each}", "rb") as file:
                if hashlib.sha256(file.read()).hexdigest() != digest:
                    return f"{each} was changed"
    except FileNotFoundError as error:
        return f"{os.path.relpath(error.filename or target, target)} is not there"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"it cannot be read: {error}"
    return None


def _remove_stale(base: str) -> None:
    """What a push that was killed has left."""
    for entry in list(os.scandir(base)):
        if entry.name.startswith((NEW, BAD)):
            try:
                if entry.stat(follow_symlinks=False).st_mtime < time.time() - STALE_S:
                    remove(entry.path)
            except OSError:
                continue


def remove(path: str) -> None:
    """Remove a tree of ours, read-only directories and all; what cannot be removed is left."""
    if not os.path.lexists(path):
        return
    for directory, _, _ in os.walk(path):
        try:
            os.chmod(directory, stat.S_IRWXU)
        except OSError:
            continue
    shutil.rmtree(path, ignore_errors=True)


def _explain(error: OSError, base: str) -> StorageError:
    where = error.filename if isinstance(error.filename, str) else base
    seen = error.strerror or str(error)
    hint = f"name another directory {AS_ROOT}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        hint = f"make room there, or {hint}"
        try:
            if os.statvfs(_existing(base)).f_favail == 0:
                seen = "no inode is left on the file system"
        except OSError:
            pass
    return StorageError(f"holdfast cannot be put on the box: {where}: {seen}", hint=hint)


def _existing(path: str) -> str:
    while not os.path.isdir(path) and path != "/":
        path = os.path.dirname(path)
    return path


def _answer(value: dict[str, Any]) -> int:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()
    return 0
