"""Words of a command as nobody but a person reads them: no shell does, and it may be run from anywhere."""

from __future__ import annotations

import os
import re
import shlex

_RAW_WORD = re.compile(r"""(?:[^\s'"\\]|\\.|'[^']*'|"(?:\\.|[^"\\])*")+""", re.DOTALL)
_SHELL_WORD = re.compile(r"""&&?|\|[|&]?|;|[^'"\\\s]+;|\d?>>?|&>>?|\d?>&\d|<""")
"""Operators of a shell, as words of their own, or a semicolon that ends one."""
_EXPANDED = re.compile(
    r"""(?:\\.|'[^']*'|[^$`\\'])*(?P<what>\$(?:[A-Za-z_]\w*|[({][^\s)}]*[)}]?)|`[^`]*`?)""", re.DOTALL
)
"""A variable or a command that a shell would put in, outside of single quotes. Source: POSIX, sh, "Word Expansions"."""
_SETTING = re.compile(r"[A-Za-z_]\w*=")


def find_shell_word(text: str) -> str:
    """What is wrong with a command, as words, else empty: ``a && b`` would run `a` with two arguments."""
    for word in _RAW_WORD.findall(text):
        if _SHELL_WORD.fullmatch(word):
            return f"{word} is for a shell, and none reads this; write: sh -c {shlex.quote(text)}"
        if expanded := _EXPANDED.match(word):
            return f"{expanded['what']} is for a shell, and none reads this; write: sh -c {shlex.quote(text)}"
    if setting := _SETTING.match(text):
        name = setting.group()[:-1]
        return f"{name}= sets a variable, which is for a shell; write it below `env`: {{{name}: ...}}"
    return ""


def run_script(path: str) -> tuple[str, ...]:
    """The words that run a file: itself where it is a program, else what reads its language, and the file."""
    import shutil  # lazy: for a hint alone

    name = os.path.basename(path)
    if not name.endswith((".py", ".sh")) or shutil.which(path):
        return (path,)
    return ("python" if name.endswith(".py") else "bash", path)


def locate_program(program: str, base: str | None) -> str:
    """A program for a command that is run from nowhere in particular: a relative path counts from `base`.

    Raises:
        ValueError: it is on another machine (`base` None), and relative.
    """
    if "/" not in program or program.startswith(("/", "~/")):
        return program
    if base is None:
        raise ValueError(f"{program} is on this machine; name a program of the box: by its name, /..., or ~/...")
    return os.path.normpath(os.path.join(base, program))
