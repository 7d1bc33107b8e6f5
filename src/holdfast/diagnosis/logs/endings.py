"""What the last lines of an output report, where no traceback and no rule says why: any language, any tool. Pure.

Programs report their end in a few forms: a word for it (``Error``, ``fatal``, ``panic``) before or above a text. The
text is judged as an exception's is. A report whose text says nothing of its own is the program's own check.
"""

from __future__ import annotations

from holdfast.model.pattern import compile_later
from holdfast.model.verdict import FailureClass

from .exceptions import judge_exception, judge_text
from .lines import clean_line

ENDING = "ending"
"""Id of the match that stands for such a report."""
WORDS = "last_words"
"""Id of the match that stands for a line that has no form of a report, and whose words say what failed."""
LONGEST_SENTENCE = 300
"""What is longer is data, or a record of many fields."""
FEW_LAST = 8
_LASTING = frozenset(
    {
        FailureClass.ENVIRONMENT,
        FailureClass.DISK_FULL,
        FailureClass.STORAGE_FAULT,
        FailureClass.RESOURCE_LIMIT,
        FailureClass.OUT_OF_MEMORY,
        FailureClass.GPU_OUT_OF_MEMORY,
    }
)
LAST_LINES = 24
BOX = "│╭╮╰╯─ "
"""Around a text that is framed. Source: rich, panel.py."""
LONGEST = 1000
_MARK = compile_later(
    r"(?:[^A-Za-z\[]{0,40}(?:T?[\dZ:.,+ -]{4,40})?(?:\[[^\]\n]{0,40}\] ?){0,3}(?:[\w./+-]{1,60}(?:\[\d+\])?: ){0,3}"
    r"(?:line \d+: )?(?:[A-Z]\w{0,20} )?\[?"
    r"(?:ERROR|FATAL|CRITICAL|[Ff]atal|error|Error|panic|Critical|Uncaught)\b(?: error| exception)?\]?"
    r"(?: (?:in|at|on|using|executing|while|during) [^\n]{0,200}?)?(?: ~)?\s*(?::|\]|\s|$)"
    r"|Unhandled [Ee]xception[.:] |Exception in thread \"[^\"]*\" |Caused by: ?|[ \t]*what\(\): +|Met Exceptions?:"
    r"|thread '[^']*'.{0,20} panicked at .*"
    r"|[EF]\d{4} [\d:.]+ +\d+ \S+:\d+\] |\d{4}/\d\d/\d\d \d\d:\d\d:\d\d(?:\.\d+)? (?:[\w.-]+:\d+: )?(?=\w+ ?\S*: )"
    r"|.{0,60}\bthe following errors?:|(?=License checkout failed)|(?:[Ii]n '\S+': )?(?=(?:Could not|Cannot|Can't"
    r"|Failed to|Unable to) )"
    r"|(?=(?:\w+\.)*[A-Z]\w*(?:Error|Exception): ?))\s*(?P<text>.*)$"
)
"""How a report begins: R, Julia, MATLAB, Java, C++, Rust, Go, glog, GNU tools, CMake, loggers; an exception's name."""
PROGRESS = compile_later(r"(?i)\b(?:step|iter(?:ation)?|epoch|batch)\b[\s:=\[]*\d")
"""A line by which a training says how far it is."""
_LABELS = compile_later(r"^(?:(?:LoadError|InitError|nested task error|[a-z][\w.-]{0,30}): ?)+")
"""What Julia and command-line tools put before a text."""
_FRAME = compile_later(
    r"^\s*(?:at |@ |\[\d+\] |\[bt\]|frame #|File \"|\.\.\. |Stacktrace:|Calls: |in expression starting at)"
)
_NOT_MEANT = compile_later(
    r"(?i)\b(?:0|no) errors?\b|\berrors?[=:] ?0\b|\b(?:retry|retrying|ignore\w*|ignoring|recovered|handled)\b"
)


_FAILING = compile_later(
    r"(?i)\b(?:please|empty|nothing|no(?: \w+)? found|errors?(?![ =:]+[\d.])|fail(?:s|ed|ures?)?(?![ =:]+[\d.])"
    r"|fatal|invalid|illegal|un(?:known|recogni[sz]ed"
    r"|supported|defined|expected|able|met)|missing|mismatch\w*|can(?:not|'t)|could(?: not|n't)|do(?:es)?(?: not|n't)"
    r"|no rule|not (?:found|supported|allowed|set|defined|valid|a valid)|must (?:be|have)|required|abort(?:ed|ing)?"
    r"|no (?:\w+ )?(?:given|specified|provided|passed|configured|chosen)|exceed\w*|giving up|stopped|stopping"
    r"|exiting|wrong|corrupt\w*|refus\w+|denied|lost|conflict\w*|no such)\b"
)
"""Words by which a program says in any form that something did not go well; a number behind them is a measure."""


def judge_ending(tail: str) -> tuple[FailureClass, str] | None:
    """The class of what the last lines report, and the line that says so; None where they report nothing.

    The last report counts whose text has a class of its own; else the last one, which is BUG.
    """
    raw = (clean_line(line)[1].rstrip()[:LONGEST] for line in tail.rstrip().split("\n")[-LAST_LINES:])
    lines = [line.strip(BOX) if line.startswith(tuple("│╭")) else line for line in raw]
    own: tuple[FailureClass, str] | None = None
    for number in range(len(lines) - 1, -1, -1):
        mark = _MARK.match(lines[number])
        if mark is None or _NOT_MEANT.search(lines[number]):
            continue
        for text in (
            mark["text"],
            *_following(
                lines[number + 1 :], open_end=not mark["text"].rstrip(": ") or mark["text"].rstrip().endswith(":")
            ),
        ):
            kind = _judge(text)
            if kind is not FailureClass.BUG:
                return kind, text or lines[number]
        own = own or (FailureClass.BUG, lines[number])
    return own


def judge_last_words(tail: str) -> tuple[FailureClass, str] | None:
    """The class of the last line whose words have one that lasts, or that says what failed; else None."""
    for line in _last_lines(tail):
        kind = judge_text(line)
        if kind in _LASTING and not PROGRESS.search(line):
            return kind, line
        if kind is not FailureClass.BUG and _FAILING.search(line):
            return kind, line
    return None


def find_complaint(tail: str) -> tuple[FailureClass, str] | None:
    """The last line that says in words of its own that something failed: the program's own check."""
    sentences = (line for line in _last_lines(tail) if len(line) <= LONGEST_SENTENCE)
    return next(((FailureClass.BUG, line) for line in sentences if _FAILING.search(line)), None)


def _last_lines(tail: str) -> list[str]:
    """The last lines that speak of nothing survived, the very last first."""
    lines = (clean_line(raw)[1].strip()[:LONGEST] for raw in reversed(tail.rstrip().split("\n")[-FEW_LAST:]))
    return [line for line in lines if line and not _NOT_MEANT.search(line)]


def _following(lines: list[str], *, open_end: bool) -> list[str]:
    """The further lines of a report: what is indented and no frame, and the next line where the first has no text."""
    found: list[str] = []
    for line in lines:
        if _MARK.match(line):
            break
        if not line.strip() and open_end and not found:
            continue
        if not (line[:1].isspace() or (open_end and not found)):
            break
        if not _FRAME.match(line):
            found.append(line.strip())
    return found


def _judge(text: str) -> FailureClass:
    bare = _LABELS.sub("", text)
    judged = judge_exception(bare) or judge_exception(text)
    if judged is not None and judged[1] is not FailureClass.BUG:
        return judged[1]
    return judge_text(text)
