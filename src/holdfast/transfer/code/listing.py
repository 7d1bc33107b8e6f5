"""Which files are a job's code: what git sees of the work tree around it, or all of a directory but usual caches.

git is asked in children of its own, without hooks and without its variables in the environment. What it lists is taken
from the disk: changed files as they are, deleted ones left out. Neither git nor this follows a link: what was tracked
below a directory that is a link now is deleted. A submodule, and another repository that lies inside, is listed by git
in its turn.
"""

from __future__ import annotations

import os
import stat
import subprocess
from typing import TYPE_CHECKING

from holdfast.core.code.ignore import IGNORE_FILE, is_left_out, parse_ignore
from holdfast.core.control_characters import clean
from holdfast.host.files import files
from holdfast.host.formats.copy_mark import is_copy
from holdfast.model.errors import StorageError, UsageError
from holdfast.model.receipt import COPY
from holdfast.model.record import record

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from holdfast.core.code.ignore import Pattern

GIT = (
    "git",
    "--no-optional-locks",
    "-c",
    "core.fsmonitor=false",
    "-c",
    "core.hooksPath=/dev/null",
    "-c",
    "core.quotePath=false",
)
GIT_WITHIN_S = 120.0
"""Of a huge repository on a cold network disk."""
MOST_IGNORE_BYTES = 1 << 20
MOST_LISTED = 400_000
CACHES = frozenset(
    {
        ".git",
        ".hg",
        ".svn",
        "__pycache__",
        ".venv",
        "venv",
        "node_modules",
        ".mypy_cache",
        ".pytest_cache",
        ".ruff_cache",
    }
    | {".tox", ".nox", ".eggs", ".ipynb_checkpoints", ".cache", ".DS_Store", ".idea", ".vscode"}
    | {"wandb", "mlruns", "runs", "lightning_logs", "tb_logs"}
)
"""What is left out by its name where there is no git; so is any directory of a virtual environment."""
SYSTEM = frozenset(
    {"/", "/bin", "/boot", "/dev", "/etc", "/home", "/lib", "/lib64", "/media", "/mnt", "/opt", "/root", "/run"}
    | {"/sbin", "/srv", "/tmp", "/usr", "/var", "/Users"}  # noqa: S108 - nothing is written there
)
NO_FILES = ("/proc/", "/sys/")
"""Never code, whoever's they are; without git, which would say what in them is."""
_ENVIRONMENT_MARKS = ("pyvenv.cfg", "conda-meta")


@record
class Listing:
    """The files of a tree: paths relative to `top`. `tracked` are those that git has.

    `patterns` are those of ``.holdfastignore``. `repositories` are other work trees inside, whose files are among
    these, and `absent` are submodules that are not checked out. `commit` and `dirty` are None where git does not say.
    """

    top: str
    paths: tuple[str, ...]
    tracked: frozenset[str] = frozenset()
    patterns: tuple[Pattern, ...] = ()
    commit: str | None = None
    dirty: bool | None = None
    repositories: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def list_code(workdir: str, environ: Mapping[str, str]) -> Listing:
    """The files of the tree around a job's working directory.

    Raises:
        UsageError: it is no directory of a project: the root, a home, one of the system.
        StorageError: the directory cannot be read, or git is there and cannot list it.
    """
    start = os.path.realpath(workdir)
    if not os.path.isdir(start):
        raise StorageError(f"{workdir} is not a directory", hint="correct `workdir`")
    top = _find_top(start)
    if top is None:
        _refuse_no_project(start, environ)
        return _walk(start, ())
    try:
        found = _ask_git(top, environ)
    except FileNotFoundError:
        return _walk(top, (f"git is not installed: all of {clean(top)} is taken, but usual caches",))
    below = os.path.relpath(start, top)
    if below != "." and not any(path.startswith(f"{below}/") for path in found.paths):
        return _walk(
            start, (f"git leaves {clean(start)} out, so all of it is taken, and nothing else of its repository",)
        )
    return found


