"""Requirements that would replace the framework of an image (PRE-16): told by exact names, nothing else is dropped.

An image's torch was built for its CUDA and driver; ``pip install -r`` with another pin replaces it by one that may not
reach the card. Counted are `torch`, `torchvision` and `torchaudio`; `torchmetrics` or `torch-geometric` are other
packages. Pure. Source: PEP 503 (names), PEP 508 (requirements), pip "Requirements File Format".
"""

from __future__ import annotations

import re

from holdfast.core.control_characters import one_line
from holdfast.model.pattern import compile_later

FRAMEWORK = frozenset({"torch", "torchvision", "torchaudio"})
_FILE = compile_later(r"(?:.*/)?(?:[\w.-]*requirements[\w.-]*\.(?:txt|in)|requirements/[\w.-]+\.(?:txt|in))")
_NAME = compile_later(r"\s*([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)\s*(?:\[[^\]]*\])?\s*(?=$|[<>=!~;@,(#\s])")
_ARRAY = compile_later(
    r"""(?m)^[ \t]*(?:dependencies|[\w"'-]+)[ \t]*=[ \t]*\[(?P<items>[^\[\]]*(?:\[[^\]]*\][^\[\]]*)*)\]"""
)
_STRING = compile_later(r'"([^"\n]*)"|\'([^\'\n]*)\'')
_CLAUSE = compile_later(r"(===|==|~=|!=|<=|>=|<|>)\s*([\w.+!*]+)")
_RELEASE = compile_later(r"\d+(\.\d+)*")
_SECTION = compile_later(r"(?m)^[ \t]*\[([^\[\]]+)\][ \t]*(?:#.*)?$")


def is_requirements_file(path: str) -> bool:
    """Whether a file says what is to be installed: ``requirements*.txt``, ``pyproject.toml``."""
    return path.rpartition("/")[2] == "pyproject.toml" or _FILE.fullmatch(path) is not None


def name_of(requirement: str) -> str:
    """The normalised name of the package that a line asks for; empty where it asks for none (an option, a comment)."""
    match = _NAME.match(requirement)
    return re.sub(r"[-_.]+", "-", match[1]).lower() if match is not None else ""


def filter_requirements(text: str) -> tuple[str, tuple[str, ...]]:
    """A requirements file without the framework, and the lines that were taken out; everything else as it was.

    A line that goes on in the next one (a backslash at its end, as before ``--hash``) goes with it.
    """
    kept, dropped, dropping, goes_on = [], [], False, False
    for line in text.splitlines(keepends=True):
        if not goes_on:
            dropping = name_of(line) in FRAMEWORK
            if dropping:
                dropped.append(line.split("#")[0].rstrip().rstrip("\\").strip())
        if not dropping:
            kept.append(line)
        goes_on = line.rstrip("\r\n").endswith("\\")
    return "".join(kept), tuple(dropped)


def find_pyproject(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Of the ``dependencies`` of a project: those to keep, and those of the framework."""
    kept: list[str] = []
    dropped: list[str] = []
    for section in _SECTION.finditer(text):
        if section[1].strip() != "project":
            continue
        following = _SECTION.search(text, section.end())
        body = text[section.end() : following.start() if following is not None else len(text)]
        for array in _ARRAY.finditer(body):
            if not array[0].lstrip().startswith("dependencies"):
                continue
            bare = "\n".join(line for line in array["items"].splitlines() if not line.lstrip().startswith("#"))
            for double, single in _STRING.findall(bare):
                item = double or single
                (dropped if name_of(item) in FRAMEWORK else kept).append(item)
    return tuple(kept), tuple(dropped)


def split_requirements(path: str, text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The requirements of a file: those to keep, and those of the framework."""
    if path.endswith("pyproject.toml"):
        return find_pyproject(text)
    filtered, dropped = filter_requirements(text)
    return tuple(line.strip() for line in filtered.splitlines() if name_of(line)), dropped


def is_met(requirement: str, installed: str) -> bool | None:
    """Whether an installed version is what a requirement asks for, so that nothing would be replaced; None: unclear.

    Versions are compared by their release numbers; a local part (``+cu126``) is the build's, and asked for by few.
    """
    asked = requirement.split(";", maxsplit=1)[0].split(" #", maxsplit=1)[0].strip()
    match = _NAME.match(asked)
    have = _read_release(installed)
    if match is None or have is None or "@" in asked:
        return None
    clauses = [part.strip() for part in asked[match.end() :].strip(" ()").split(",") if part.strip()]
    answers = [_is_clause_met(clause, have, installed) for clause in clauses]
    return None if None in answers else all(answers)


def _is_clause_met(clause: str, have: tuple[int, ...], installed: str) -> bool | None:
    match = _CLAUSE.fullmatch(clause)
    wanted = None if match is None else _read_release(match[2])
    if match is None or wanted is None:
        return None
    sign, prefix = match[1], match[2].endswith(".*")
    if "+" in match[2]:
        return (match[2] == installed) if sign in ("==", "===") else None
    width = max(len(have), len(wanted))
    left, right = (tuple([*release, *[0] * width][:width]) for release in (have, wanted))
    if prefix:
        left, right = have[: len(wanted)], wanted
    if sign == "~=":
        return left >= right and have[: len(wanted) - 1] == wanted[:-1]
    answers = {"<": left < right, "<=": left <= right, ">": left > right, ">=": left >= right, "!=": left != right}
    return answers.get(sign, left == right)


def _read_release(version: str) -> tuple[int, ...] | None:
    """The numbers of a final version; None of anything else (a development build, a candidate)."""
    bare = version.split("+", maxsplit=1)[0].removesuffix(".*").removeprefix("v")
    return tuple(int(part) for part in bare.split(".")) if _RELEASE.fullmatch(bare) else None


def describe_replacing(path: str, text: str) -> str:
    """What a file would replace of an image's framework, with what is left of it; empty where it replaces nothing."""
    kept, dropped = split_requirements(path, text)
    if not dropped:
        return ""
    rest = one_line(", ".join(kept) or "nothing", 600)
    return (
        f"{one_line(path, 200)} would replace the framework of the box or image: {one_line(', '.join(dropped), 200)};"
        f" without it there is left: {rest}"
    )
