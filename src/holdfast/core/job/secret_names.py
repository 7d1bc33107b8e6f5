"""What a job says of the secrets that it wants: ``NAME`` as a variable, ``NAME=file`` as the path of a file. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.model.pattern import compile_later
from holdfast.model.record import record

MOST_BYTES = 64 * 1024
"""Of one value. A variable of the environment can have 128 KiB (execve(2), MAX_ARG_STRLEN)."""
_NAME = compile_later(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_AS_FILE = "=file"
_RESERVED = frozenset({"PATH", "HOME", "SHELL", "USER", "LOGNAME", "PWD", "IFS", "PYTHONPATH", "PYTHONHOME"})
_RESERVED_PREFIXES = ("HOLDFAST_", "LD_")


@record
class SecretUse:
    """One secret of a job: the variable `name` has its value, or with `as_file` the path of its file."""

    name: str
    as_file: bool = False


def check_secret_name(name: str) -> str:
    """What is wrong with a secret's name, as words; empty when nothing is. It is a variable's name as well."""
    if not _NAME.fullmatch(name):
        shown = name if len(name) <= 64 and name.isprintable() else f"{name[:20]!r}..."
        return f"{shown!r} is no name of a secret: letters, digits and underscores, no digit first, 64 at most"
    if name in _RESERVED or name.startswith(_RESERVED_PREFIXES):
        return f"{name} is a variable that programs start with, and cannot be a secret's name"
    return ""


def read_use(text: str) -> SecretUse:
    """What ``NAME`` or ``NAME=file`` asks for.

    Raises:
        ValueError: it is neither; the message says why.
    """
    name = text.removesuffix(_AS_FILE)
    if "=" in name:
        # What stands there may be the value itself.
        raise ValueError("expected NAME or NAME=file; a value is never written here")
    if problem := check_secret_name(name):
        raise ValueError(problem)
    return SecretUse(name, as_file=name != text)


def read_uses(texts: Iterable[str]) -> tuple[SecretUse, ...]:
    """As `read_use`, of several."""
    return tuple(read_use(text) for text in texts)


def to_variable(value: bytes) -> bytes:
    """A value as a variable has it: without the line feeds at its end, as in a shell's ``$(cat FILE)``."""
    return value.rstrip(b"\r\n")
