"""Meeting a box of which nothing is known: an interpreter is found, the bundle looked for or pushed, the box measured.

One round trip where the bundle is there, two where it is not. What is sent can be read by any login shell
(`bundle.bootstrap`); here is which words, and what the answer means.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from holdfast.core.control_characters import one_line
from holdfast.model.errors import NoInterpreter, UsageError
from holdfast.model.place import BoxFacts, Place
from holdfast.model.record import replace
from holdfast.transport.base import SAFE_WORD, Done, Transport

from .answers import LONGEST_SEEN, read_answer
from .bundle import bootstrap
from .bundle.build import Bundle

CONTACT_LIMIT_S = 60.0
"""The search for an interpreter starts several, from disks that may be cold."""
PUSH_LIMIT_S = 300.0
"""A megabyte and a half, on a slow line."""
ENTRY = "agent-entry"
_COMPLAINANT = re.compile(r"[0-9a-f]{24}: (?:(?:line )?\d+: )?")
_VERSION = re.compile(r"\d+\.\d+\S*$", re.ASCII)


def make_mark() -> str:
    """What begins a line of ours in the answer of one call."""
    return f"hf-{os.urandom(8).hex()}"


def contact(
    place: Place, transport: Transport, bundle: Bundle, facts: BoxFacts | None, *, push: bool
) -> dict[str, object]:
    """One round trip: what `bundle.receive.main` answers, or the probe after it. `facts`: what was known.

    Raises:
        NoInterpreter: the place has no Python that we could use.
        HoldfastError: as of `Box`.
    """
    mark = make_mark()
    call = {
        "root": None if place.root is None else check_path(place, "root", place.root),
        "hash": bundle.hash,
        "push": push,
        "probe": bootstrap.build_word((ENTRY, "probe"), {}),
        "after": bootstrap.build_word((ENTRY, "after-push"), {}),
    }
    python, how = _choose_python(place, facts)
    words = (python, how, mark, *bootstrap.build_program(call))
    done = transport.run(
        bootstrap.CONTACT_SCRIPT,
        words,
        stdin=bundle.data if push else b"",
        limit_s=PUSH_LIMIT_S if push else CONTACT_LIMIT_S,
    )
    return read_answer(place.name, "probe", replace(done, out=_cut_search(place, done, mark)))


def choose_words(place: Place, facts: BoxFacts, directory: str) -> tuple[str, str]:
    """The bundle's directory and the interpreter as words of a call.

    Raises:
        UsageError: one of them has letters that not every login shell reads alike.
    """
    if place.python is not None:
        python = check_path(place, "python", place.python).removeprefix("~/")
    else:
        python = _make_word(place, "python", facts.python, facts)
    return _make_word(place, "root", directory, facts), python


def check_path(place: Place, key: str, path: str) -> str:
    """A path of ``places.toml``, which every shell must read alike.

    Raises:
        UsageError: it is not absolute, or has other letters.
    """
    rest = path.removeprefix("~/")
    if not SAFE_WORD.match(rest) or not path.startswith(("/", "~/")) or ".." in path.split("/"):
        raise _refuse_path(place, key, path)
    return path


def _choose_python(place: Place, facts: BoxFacts | None) -> tuple[str, str]:
    """The interpreter to begin with, and whether others may be looked for."""
    if place.python is not None:
        return check_path(place, "python", place.python).removeprefix("~/"), "only"
    if facts is not None and SAFE_WORD.match(facts.python):
        return facts.python, "first"
    return "/", "any"


def _make_word(place: Place, key: str, path: str, facts: BoxFacts) -> str:
    """A path of the box as a word; one below a home with unusual letters is sent relative to it."""
    if SAFE_WORD.match(path):
        return path
    home = facts.home.rstrip("/") + "/"
    if path.startswith(home) and SAFE_WORD.match(path[len(home) :]):
        return path[len(home) :]
    raise _refuse_path(place, key, path)


def _refuse_path(place: Place, key: str, path: str) -> UsageError:
    return UsageError(
        f"place {place.name}: {key} = {path!r} cannot be used: it must be absolute or begin with ~/, and "
        "have only letters, digits and ._/+=@:- in it",
        hint=f"name another {key} in places.toml",
    )


def _cut_search(place: Place, done: Done, mark: str) -> bytes:
    """What came after the search for an interpreter.

    Raises:
        NoInterpreter: none was found; says which were tried and why not.
    """
    before, found, after = done.out.partition(f"{mark} {bootstrap.MARK_FOUND} ".encode())
    if found:
        return after.partition(b"\n")[2]
    head, none_found, _ = before.decode("utf-8", "replace").partition(f"{mark} {bootstrap.MARK_NONE}\n")
    if not none_found:
        return b""
    tried = []
    for part in head.split(f"{mark} ")[1:]:
        kind, _, said = part.partition(" ")
        if kind == bootstrap.MARK_TRIED:
            path, *lines = [line for line in said.splitlines() if line.strip()] or ["?"]
            tried.append(f"{one_line(path, LONGEST_SEEN)} ({_describe_python(lines)})")
    seen = "; ".join(dict.fromkeys(tried)) or "no python3 is there"
    if place.python is not None:
        what = f"place {place.name}: the Python of places.toml cannot be used: {seen}"
        raise NoInterpreter(what, hint="name another as `python`, or leave it out to have one looked for")
    what = f"place {place.name} has no Python 3.10 or newer that we could use: {seen}"
    raise NoInterpreter(
        what, hint="install one there (uv, conda, the system's), or name one as `python` in places.toml"
    )


def _describe_python(lines: Sequence[str]) -> str:
    """Why an interpreter was not taken: what it printed is its path, its version, and what it missed."""
    versions = [line for line in lines if _VERSION.match(line)]
    if not versions:
        # A shell says who complains: its $0, which is our nonce, and perhaps a line.
        return one_line(_COMPLAINANT.sub("", lines[-1]), LONGEST_SEEN) if lines else "does not start"
    missing = [line for line in lines if "Error:" in line]
    why = missing[-1].partition("Error:")[2].strip() if missing else "too old"
    return one_line(f"Python {versions[0]}: {why}", LONGEST_SEEN)
