"""Python stacks as `faulthandler` writes them, read back. Pure."""

from __future__ import annotations

import re

from holdfast.core.job.redact import redact_text
from holdfast.model.pattern import compile_later
from holdfast.model.record import record

_FRAME = compile_later(r'^  File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<function>.*)$')
_HEAD = compile_later(
    r"^(?:Current thread|Thread) 0x[0-9a-f]+(?: \[[^\]]*\])? \(most recent call first\)", re.IGNORECASE
)


@record
class Frame:
    """One Python frame."""

    file: str
    line: int
    function: str

    def describe(self) -> str:
        """For people."""
        return f"{self.function} ({self.file}:{self.line})"


@record
class StackDump:
    """The stacks of one process at one moment: frames of each thread, the innermost first; the main thread is last.

    Source: CPython's Python/traceback.c walks the threads from the newest to the first.
    """

    pid: int
    text: str
    threads: tuple[tuple[Frame, ...], ...] = ()

    @property
    def main(self) -> tuple[Frame, ...]:
        """The frames of the main thread."""
        return self.threads[-1] if self.threads else ()

    @property
    def top(self) -> str:
        """Where the main thread is, for people; empty when that is not known."""
        return self.main[0].describe() if self.main else ""


def parse_dump(pid: int, text: str) -> StackDump:
    """The frames in faulthandler's text."""
    threads: list[list[Frame]] = []
    for line in text.splitlines():
        if _HEAD.match(line):
            threads.append([])
            continue
        found = _FRAME.match(line)
        if found is not None and threads:
            number = found["line"]
            threads[-1].append(Frame(found["file"], int(number) if number.isdigit() else 0, found["function"]))
    return StackDump(pid, redact_text(text), tuple(tuple(frames) for frames in threads))
