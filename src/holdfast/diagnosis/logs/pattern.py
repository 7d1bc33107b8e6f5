"""The shape of one rule about a line of output, and how a line is held against it. Pure.

A rule is data: cheap triggers (one of these stands in every line that it knows), a regular expression, and lines that
show what it knows and what it must not know. `check_pattern` holds the rule to its own examples; our table is tested
that way and a user's file is refused that way.
"""

from __future__ import annotations

import re

from holdfast.diagnosis.evidence import LineRole, LogMatch
from holdfast.model.record import record
from holdfast.model.verdict import FailureClass

from .lines import clean_line

START = r"(?:^|[\]:)>|-] {0,2})"
"""Where a message begins: a line's start, or what ends a prefix (``2026-11-20 10:00:00 - ERROR -``, ``[rank0]:``,
``cp: cannot create 'x':``). Words in quotes or in the middle of a sentence do not begin there."""
END = r"(?=$|[:\s.,;)\]!'\"])"
"""Behind a message: the line's end, or punctuation."""
LONGEST_LINE = 4096
"""Bytes of a line that are looked at, around the trigger: bounds what one expression can cost."""
CUT = "\N{HORIZONTAL ELLIPSIS}"
"""Stands where a line was cut, so that ``^`` and ``$`` do not match there."""


@record
class Pattern:
    """What a line can say.

    `kind` is None where the words prove an end but no cause (``Killed``). `passing` marks what a run can survive (a
    tracker that was away, one loss that was not finite): it counts as the cause only when nothing else does. `unsure`:
    several causes leave these words, so the verdict is only possible. `lines`
    is how many lines the expression sees, for reports of several. Named groups become values; the group ``rank`` is
    the rank. `remedy` is a text in place of the class's own. `source` says where the words come from.
    """

    id: str
    role: LineRole
    kind: FailureClass | None
    triggers: tuple[str, ...]
    regex: str
    examples: tuple[str, ...]
    near_misses: tuple[str, ...]
    source: str = ""
    remedy: str = ""
    gotchas: tuple[str, ...] = ()
    passing: bool = False
    unsure: bool = False
    lines: int = 1
    widest: int = LONGEST_LINE

    def triggered(self, text: str) -> bool:
        """Whether one of the triggers stands in the text."""
        return any(trigger in text for trigger in self.triggers)


def match_line(pattern: Pattern, text: str, offset: int = 0, rank: int | None = None) -> LogMatch | None:
    """What the rule makes of one line (or block) that is already clean (`lines.clean_line`); None: nothing."""
    if not pattern.triggered(text):
        return None
    # `re` keeps compiled expressions, so a rule costs its compilation only when a trigger was seen.
    match = re.search(pattern.regex, text)
    if match is None:
        return None
    values = {name: value for name, value in match.groupdict().items() if value is not None}
    said = values.pop("rank", "")
    if said.isdecimal() and len(said) <= 6:
        rank = int(said)
    line = text.partition("\n")[0].strip()[:300]
    return LogMatch(pattern.id, pattern.role, pattern.kind, line, offset, rank, pattern.remedy, values)


def check_pattern(pattern: Pattern) -> str:
    """Why the rule does not keep its own examples; empty when it does."""
    for example in pattern.examples:
        rank, text = clean_line(example)
        if not pattern.triggered(text):
            return f"none of its words {', '.join(map(repr, pattern.triggers))} stands in the example {example!r}"
        if match_line(pattern, text, 0, rank) is None:
            return f"the pattern does not match the example {example!r}"
    for line in pattern.near_misses:
        if match_line(pattern, clean_line(line)[1]) is not None:
            return f"the pattern matches the near miss {line!r}"
    return ""