def _refuse_no_project(start: str, environ: Mapping[str, str]) -> None:
    """Before anything is read there: nobody means to send all of that."""
    home = os.path.realpath(environ.get("HOME") or os.path.expanduser("~"))
    if start in SYSTEM or f"{start}/".startswith(NO_FILES) or f"{home}/".startswith(f"{start.rstrip('/')}/"):
        raise UsageError(
            f"{start} is no directory of a project, and all of it would be sent as the code of the job",
            hint="cd into the project's own directory, or name it from here (--workdir ./DIR; an absolute one is the "
            "place's own): it is sent as git sees it; or --no-code sends nothing",
        )


def _find_top(directory: str) -> str | None:
    """The work tree of git around a directory: where the nearest ``.git`` is, a directory or a file."""
    current = directory
    while True:
        if os.path.lexists(f"{current}/.git"):
            return current
        if current == os.path.dirname(current):
            return None
        current = os.path.dirname(current)


def _read_patterns(top: str) -> tuple[Pattern, ...]:
    path = f"{top}/{IGNORE_FILE}"
    try:
        return parse_ignore(files.read_bytes(path, limit=MOST_IGNORE_BYTES).decode("utf-8", "surrogateescape"))
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise StorageError(
            f"{path} cannot be read: {error.strerror}", hint="make it a file that you can read"
        ) from error


# ---- with git


def _ask_git(top: str, environ: Mapping[str, str]) -> Listing:
    patterns = _read_patterns(top)
    # Patterns on the command line win over every .gitignore, so that `!name` takes in what git leaves out.
    extra = tuple(f"--exclude={pattern.text}" for pattern in patterns)
    tracked, others, status = _run_all(
        top,
        environ,
        ("ls-files", "-z", "--cached"),
        ("ls-files", "-z", "--others", "--exclude-standard", *extra),
        ("status", "--porcelain=v2", "--branch", "--untracked-files=normal", "-z"),
    )
    commit, dirty = _read_status(status)
    known = dict.fromkeys(_split(tracked))
    paths: list[str] = []
    inside: list[str] = []
    absent: list[str] = []
    reached = {"": True}
    for path in dict.fromkeys((*known, *_leave_copies(top, _split(others)))):
        bare = path.rstrip("/")
        if is_left_out(bare, patterns, is_directory=path != bare) or not _is_reached(top, bare, reached):
            continue
        kind = _kind(f"{top}/{bare}")
        if kind != stat.S_IFDIR:
            paths += [path] if kind else []
        elif os.path.lexists(f"{top}/{bare}/.git"):
            inside.append(bare)
        else:
            absent.append(bare)
    found = Listing(top, tuple(paths), frozenset(known), patterns, commit, dirty, tuple(inside), tuple(absent))
    return _join(found, environ) if inside else found


def _leave_copies(top: str, paths: list[str]) -> list[str]:
    """Untracked files without those of pulled runs: each copy has the code of its run, and would double all of them."""
    copies = [
        path[: -len(COPY)] for path in paths if path.endswith(f"/{COPY}") and is_copy(f"{top}/{path[: -len(COPY)]}")
    ]
    return [path for path in paths if not path.startswith(tuple(copies))] if copies else paths


def _join(outer: Listing, environ: Mapping[str, str]) -> Listing:
    """A listing with what git lists in the work trees inside of it; the outer ``.holdfastignore`` holds there, too."""
    paths, tracked, inside, absent = [*outer.paths], set(outer.tracked), [], [*outer.absent]
    for name in outer.repositories:
        inner = _ask_git(f"{outer.top}/{name}", environ)
        below = [f"{name}/{path}" for path in inner.paths]
        paths += [path for path in below if not is_left_out(path, outer.patterns)]
        tracked |= {f"{name}/{path}" for path in inner.tracked}
        inside += [name, *(f"{name}/{path}" for path in inner.repositories)]
        absent += [f"{name}/{path}" for path in inner.absent]
    return Listing(
        outer.top,
        tuple(paths),
        frozenset(tracked),
        outer.patterns,
        outer.commit,
        outer.dirty,
        tuple(inside),
        tuple(absent),
    )


