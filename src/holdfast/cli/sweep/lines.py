r"""Files of commands, one a line, as people have them: read once, strictly, without a shell (QUEUE-02, QUEUE-04).

Words are split as POSIX says: single and double quotes, backslashes, ``#`` where a word begins starts a comment, a
backslash at the end of a line continues it. A quote ends on its line. Nothing is expanded, because nothing meets a
shell: what one would have acted on (``|``, ``;``, ``&``, ``<``, ``>``, ``*``, ``$NAME``, ``~/``) is refused where it
is not quoted, instead of reaching the program as text. Variables before the command (``A=1 python ...``) become its
environment.

A job's name is what ``name=NAME`` as the first word says, else made from the command, so that neither the order of
the lines nor an insertion changes which job is which.

Source: POSIX.1-2017, Shell Command Language, 2.2 "Quoting" and 2.3 "Token Recognition".
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING, Any

from holdfast.cli.job.jobfile import name_from_command
from holdfast.core.job.redact import holds_secret
from holdfast.core.queue.identity import JOB_PLACEHOLDER
from holdfast.core.queue.job_hasher import JobHasher
from holdfast.model.ids import clean_name
from holdfast.model.pattern import compile_later
from holdfast.model.queue import NewJob
from holdfast.model.record import field, record

from .read import FileProblems, read_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

MAX_LINES = 200_000
HASH_DIGITS = 8
"""Of the command's SHA-256 in a made name: with 10,000 commands that begin alike, one chance in a hundred of a clash,
which is then refused."""
LONGEST_SLUG = 40
HINT = "nothing was handed in; for what only a shell can do write: bash -c '...'"

_SIMPLE = compile_later(r"[A-Za-z0-9_./=:,@%+\-^!?{}\[\] \t]*")
"""Lines in which words are just separated by blanks."""
_PIECE = compile_later(
    r"""(?P<blank>[ \t]+) | (?P<plain>[^\s'"\\|;&<>()*$`\#]+) | '(?P<single>[^']*)' | "(?P<double>(?:[^"\\]|\\.)*)"
      | \\(?P<escaped>.) | (?P<sign>.)""",
    re.VERBOSE,
)
_ESCAPED_IN_DOUBLE = compile_later(r'\\([$`"\\])')
_EXPANDS = compile_later(r"(?<!\\)(?:`|\$[A-Za-z_{(0-9@*#?!])")
_EXPANDED = compile_later(r"[A-Za-z_{(0-9@*#?!]")
_ASSIGNMENT = compile_later(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL | re.ASCII)
_NAME = compile_later(r"[A-Za-z0-9][A-Za-z0-9._=-]{0,99}", re.ASCII)
_SLUG = compile_later(r"[^A-Za-z0-9.]+")
_CONTROL = compile_later(r"[\x00-\x08\x0b-\x1f\x7f]")
_DEVICES = frozenset({"CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"})


@record
class CommandLine:
    """One command of a file: the job's `name`, its words, the variables before it, and the line it begins in."""

    name: str
    command: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    line: int = 0


def read_lines(path: str) -> list[CommandLine]:
    """The commands of a file, in its order.

    Raises:
        JobFileError: it cannot be read, holds none, or has mistakes; up to ten are named with their lines.
    """
    return parse_lines(read_text(path, "file of commands"), path)


def parse_lines(text: str, path: str) -> list[CommandLine]:
    """As `read_lines`, of a text; `path` is its name in errors."""
    problems = FileProblems()
    found: list[CommandLine] = []
    names: dict[str, int] = {}
    for number, line in _join_lines(text):
        try:
            words = split_words(line)
            command = _build(words, number) if words else None
        except ValueError as error:
            problems.add(f"{path}:{number}", str(error), number)
            continue
        if command is None:
            continue
        _note_twice(command, names, problems, path)
        found.append(command)
        if len(found) > MAX_LINES:
            problems.add(path, f"more than {MAX_LINES} commands")
            break
    if not found and not problems:
        problems.add(path, "holds no command")
    problems.raise_any(HINT)
    return found


def to_jobs(lines: Sequence[CommandLine], base: Mapping[str, Any]) -> tuple[NewJob, ...]:
    """The jobs of these commands over the encoded base job: command, environment and the run's name are their own."""
    inherited: Mapping[str, str] = base.get("env") or {}
    hasher = JobHasher(base)
    jobs = []
    for line in lines:
        words = [word.replace(JOB_PLACEHOLDER, line.name) for word in line.command]
        change: dict[str, object] = {"command": words, "name": clean_name(line.name)}
        if line.environment:
            own = {name: text.replace(JOB_PLACEHOLDER, line.name) for name, text in line.environment.items()}
            change["env"] = {**inherited, **own}
        jobs.append(NewJob(line.name, change, sha256=hasher.hash(change)))
    return tuple(jobs)


def split_words(line: str) -> list[str]:
    """The words of one command line; none for a blank line or a comment.

    Raises:
        ValueError: a quote stays open, or something would need a shell; the message says what.
    """
    if _SIMPLE.fullmatch(line):
        return line.split()
    words: list[str] = []
    word: str | None = None
    for match in _PIECE.finditer(line):
        kind, piece = match.lastgroup, match[match.lastgroup or 0]
        if kind == "blank":
            if word is not None:
                words.append(word)
            word = None
        elif kind == "sign" and piece == "#" and word is None:
            break
        else:
            word = (word or "") + _read_piece(str(kind), piece, line, match.end(), begins=word is None)
    return words if word is None else [*words, word]


def _read_piece(kind: str, piece: str, line: str, end: int, *, begins: bool) -> str:
    """The text of one piece of a word."""
    if kind == "double":
        if _EXPANDS.search(piece):
            raise ValueError(f'a shell would replace a part of "{piece[:60]}"; without one it stays as it is')
        return _ESCAPED_IN_DOUBLE.sub(r"\1", piece)
    if kind == "sign":
        return _read_sign(piece, line, end)
    if kind == "plain":
        if begins and piece.startswith("~"):
            raise ValueError(f"{piece[:60]}: only a shell knows what ~ is; write the whole path")
        if _CONTROL.search(piece):
            raise ValueError(f"holds a control character: {piece[:60]!r}")
    return piece


def _read_sign(sign: str, line: str, end: int) -> str:
    if sign == "#" or (sign == "$" and not _EXPANDED.match(line, end)):
        return sign
    if sign in "\"'":
        raise ValueError(f"the quote {sign} is not closed on its line")
    if sign == "\\":
        raise ValueError("ends with a backslash, and nothing follows it")
    if sign.isspace() or _CONTROL.match(sign):
        raise ValueError(f"holds a control character: {sign!r}")
    begin = max(0, end - 12)
    if begin and " " in line[begin : end - 2]:
        # From the beginning of a word on: half a word would only puzzle.
        begin = line.index(" ", begin)
    around = line[begin : end + 11].strip()
    raise ValueError(f"{sign} in `{around}` is for a shell, and there is none; quote it, or write bash -c '...'")


def _join_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines with the number of their first one; a backslash at the end takes the next one in, but not in a comment."""
    pending, first = "", 0
    for number, raw in enumerate(text.split("\n"), start=1):
        line = raw.removesuffix("\r")
        first = first or number
        if line.endswith("\\") and not line.lstrip().startswith("#") and _is_odd(line):
            pending += line[:-1]
            continue
        yield first, pending + line
        pending, first = "", 0
    if first:
        yield first, pending + "\\"


def _is_odd(line: str) -> bool:
    """Whether the backslashes at the end are one more than pairs: the last one then escapes the end of the line."""
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _build(words: list[str], number: int) -> CommandLine:
    """The command in the words of a line.

    Raises:
        ValueError: it is none, or sets what it must not.
    """
    name = ""
    if words[0].startswith("name="):
        name = words[0].removeprefix("name=")
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name[:60]!r} is no name for a job: letters, digits and . _ = - (100 at most)")
        words = words[1:]
    environment: dict[str, str] = {}
    while words and (found := _ASSIGNMENT.fullmatch(words[0])):
        _check_variable(found[1], found[2])
        environment[found[1]] = found[2]
        words = words[1:]
    if not words:
        raise ValueError("sets something and runs nothing: a command has to follow on the line")
    command = tuple(words)
    return CommandLine(name or make_name(command, environment), command, environment, number)


def _check_variable(name: str, text: str) -> None:
    if name in _DEVICES:
        raise ValueError(f"{name}={text[:40]}: holdfast leases the cards and sets this itself; ask with --gpus")
    if name.startswith("HOLDFAST_"):
        raise ValueError(f"{name}: variables of this name are holdfast's own")
    if holds_secret(name, text):
        raise ValueError(f"{name} looks like a secret, which would be stored; `export` it before you hand the file in")


def make_name(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """A readable name that depends on the command alone: program, arguments as far as they fit, digits of a hash."""
    whole = json.dumps([sorted(environment.items()), list(command)], ensure_ascii=False)
    digits = hashlib.sha256(whole.encode("utf-8", "surrogateescape")).hexdigest()[:HASH_DIGITS]
    program = name_from_command(command)
    at = next((index for index, word in enumerate(command) if program in word), 0)
    slug = _SLUG.sub("-", "-".join((program, *command[at + 1 :])))[:LONGEST_SLUG].strip("-.")
    return f"{slug or 'command'}-{digits}"


def _note_twice(command: CommandLine, names: dict[str, int], problems: FileProblems, path: str) -> None:
    """The same name for two lines: the same command without names of their own, or two commands with one name."""
    first = names.setdefault(command.name, command.line)
    if first == command.line:
        return
    problems.add(
        f"{path}:{command.line}",
        f"is called {command.name}, as line {first} is; a command that is to run twice needs names: name=NAME COMMAND",
        command.line,
    )
