"""Python tracebacks: where they end, what was raised, and which class an exception has by itself. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ...model.verdict import FailureClass
from .lines import clean_line

EXCEPTION = "exception"
"""Id of the match that stands for a Python traceback."""
HEADER = "Traceback (most recent call last)"
LONGEST_TRACEBACK = 400
"""Lines looked at for the end of a traceback; a deep recursion is folded by Python itself."""

_RAISED = re.compile(
    r"(?P<name>(?:[A-Za-z_]\w*\.)*[A-Z]\w*|(?:[A-Za-z_]\w*\.)+(?:error|timeout|gaierror|herror)|_queue\.Empty)(?::(?:\s|$)(?P<text>.*))?$"
)
"""The last line of a traceback: a class, and after a colon its text (CPython traceback.py, format_exception_only)."""
_INSIDE = re.compile(r"\s|[│╭╰|+]|$")
"""How lines of a traceback's body begin: indented, framed (rich), grouped (ExceptionGroup), or empty."""

_ENVIRONMENT = FailureClass.ENVIRONMENT
_CLASSES: dict[str, FailureClass] = {
    "MemoryError": FailureClass.OUT_OF_MEMORY,
    "OutOfMemoryError": FailureClass.GPU_OUT_OF_MEMORY,
    "ModuleNotFoundError": _ENVIRONMENT,
    "ImportError": _ENVIRONMENT,
    "FileNotFoundError": _ENVIRONMENT,
    "PermissionError": _ENVIRONMENT,
    "NotADirectoryError": _ENVIRONMENT,
    "IsADirectoryError": _ENVIRONMENT,
    "ConnectionError": FailureClass.TRANSIENT,
    "ConnectionRefusedError": FailureClass.TRANSIENT,
    "ConnectionResetError": FailureClass.COMMUNICATION,
    "ConnectionAbortedError": FailureClass.COMMUNICATION,
    "BrokenPipeError": FailureClass.COMMUNICATION,
    "gaierror": FailureClass.TRANSIENT,
    "TimeoutError": FailureClass.COMMUNICATION,
    "DistBackendError": FailureClass.COMMUNICATION,
    "DistStoreError": FailureClass.COMMUNICATION,
    "DistNetworkError": FailureClass.COMMUNICATION,
    "KeyboardInterrupt": FailureClass.KILLED,
    "FloatingPointError": FailureClass.DIVERGED,
}
"""By the last part of the name; every other exception is the job's own (BUG)."""


@dataclass(frozen=True, slots=True)
class Traceback:
    """A traceback's text, its rank, and the line that was raised with its number; empty when the text ended before."""

    text: str
    rank: int | None = None
    raised: str = ""
    number: int = 0


def judge_exception(line: str) -> tuple[str, FailureClass] | None:
    """Name and class of an exception's line; None when it is no such line. ``SystemExit`` is an end, not a fault."""
    match = _RAISED.match(line.rstrip())
    if match is None or match["name"].endswith("SystemExit"):
        return None
    name = match["name"].rpartition(".")[2]
    return match["name"], _CLASSES.get(name, FailureClass.BUG)


def read_traceback(lines: list[str]) -> Traceback:
    """The traceback that begins with the first of these raw lines; lines of other ranks between are left out."""
    rank, head = clean_line(lines[0]) if lines else (None, "")
    kept = [head[max(0, head.find(HEADER)) :]]
    for number, raw in enumerate(lines[1:LONGEST_TRACEBACK], 1):
        owner, text = clean_line(raw)
        if owner != rank:
            continue
        if not _INSIDE.match(text):
            if judge_exception(text) is None and not text.startswith("SystemExit"):
                break
            return Traceback("\n".join((*kept, text)), rank, text.strip(), number)
        kept.append(text)
    return Traceback("\n".join(kept).rstrip(), rank)