def _run_all(top: str, environ: Mapping[str, str], *commands: Sequence[str]) -> list[bytes]:
    """What several git commands print, all started at once.

    Raises:
        FileNotFoundError: there is no git.
        StorageError: one failed, or took too long.
    """
    safe = {name: value for name, value in environ.items() if not name.startswith("GIT_")}
    safe.update({"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"})
    children: list[subprocess.Popen[bytes]] = []
    try:
        children += [
            subprocess.Popen(
                (*GIT, "-C", top, *command),
                env=safe,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            for command in commands
        ]
        answers = [child.communicate(timeout=GIT_WITHIN_S) for child in children]
    except subprocess.TimeoutExpired as error:
        raise StorageError(
            f"git did not list {top} within {GIT_WITHIN_S:.0f} s", hint="see whether its disk answers: git status"
        ) from error
    finally:
        for child in children:
            if child.poll() is None:
                child.kill()
                child.communicate()
    for child, (_, said) in zip(children, answers, strict=True):
        if child.returncode != 0:
            words = clean(said.decode("utf-8", "replace").strip()[:2000], keep_newlines=True)
            raise StorageError(f"git cannot list {top}: {words}", hint=f"see: git -C {top} status")
    return [out for out, _ in answers]


def _split(data: bytes) -> list[str]:
    return [os.fsdecode(name) for name in data.split(b"\0") if name]


def _read_status(data: bytes) -> tuple[str | None, bool]:
    """Commit and whether anything differs from it. Source: git-status(1), "Porcelain Format Version 2"."""
    commit, dirty = None, False
    for entry in data.decode("utf-8", "replace").split("\0"):
        if entry.startswith("# branch.oid "):
            commit = None if entry.endswith("(initial)") else entry[13:]
        elif entry and not entry.startswith("# "):
            dirty = True
    return commit, dirty


def _is_reached(top: str, path: str, known: dict[str, bool]) -> bool:
    """Whether no directory above a path is a link. `known` has the answer for each directory seen so far."""
    parent = path.rpartition("/")[0]
    if parent not in known:
        known[parent] = _is_reached(top, parent, known) and _kind(f"{top}/{parent}") != stat.S_IFLNK
    return known[parent]


def _kind(path: str) -> int:
    """What is at a path, links not followed; 0 where nothing is."""
    try:
        return stat.S_IFMT(os.lstat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return 0
    except OSError:
        return stat.S_IFREG  # its reader says why


# ---- without git


def _walk(top: str, notes: tuple[str, ...]) -> Listing:
    patterns = _read_patterns(top)
    paths: list[str] = []
    for path in _list_below(top, "", patterns):
        paths.append(path)
        if len(paths) > MOST_LISTED:
            raise StorageError(
                f"more than {MOST_LISTED} files in {top}", hint=f"leave some out: write {IGNORE_FILE} there"
            )
    return Listing(top, tuple(paths), patterns=patterns, notes=notes)


def _list_below(top: str, prefix: str, patterns: tuple[Pattern, ...]) -> Iterator[str]:
    try:
        with os.scandir(f"{top}/{prefix}") as entries:
            listed = sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        raise StorageError(
            f"{top}/{prefix} cannot be read: {error.strerror}", hint=f"chmod u+rx it, or name it in {IGNORE_FILE}"
        ) from error
    names = {entry.name for entry in listed}
    if prefix and (not names.isdisjoint(_ENVIRONMENT_MARKS) or (COPY in names and is_copy(f"{top}/{prefix}"))):
        return
    for entry in listed:
        path = f"{prefix}{entry.name}"
        is_directory = entry.is_dir(follow_symlinks=False)
        if entry.name in CACHES or is_left_out(path, patterns, is_directory=is_directory):
            continue
        if is_directory:
            yield from _list_below(top, f"{path}/", patterns)
        else:
            yield path
