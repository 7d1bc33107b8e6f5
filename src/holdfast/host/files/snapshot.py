"""Copies of what a run starts from, and the repository's state, in little time and few bytes (OBS-05, PROC-20).

Files are opened without blocking and must be regular; a large one is only hashed. git runs in two children that are
started first and read last, with a deadline and a byte limit, without anything in the environment or the repository's
settings that would start other programs. Whatever is missing is said in a note, and is never a reason not to run.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Mapping

from holdfast.core.digest import sha256_hex
from holdfast.host.process.children import BoundedChild, read_children
from holdfast.model.errors import StorageError
from holdfast.model.origin import FileCopy, GitFacts
from holdfast.model.record import replace

from . import files

LARGEST_COPY_BYTES = 1024**2
LARGEST_HASHED_BYTES = 64 * 1024**2
LARGEST_DIFF_BYTES = 4 * 1024**2
MOST_UNTRACKED = 100
MOST_SCRIPTS = 16
SCRIPT_ENDS = (".py", ".sh")
"""Of the words of a command behind its first file: what a launcher or wrapper is given to run."""
GIT_WITHIN_S = 2.0
NO_REPOSITORY = "not inside a git repository"
GIT = ("git", "--no-optional-locks", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null")
LOCK_NAMES = (
    *("uv.lock", "poetry.lock", "pdm.lock", "pylock.toml", "Pipfile.lock", "pixi.lock", "conda-lock.yml"),
    *(
        "requirements.lock",
        "requirements.txt",
        "environment.yml",
        "environment.yaml",
        "Cargo.lock",
        "package-lock.json",
    ),
)
"""Files that say which versions were installed, best first."""


def copy_file(role: str, source: str, run_dir: str, *, clean: Callable[[str], str]) -> tuple[FileCopy, bytes | None]:
    """Copy one file into ``snapshot/<role>/``; answers what is known of it, and its bytes when copied unchanged.

    `clean` removes secrets from text; a text that it changes is stored changed.
    """
    try:
        descriptor = os.open(source, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        return FileCopy(role, source, note=f"not read: {error.strerror}"), None
    try:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode):
            return FileCopy(role, source, note="not a regular file"), None
        if facts.st_size > LARGEST_HASHED_BYTES:
            return FileCopy(
                role, source, size=facts.st_size, note="larger than 64 MiB: neither copied nor hashed"
            ), None
        data = _read_all(descriptor, LARGEST_HASHED_BYTES)
    except OSError as error:
        return FileCopy(role, source, note=f"not read: {error.strerror}"), None
    finally:
        os.close(descriptor)
    digest = sha256_hex(data)
    if len(data) > LARGEST_COPY_BYTES:
        return FileCopy(role, source, None, digest, len(data), note="larger than 1 MiB: hashed, not copied"), None
    stored = _clean_bytes(data, clean)
    place = _store(f"{run_dir}/snapshot/{role}", os.path.basename(source), stored)
    relative = os.path.relpath(place, run_dir)
    changed = stored is not data
    note = "what looked like a secret was left out of the copy" if changed else ""
    return FileCopy(role, source, relative, digest, len(data), changed, note), None if changed else data


def is_script(path: str) -> bool:
    """Whether a file begins as a script does (``#!``); one that cannot be read is none."""
    try:
        with open(path, "rb") as file:
            return file.read(2) == b"#!"
    except OSError:
        return False


def hash_file(path: str) -> str:
    """SHA-256 of a regular file's bytes, as hexadecimal digits.

    Raises:
        OSError: it cannot be read, or is no regular file of at most 64 MiB.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode) or facts.st_size > LARGEST_HASHED_BYTES:
            raise OSError(errno.EINVAL, "not a regular file of at most 64 MiB", path)
        return sha256_hex(_read_all(descriptor, LARGEST_HASHED_BYTES))
    finally:
        os.close(descriptor)


def _read_all(descriptor: int, limit: int) -> bytes:
    chunks, total = [], 0
    while total <= limit and (chunk := os.read(descriptor, 1 << 20)):
        chunks.append(chunk)
        total += len(chunk)
    return b"".join(chunks)


def _clean_bytes(data: bytes, clean: Callable[[str], str]) -> bytes:
    """`data` itself when there is nothing to remove, so that the caller can tell by identity."""
    if b"\0" in data:
        return data
    text = data.decode("utf-8", "surrogateescape")
    cleaned = clean(text)
    return data if cleaned == text else cleaned.encode("utf-8", "surrogateescape")


def _store(directory: str, name: str, data: bytes) -> str:
    """Write a read-only copy; a second file of the same name gets a number in front."""
    os.makedirs(directory, mode=0o700, exist_ok=True)
    for number in range(1000):
        path = f"{directory}/{name if number == 0 else f'{number}-{name}'}"
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o400)
        except FileExistsError:
            continue
        try:
            files.write_all(descriptor, data)
        finally:
            os.close(descriptor)
        return path
    raise FileExistsError(17, "a thousand files of the same name", f"{directory}/{name}")


def find_upwards(directory: str, names: tuple[str, ...], *, stop: str | None) -> str | None:
    """The first of `names` that exists in `directory` or a parent up to `stop`; without a `stop` in no parent."""
    current = directory
    for _ in range(64):
        for name in names:
            if os.path.lexists(f"{current}/{name}"):
                return f"{current}/{name}"
        if stop is None or current in (stop, "/"):
            return None
        current = os.path.dirname(current)
    return None


def find_repository(directory: str) -> str | None:
    """The top of the git work tree around a directory, without asking git; None when there is none."""
    marker = find_upwards(os.path.abspath(directory), (".git",), stop="/")
    return None if marker is None else os.path.dirname(marker)


class GitReader:
    """Two git children at work; `read` takes what they said. Leaves no child behind, whatever happens."""

    def __init__(self, directory: str, environ: Mapping[str, str]) -> None:
        """Start reading the state of the repository around `directory`; costs nothing where there is none."""
        self._note = ""
        self._readers: dict[str, BoundedChild] = {}
        top = find_repository(directory)
        if top is None:
            self._note = NO_REPOSITORY
            return
        safe = {name: value for name, value in environ.items() if not name.startswith("GIT_")}
        safe.update({"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "GIT_PAGER": "cat", "LC_ALL": "C"})
        status = (*GIT, "-C", directory, "status", "--porcelain=v2", "--branch", "--untracked-files=normal", "-z")
        diff = (*GIT, "-C", top, "diff", "--no-ext-diff", "--no-textconv", "--no-color", "--binary", "HEAD", "--")
        try:
            self._readers["status"] = BoundedChild(status, safe, LARGEST_DIFF_BYTES)
            self._readers["diff"] = BoundedChild(diff, safe, LARGEST_DIFF_BYTES)
        except FileNotFoundError:
            self.close()
            self._note = "git is not installed"
        except OSError as error:
            self.close()
            self._note = f"git could not be started: {error.strerror}"

    def collect(self, run_dir: str, *, clean: Callable[[str], str]) -> GitFacts:
        """As `read`, with the difference saved in the run's directory."""
        return save_difference(*self.read(clean=clean), run_dir)

    def read(self, *, clean: Callable[[str], str]) -> tuple[GitFacts, bytes | None]:
        """What git said, and the difference of tracked files; None: without one. Waits at most until the deadline."""
        if not self._readers:
            return GitFacts(note=self._note), None
        try:
            read_children(list(self._readers.values()), GIT_WITHIN_S)
            status, diff = self._readers["status"], self._readers["diff"]
            if status.code != 0:
                return GitFacts(note=status.describe("git status")), None
            commit, branch, changed, untracked = parse_status(bytes(status.data))
            facts = GitFacts(commit, branch, changed or bool(untracked), None, untracked[:MOST_UNTRACKED])
            if not changed or commit is None:
                return facts, None
            if diff.code != 0:
                return replace(facts, note=diff.describe("git diff")), None
            stored = _clean_bytes(bytes(diff.data), clean)
            left_out = "" if stored == diff.data else "what looked like a secret was left out of the diff"
            return replace(facts, note=left_out), stored
        except OSError as error:
            return GitFacts(note=f"git's answer was not read: {error.strerror}"), None
        finally:
            self.close()

    def close(self) -> None:
        """End what still runs."""
        for child in self._readers.values():
            child.end()
        self._readers.clear()


def save_difference(facts: GitFacts, diff: bytes | None, run_dir: str) -> GitFacts:
    """Save what `GitReader.read` found as ``snapshot/git.diff``, or with a number in front where there is one."""
    if diff is None:
        return facts
    try:
        return replace(facts, diff=os.path.relpath(_store(f"{run_dir}/snapshot", "git.diff", diff), run_dir))
    except OSError as error:
        return replace(facts, note=f"the difference was not saved: {error.strerror}")


def was_read(facts: GitFacts) -> bool:
    """Whether facts are of a look that git answered, or where it had nothing to say: no repository, no commit yet."""
    return facts.commit is not None or facts.note in ("", NO_REPOSITORY)


def load_difference(run_dir: str, name: str) -> bytes:
    """The saved difference that `GitFacts.diff` names.

    Raises:
        StorageError: it cannot be read, or the name leads out of the run.
    """
    path = os.path.normpath(os.path.join(run_dir, name))
    if not path.startswith(f"{os.path.normpath(run_dir)}/"):
        raise StorageError(f"its record names a difference outside of the run: {name}", hint="the record was edited")
    try:
        return files.read_bytes(path)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise StorageError(f"{path}: {why}", hint=f"holdfast show {os.path.basename(run_dir)}") from error


def read_difference(facts: GitFacts, run_dir: str) -> bytes | None:
    """The saved difference that facts name; None: there is none, or it cannot be read."""
    try:
        return None if facts.diff is None else load_difference(run_dir, facts.diff)
    except StorageError:
        return None


def parse_status(data: bytes) -> tuple[str | None, str | None, bool, tuple[str, ...]]:
    """Commit, branch, whether tracked files differ, untracked names: ``git status --porcelain=v2 --branch -z``.

    Source: git-status(1), "Porcelain Format Version 2" and "Pathname Format Notes and -z".
    """
    commit = branch = None
    changed, untracked = False, []
    entries = iter(data.decode("utf-8", "replace").split("\0"))
    for entry in entries:
        if entry.startswith("# branch.oid "):
            commit = None if entry.endswith("(initial)") else entry[13:]
        elif entry.startswith("# branch.head "):
            branch = None if entry.endswith("(detached)") else entry[14:]
        elif entry.startswith("? "):
            untracked.append(entry[2:])
        elif entry.startswith(("1 ", "2 ", "u ")):
            changed = True
            if entry.startswith("2 "):
                next(entries, None)  # the old name of a renamed file
    return commit, branch, changed, tuple(untracked)
