"""Where profiles are read from: the package's files, and over them the user's, ``profiles/*.toml`` beside places.toml.

A user's file with a name of the package's stands over that one key by key; any other is a profile of its own, which
inherits from the baseline unless it says otherwise. Only the user's own files may have hooks, so they are read only
while nobody else could have written them.
"""

from __future__ import annotations

import os

import holdfast
from holdfast.core.near import find_near
from holdfast.core.profile.merge import Layer, Merged, build_profile, find_gaps, merge
from holdfast.core.profile.schema import BASELINE, Problem, check_file
from holdfast.desk.places.regular_file import read_own_text
from holdfast.desk.settings.user_file import config_home
from holdfast.desk.toml import Node, NotTomlError, load_plain, parse_toml
from holdfast.host.clock import utc_now
from holdfast.model.errors import NoSuchName, StorageError, UsageError
from holdfast.model.place import LOCAL
from holdfast.model.profile import PROFILE_NAME, Profile
from holdfast.model.record import record

SHIPPED = os.path.join(os.path.dirname(os.path.abspath(holdfast.__file__)), "profiles")
LONGEST_LINE = 8
"""Profiles between one and the baseline."""
SUFFIX = ".toml"
MEND = "mend it there; what runs goes on, and only places with this profile take nothing new until then"


def user_directory() -> str:
    """Where the user's own profiles are, whether or not there are any."""
    return f"{config_home()}/profiles"


def list_profiles() -> tuple[str, ...]:
    """The names of all profiles, sorted."""
    return tuple(sorted({*_list_names(SHIPPED), *_list_names(user_directory())}))


def list_profile_names(begin: str = "") -> list[tuple[str, str | None]]:
    """Names of profiles that begin so, for a TAB, each with whose it is."""
    own = _list_names(user_directory())
    return [(name, "yours" if name in own else "of holdfast") for name in list_profiles() if name.startswith(begin)]


def is_own(name: str) -> bool:
    """Whether the user has a file of this name."""
    return name in _list_names(user_directory())


def _list_names(directory: str) -> set[str]:
    try:
        names = [name.removesuffix(SUFFIX) for name in os.listdir(directory) if name.endswith(SUFFIX)]
    except OSError:
        return set()
    return {name for name in names if PROFILE_NAME.fullmatch(name)}


def load_profile(name: str) -> Profile:
    """The profile of this name, with all that it inherits and the user's own over it.

    Raises:
        NoSuchName: there is none.
        UsageError: something in its files is wrong; every problem is named with file, line and key.
        NotPermitted: others may write a file of the user's.
        StorageError: a file cannot be read.
    """
    inherits, files = _collect(name)
    problems = [text for file in files for text in file.describe_problems()]
    if not problems:
        merged = merge(Layer(file.origin, file.stated) for file in files)
        problems = [_locate(files, problem, merged) for problem in find_gaps(merged)]
        if not problems:
            return build_profile(name, inherits, merged)
    raise UsageError("\n".join(problems), hint=MEND)


def profile_of_place(profile: str, place: str) -> Profile | None:
    """The profile that a place is given; this machine is `local` unless it says otherwise, any other has none then.

    Raises:
        UsageError, NotPermitted, StorageError: as of `load_profile`.
    """
    chosen = profile or (LOCAL if place == LOCAL else "")
    return load_profile(chosen) if chosen else None


def today() -> str:
    """The day on which the age of a fact is judged."""
    return utc_now()[:10]


@record
class _File:
    """One file as it was read: what it says, and what is wrong in it."""

    path: str
    origin: str
    tree: Node
    stated: dict[str, object]
    problems: tuple[Problem, ...]

    def find_line(self, path: tuple[str, ...]) -> str:
        """Where a key is, as ``FILE:LINE``; the nearest that is there."""
        node = self.tree
        for key in path:
            if not isinstance(node.value, dict) or key not in node.value:
                break
            node = node.value[key]
        return node.where

    def describe_problems(self) -> list[str]:
        """Each with file, line and key."""
        return [
            f"{self.find_line(problem.path)}: {'.'.join(problem.path)}: {problem.words}" for problem in self.problems
        ]


def _collect(name: str) -> tuple[str, list[_File]]:
    """From whom the profile inherits, and all its files, the baseline's first.

    Raises:
        UsageError: one of them is not there, inherits from itself, or is not TOML.
    """
    files: list[_File] = []
    inherits, asked_by = "", ""
    current: str | None = name
    seen: list[str] = []
    while current is not None:
        if current in seen or len(seen) > LONGEST_LINE:
            raise UsageError(f"{asked_by}: inherits: {' from '.join([*seen, current])}: a profile inherits from itself")
        seen.append(current)
        own = _read_files(current, asked_by)
        files[:0] = own
        parent = None if current == BASELINE else BASELINE
        for file in own:
            if isinstance(stated := file.stated.get("inherits"), str) and stated:
                parent, asked_by = stated, file.find_line(("inherits",))
        inherits = (parent or "") if current == name else inherits
        current = parent
    return inherits, files


def _read_files(name: str, asked_by: str) -> list[_File]:
    found = []
    if PROFILE_NAME.fullmatch(name):
        for directory, own in ((SHIPPED, False), (user_directory(), True)):
            file = _read_file(f"{directory}/{name}{SUFFIX}", own=own)
            found += [] if file is None else [file]
    if not found:
        names = list_profiles()
        near = find_near(name, names)
        where = f"{asked_by}: inherits: " if asked_by else ""
        error = UsageError if asked_by else NoSuchName
        raise error(
            f"{where}there is no profile {name[:80]!r}" + (f"; did you mean {near}?" if near else ""),
            hint=f"there are {', '.join(names)}; a profile of your own is {user_directory()}/NAME.toml",
        )
    return found


def _read_file(path: str, *, own: bool) -> _File | None:
    if own:
        if not os.path.lexists(path):
            return None
        text = read_own_text(path, "what is done before jobs")
    else:
        try:
            with open(path, encoding="utf-8") as stream:
                text = stream.read()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageError(f"{path}: {error.strerror}", hint="install holdfast again") from error
    try:
        tree, content = parse_toml(text, path), load_plain(text)
    except NotTomlError as error:
        raise UsageError(str(error), hint=MEND) from error
    stated, problems = check_file(content, own=own)
    origin = path if own else f"holdfast: {os.path.basename(path)}"
    return _File(path, origin, tree, stated, tuple(problems))


def _locate(files: list[_File], problem: Problem, merged: Merged) -> str:
    """A problem of all files together, in the last of them that says something of the key."""
    dotted = ".".join(problem.path)
    origins = [merged.origins[key] for key in merged.origins if f"{key}.".startswith(f"{dotted}.")]
    place = next((file for file in files if origins and file.origin == origins[-1]), files[-1])
    return f"{place.find_line(problem.path)}: {dotted}: {problem.words}"
