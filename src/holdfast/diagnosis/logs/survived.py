"""Whether a job went on after words that name a cause: then they are not why it ended. Pure.

A full card that was caught and answered by a smaller batch, or a cache that could not be written, stands in the output
as plainly as the exception that ended the job. What tells them apart is what came after: ordinary lines of the job.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ...model.verdict import FailureClass
from ..evidence import LogFacts, LogMatch, Role
from .exceptions import EXCEPTION, HEADER, judge_exception
from .lines import clean_line

if TYPE_CHECKING:
    from collections.abc import Iterable

MORE_THAN = 50
"""Ordinary lines that a library may still write while a job ends (advice, a summary); more are the job going on."""
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
"""Between two tracebacks of one chain. Source: CPython, Lib/traceback.py."""
_NOT_THE_JOBS = re.compile(r"Error in (?:atexit|sys\.excepthook)|Exception (?:in thread|ignored)|Process \S+:$")
"""Before a traceback that does not end the program: at exit, of a thread, of a worker."""


def is_of_one_process(facts: LogFacts) -> bool:
    """Whether nothing in the output speaks of ranks or peers, whose lines mix and follow from each other."""
    return not any(
        match.rank is not None or match.role is Role.CASCADE or match.kind is FailureClass.COMMUNICATION
        for match in facts.matches
    )


def went_on_after(facts: LogFacts, line: str) -> bool:
    """Whether more ordinary lines than an end writes follow the last place of `line`; False where that is not known."""
    if not is_of_one_process(facts) or not line:
        return False
    _, found, after = facts.tail.rpartition(line)
    # A line that is no longer among the last ones has at least as many behind it.
    return _count_ordinary((after if found else facts.tail).split("\n")) > MORE_THAN


def find_last_words(facts: LogFacts, causes: Iterable[LogMatch]) -> LogMatch | None:
    """The job's own exception that the output ends with, if the job had gone on after each of the causes."""
    own = next((match for match in reversed(facts.matches) if match.pattern == EXCEPTION), None)
    ends = facts.tail.rstrip().endswith(facts.exception) and bool(facts.exception)
    if own is None or own.kind is not FailureClass.BUG or own.line != facts.exception[:300] or not ends:
        return None
    before, found, _ = facts.tail.rpartition(HEADER)
    if not found or not is_of_one_process(facts) or _NOT_THE_JOBS.match(_last_line(before)):
        return None
    for cause in causes:
        _, _, after = before.rpartition(cause.line)
        if cause.offset > own.offset or any(words in after for words in _CHAINED):
            return None
        if _count_ordinary(after.split("\n")) <= MORE_THAN:
            return None
    return own


def _last_line(text: str) -> str:
    return clean_line(text.rstrip("\n").rpartition("\n")[2])[1]


def _count_ordinary(lines: list[str]) -> int:
    """Lines that are neither empty nor part of a traceback (which is indented, between its header and its end)."""
    return sum(
        1
        for line in lines
        if line.strip()
        and not line[0].isspace()
        and HEADER not in line
        and not line.startswith(_CHAINED)
        and judge_exception(line) is None
    )
