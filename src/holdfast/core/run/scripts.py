"""Finds the script that a command reads, and whether a shell reads it while it runs (PROC-20).

A shell reads its script as it goes, so an edit in place changes a run that is under way; Python and the rest read
theirs whole at the start. Such a script runs from the run's own copy. That changes ``$0``, so a script that asks for
its own name or place keeps running where it lies, and a finding says so. Pure: file contents come in as text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from holdfast.model.pattern import compile_later
from holdfast.model.record import record

SHELLS = frozenset({"sh", "bash", "dash", "ash", "ksh", "ksh93", "mksh", "zsh", "rbash", "yash"})
_TAKES_VALUE = frozenset({"-o", "+o", "-O", "+O", "--rcfile", "--init-file"})
_OWN_NAME = compile_later(r"""\$(?:0(?!\d)|\{0\b|\{?BASH_SOURCE|\{?ZSH_ARGZERO|\{\(%\):-%[xN])""")
_SOURCED = compile_later(
    r"""(?:^|[;&|({]|\b(?:then|do|else)\b)\s*(?:source|\.)\s+(?:"([^"$`]+)"|'([^']+)'|([^\s"'$`;&|)<>*?]+))"""
)
"""``[^$`]``: what is put together while it runs cannot be told before."""
_INSTALLS = compile_later(
    r"""(?:^|[\s;&|("'/])(?:
        (?:uv[ ]+)?pip3?(?:\.\d+)?[ ]+(?:-\S+[ ]+)*install\b
      | python\d?(?:\.\d+)?[ ]+(?:-\w+[ ]+)*-m[ ]+pip[ ]+(?:-\S+[ ]+)*install\b
      | (?:conda|mamba|micromamba)[ ]+(?:-\S+[ ]+)*(?:install|create|update|env[ ]+(?:create|update))\b
      | (?:apt|apt-get|dnf|yum|apk)[ ]+(?:-\S+[ ]+)*(?:install|add|upgrade|update)\b
      | (?:uv|poetry|pdm)[ ]+(?:-\S+[ ]+)*(?:sync|add|install)\b
      | python\d?(?:\.\d+)?[ ]+-m[ ]+spacy[ ]+download\b | spacy[ ]+download\b
      | python\d?(?:\.\d+)?[ ]+-m[ ]+nltk\.downloader\b
      | npm[ ]+(?:install|ci)\b
    )""",
    re.VERBOSE,
)

_HANDLES = compile_later(r"(?i)\|\||(?<![<>])&(?!>)|<<|\$\{?\?|pipestatus|\(\)|errexit")
"""What may look at how a command ended, hand that on, or let something else follow from it."""
_CONTROL = frozenset(
    {"if", "then", "for", "while", "until", "do", "select", "case", "function", "{", "(", "!"}
    | {"trap", "set", "exit", "return", "wait", "exec"}
)
"""First words of what is no plain command, and of commands that change how the shell ends."""
_CLOSING = {"echo": 1, "printf": 1, "date": 1, "true": 0, ":": 0, "sleep": 0}
"""Commands that answer 0 whatever came before them, with the lines that each prints."""
_COPIERS = compile_later(r"""(?:^|[\s;&|("'])(scp|sftp|ftp|wget(?!(?:[ ]+\S+)*[ ]+(?:-c|--continue)\b))[ ]+[^\s=]""")
"""Copying programs that begin anew when the line breaks; ``wget -c`` goes on."""


@record
class ShellScript:
    """A shell that reads a file: `index` is the script's place in the argument vector."""

    index: int
    name: str


def find_shell_script(argv: Sequence[str]) -> ShellScript | None:
    """The script in ``bash [options] script ...``; None for anything else, such as ``bash -c``."""
    if len(argv) < 2 or argv[0].rsplit("/", 1)[-1] not in SHELLS:
        return None
    index = 1
    while index < len(argv):
        word = argv[index]
        if word == "--":
            index += 1
            break
        if not word.startswith(("-", "+")) or word in ("-", "+"):
            break
        if word.startswith("-") and not word.startswith("--") and ("c" in word[1:] or "s" in word[1:]):
            return None
        index += 2 if word in _TAKES_VALUE else 1
    if index >= len(argv) or argv[index] in ("-", "/dev/stdin"):
        return None
    return ShellScript(index, argv[index])


def find_shell_text(argv: Sequence[str]) -> str:
    """What a shell is given to run as a word (``bash -ec 'a; b'``), with its ``-e``; empty for anything else."""
    if not argv or argv[0].rsplit("/", 1)[-1] not in SHELLS:
        return ""
    for number, word in enumerate(argv[1:-1], 1):
        if not word.startswith("-") or word.startswith("--"):
            break
        if "c" in word:
            ends = any("e" in option[1:] for option in argv[1 : number + 1])
            return f"set -e\n{argv[number + 1]}" if ends else argv[number + 1]
    return ""


def count_closing_lines(text: str) -> int:
    """How many lines a shell prints itself at the end of this text, whatever became of the programs before.

    0 where the last command is a program, which says its own code, and where the text is more than plain commands
    one after the other: it may have seen that one failed, and handled it.
    """
    lines = text.replace("\\\n", " ").replace(";", "\n").split("\n")
    commands = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    asks = re.match(r"#![^\n]*[ \t]-\w*e", text) is not None or any(map(_HANDLES.search, commands))
    if asks or any(command.split(None, 1)[0] in _CONTROL or command[0] in "({" for command in commands):
        return 0
    printed = 0
    for command in reversed(commands):
        said = _CLOSING.get(command.split(None, 1)[0])
        if said is None or ">" in command or "|" in command or command.count('"') % 2 or command.count("'") % 2:
            return printed
        printed += said
    return 0


def split_shebang(first_line: str) -> list[str] | None:
    """The argument vector's beginning that a ``#!`` line stands for; None when the line is none.

    As the kernel does it, the rest behind the interpreter is one argument; ``env -S`` splits it again.
    Source: execve(2), env(1).
    """
    if not first_line.startswith("#!"):
        return None
    words = first_line[2:].strip().split(None, 1)
    if not words:
        return None
    if words[0].rsplit("/", 1)[-1] == "env" and len(words) > 1:
        rest = words[1].split()
        if rest[0] in ("-S", "--split-string"):
            return rest[1:] or None
        return rest[:1] if len(rest) == 1 else None
    return words


def is_shell(words: Sequence[str]) -> bool:
    """Whether an interpreter from a ``#!`` line is a shell that reads its script bit by bit."""
    return bool(words) and words[0].rsplit("/", 1)[-1] in SHELLS


def asks_for_itself(script: str) -> bool:
    """Whether a shell script uses its own name or place (``$0``, ``BASH_SOURCE``), so that a copy would mislead it."""
    lines = (line for line in script.splitlines() if not line.lstrip().startswith("#"))
    return any(_OWN_NAME.search(line) for line in lines)


def find_sourced(script: str) -> tuple[str, ...]:
    """The files that a shell script reads into itself (``. lib.sh``, ``source lib.sh``), by the names written there."""
    lines = (line for line in script.splitlines() if not line.lstrip().startswith("#"))
    return tuple(dict.fromkeys(found[1] or found[2] or found[3] for line in lines for found in _SOURCED.finditer(line)))


def find_copier(text: str) -> str | None:
    """The first program in a shell text that copies without being able to go on; None without one (gotcha GEN3)."""
    for line in text.splitlines():
        if line.lstrip().startswith("#"):
            continue
        match = _COPIERS.search(line)
        if match is not None:
            return match[1]
    return None


def find_install(text: str) -> str | None:
    """The first installation command in a shell text or a joined argument vector; None without one (RAIL-09)."""
    for line in text.splitlines():
        if line.lstrip().startswith("#"):
            continue
        match = _INSTALLS.search(line)
        if match is not None:
            return match[0].strip(" \t;&|(\"'/")
    return None
