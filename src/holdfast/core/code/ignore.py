"""``.holdfastignore``: what is left out of a tree of code, in the syntax of ``.gitignore``.

The last pattern that matches decides, ``!`` takes a name in again, a slash at the end means directories only, a slash
elsewhere ties the pattern to the top; ``*``, ``?``, ``[...]`` and ``**`` as git has them. A name below a directory that
is left out cannot be taken in again. Pure. Source: gitignore(5), "PATTERN FORMAT".
"""

from __future__ import annotations

import re

from holdfast.model.record import record

IGNORE_FILE = ".holdfastignore"
MOST_PATTERNS = 10_000


@record
class Pattern:
    """One line: what it matches, as a regular expression over the whole path; `negated` begins with ``!``."""

    text: str
    expression: re.Pattern[str]
    negated: bool
    directories_only: bool


def parse_ignore(text: str) -> tuple[Pattern, ...]:
    """The patterns of a file, in order; empty lines and comments are none."""
    found = []
    for line in text.splitlines()[:MOST_PATTERNS]:
        bare = _trim(line)
        if not bare or bare.startswith("#"):
            continue
        negated = bare.startswith("!")
        body = bare[1:] if negated else bare
        directories_only = body.endswith("/")
        expression = _translate(body.rstrip("/") if directories_only else body)
        if expression is not None:
            found.append(Pattern(bare, expression, negated, directories_only))
    return tuple(found)


def is_left_out(path: str, patterns: tuple[Pattern, ...], *, is_directory: bool = False) -> bool:
    """Whether a file is left out by itself, or with a directory above it."""
    if not patterns:
        return False
    at = path.find("/")
    while at >= 0:
        if _decide(path[:at], patterns, is_directory=True) is True:
            return True
        at = path.find("/", at + 1)
    return _decide(path, patterns, is_directory=is_directory) is True


def is_asked_for(path: str, patterns: tuple[Pattern, ...]) -> bool:
    """Whether a pattern with ``!`` names this very file."""
    return not is_left_out(path, patterns) and _decide(path, patterns, is_directory=False) is False


def _decide(path: str, patterns: tuple[Pattern, ...], *, is_directory: bool) -> bool | None:
    """Whether the last pattern that matches leaves a path out; None where none does."""
    for pattern in reversed(patterns):
        if (is_directory or not pattern.directories_only) and pattern.expression.fullmatch(path):
            return not pattern.negated
    return None


def _trim(line: str) -> str:
    """Without blanks at the end, unless a backslash stands before them."""
    bare = line.rstrip(" \t\r")
    return f"{bare} " if bare.endswith("\\") and len(bare) < len(line) else bare


def _translate(body: str) -> re.Pattern[str] | None:
    anchored = "/" in body
    body = body.removeprefix("/")
    if not body:
        return None
    out, at = [] if anchored else ["(?:.*/)?"], 0
    while at < len(body):
        letter = body[at]
        if body.startswith("**/", at) and (at == 0 or body[at - 1] == "/"):
            out.append("(?:.*/)?")
            at += 3
        elif body[at:] == "**" and at > 0 and body[at - 1] == "/":
            out.append(".+")
            at += 2
        elif letter == "*":
            out.append("[^/]*")
            at += len(body[at:]) - len(body[at:].lstrip("*"))
        elif letter == "?":
            out.append("[^/]")
            at += 1
        elif letter == "[":
            piece, at = _translate_class(body, at)
            if piece is None:
                return None
            out.append(piece)
        else:
            at += letter == "\\"
            if at >= len(body):
                return None
            out.append(re.escape(body[at]))
            at += 1
    return re.compile("".join(out), re.DOTALL)


def _translate_class(body: str, at: int) -> tuple[str | None, int]:
    """A bracket expression that begins at `at`; None where it does not end: then the pattern matches nothing."""
    end = at + 1
    end += end < len(body) and body[end] in "!^"
    end += end < len(body) and body[end] == "]"
    while end < len(body) and body[end] != "]":
        end += 2 if body[end] == "\\" else 1
    if end >= len(body):
        return None, at
    inner = body[at + 1 : end]
    negated = inner[:1] in ("!", "^") and bool(inner)
    letters = inner[1:] if negated else inner
    for name, plain in (("[:alnum:]", "a-zA-Z0-9"), ("[:alpha:]", "a-zA-Z"), ("[:digit:]", "0-9")):
        letters = letters.replace(name, plain)
    text = re.sub(r"([\[&~|^]|\](?=.))", r"\\\1", letters) if letters != "]" else r"\]"
    piece = f"(?!/)[{'^' if negated else ''}{text}]"
    try:
        re.compile(piece)
    except re.error:
        return None, at
    return piece, end + 1
