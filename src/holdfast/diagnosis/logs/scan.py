"""Reading the output of one attempt into `LogFacts`: fast, bounded, and without believing anything in it.

The log is read in blocks; the sieve names the triggers that can stand in a block, and only lines with a trigger are
decoded and held against a rule. Of each rule the first and the last few lines are kept. What could not be looked at is
said (`whole`), never passed over.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable

from holdfast.diagnosis.evidence import LineRole, LogFacts, LogMatch, Reading
from holdfast.model.record import record, replace
from holdfast.model.verdict import FailureClass

from .exceptions import EXCEPTION, HEADER, Traceback, is_of_client, judge_traceback, read_traceback
from .lines import LAST_LINES, TAIL_BYTES, clean_line, cut_tail
from .pattern import LONGEST_LINE, Pattern, match_line
from .patterns import PATTERNS
from .search import NOTES, LogSearch
from .trigger_filter import TriggerFilter

BLOCK_BYTES = 512 * 1024
TRACEBACK_BYTES = 64 * 1024
FIRST_ERROR = "first_error.txt"
"""Beside the log: the first traceback of a middle that was cut (`host.job.output`)."""
_HEADER = HEADER.encode()
_PEER = FailureClass.COMMUNICATION
BINARY_SHARE = 0.3


def clean_block(text: str) -> tuple[int | None, str]:
    """As `lines.clean_line`, for several lines; the rank is the first line's."""
    cleaned = [clean_line(line) for line in text.split("\n")]
    return cleaned[0][0], "\n".join(line for _, line in cleaned)


def _prepare(rules: tuple[Pattern, ...]) -> LogSearch:
    patterns = (*rules, *PATTERNS)
    owners: dict[bytes, list[Pattern]] = {}
    places: dict[bytes, list[int]] = {_HEADER: []}
    for pattern in patterns:
        for trigger in pattern.triggers:
            if pattern.lines > 1:
                places[trigger.encode()] = []
            else:
                owners.setdefault(trigger.encode(), []).append(pattern)
    return LogSearch(patterns, TriggerFilter((*owners, *places, *NOTES)), owners, places)


def classify_text(text: str, rules: tuple[Pattern, ...] = ()) -> tuple[LogMatch, ...]:
    """What the rules know in a text, in its order; offsets are bytes of its UTF-8 form. `rules` are a user's."""
    data = text.encode("utf-8", "replace")
    scan = _prepare(rules)
    scan.look(data, 0, begins=True, ends=True)
    return _finish(scan, lambda length, at: data[at : at + length])[0]


def read_log(path: str, *, rules: tuple[Pattern, ...] = (), limit_bytes: int | None = None) -> Reading[LogFacts]:
    """What the output of one attempt says; `unread` says why when it cannot be read. Never raises for its content.

    Args:
        path: The attempt's log. ``first_error.txt`` beside it is read too when the middle of the log was cut.
        rules: A user's rules (`rules.load_rules`), which come before ours.
        limit_bytes: Look at no more than this, half of it from each end; None: at all of it.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        return Reading(unread=f"{path} cannot be opened: {error.strerror}")
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return Reading(unread=f"{path} is not a regular file")
        return Reading(_read(descriptor, path, rules, limit_bytes))
    except OSError as error:
        return Reading(unread=f"{path} cannot be read: {error.strerror}")
    finally:
        os.close(descriptor)


def _read(descriptor: int, path: str, rules: tuple[Pattern, ...], limit_bytes: int | None) -> LogFacts:
    size = os.fstat(descriptor).st_size
    scan = _prepare(rules)
    whole = limit_bytes is None or size <= limit_bytes
    for start, end in _parts(size, limit_bytes):
        whole = _read_part(descriptor, scan, start, end, size) and whole
    matches, traces = _finish(scan, lambda length, at: os.pread(descriptor, length, at))
    if scan.cut_at is not None and (first_error := _read_beside(path)):
        matches = _merge(matches, classify_text(first_error, rules), scan.cut_at)
        hidden = (scan.cut_at, read_traceback(first_error.split("\n")))
        traces = sorted((*traces, hidden), key=lambda item: item[0])
    last = traces[-1][1] if traces else Traceback("")
    tail = os.pread(descriptor, TAIL_BYTES, max(0, size - TAIL_BYTES))
    return LogFacts(
        path,
        size,
        matches,
        exception=last.raised,
        traceback=last.text,
        message=last.message,
        tail=cut_tail(tail),
        whole=whole and not scan.passed_over,
        binary=is_binary(tail[-8192:]),
    )


def _parts(size: int, limit_bytes: int | None) -> tuple[tuple[int, int], ...]:
    if limit_bytes is None or size <= limit_bytes:
        return ((0, size),)
    half = max(1, limit_bytes // 2)
    return ((0, half), (size - half, size))


def _read_part(descriptor: int, scan: LogSearch, start: int, end: int, size: int) -> bool:
    """Look at the bytes from `start` to `end`; False when the file ended before (it was cut while it was read)."""
    position, begins, rest = start, start == 0, b""
    while position < end:
        data = os.pread(descriptor, min(BLOCK_BYTES, end - position), position)
        if not data:
            break
        base = position - len(rest)
        position += len(data)
        block = rest + data
        if position >= end:
            scan.look(block, base, begins=begins, ends=end == size)
            return True
        cut = _find_cut(block)
        if cut.end:
            scan.look(block[: cut.end], base, begins=begins, ends=cut.at_line_end)
            rest, begins = block[cut.resume :], cut.at_line_begin
        else:
            rest = block
    if rest:
        scan.look(rest, position - len(rest), begins=begins, ends=True)
    return position >= end


@record
class _Cut:
    """Where a block ends and where the next one resumes, and whether these are edges of lines."""

    end: int
    resume: int
    at_line_end: bool = True
    at_line_begin: bool = True


def _find_cut(block: bytes) -> _Cut:
    """At the end of a line when there is one, else where a state was overwritten, else anywhere, with an overlap."""
    feed = block.rfind(b"\n") + 1
    if feed:
        return _Cut(feed, feed)
    state = block.rfind(b"\r", 0, len(block) - 1) + 1
    if state:
        # One byte more shows that the state before it was overwritten.
        return _Cut(state + 1, state, at_line_end=False)
    if len(block) < BLOCK_BYTES:
        return _Cut(0, 0)
    return _Cut(len(block), max(0, len(block) - LONGEST_LINE), at_line_end=False, at_line_begin=False)


def _finish(
    scan: LogSearch, read: Callable[[int, int], bytes]
) -> tuple[tuple[LogMatch, ...], list[tuple[int, Traceback]]]:
    """Matches by offset (on one line by the order of the rules), and the tracebacks; `read(length, offset)`."""
    ranking = {pattern.id: position for position, pattern in enumerate(scan.patterns)}
    found = [match for kept in scan.kept.values() for match in (*kept.first.values(), *kept.last.values())]
    traces = []
    for at in scan.places[_HEADER]:
        data = read(TRACEBACK_BYTES, at)
        trace = read_traceback(data.decode("utf-8", "replace").split("\n"))
        if _is_ignored(read(min(at, 512), max(0, at - 512))):
            continue
        traces.append((at, trace))
        judged = judge_traceback(trace)
        if judged is not None:
            offset = at + sum(len(line) + 1 for line in data.split(b"\n")[: trace.number])
            values = {"exception": judged[0]}
            if is_of_client(trace.raised, trace.text):
                # The same words are a peer's end elsewhere.
                found = [match for match in found if match.offset != offset or match.kind is not _PEER]
            found.append(
                LogMatch(EXCEPTION, LineRole.ROOT, judged[1], trace.raised[:300], offset, trace.rank, values=values)
            )
    for pattern in scan.patterns:
        if pattern.lines > 1:
            found += _read_reports(pattern, scan.places, read)
    return tuple(sorted(found, key=lambda match: (match.offset, ranking.get(match.pattern, len(ranking))))), traces


def _is_ignored(before: bytes) -> bool:
    """Whether the line before a traceback says that Python went on: in a finaliser, or in the logging module."""
    line = clean_line(before.decode("utf-8", "replace").rstrip("\n").rpartition("\n")[2])[1]
    return line.startswith(("Exception ignored ", "--- Logging error ---"))


def _read_reports(
    pattern: Pattern, places: dict[bytes, list[int]], read: Callable[[int, int], bytes]
) -> list[LogMatch]:
    matches = []
    for trigger in pattern.triggers:
        for at in places[trigger.encode()]:
            lines = read(LONGEST_LINE, at).decode("utf-8", "replace").split("\n")[: pattern.lines]
            rank, text = clean_block("\n".join(lines))
            match = match_line(pattern, text, at, rank)
            if match is not None:
                matches.append(match)
    return matches


def _read_beside(path: str) -> str:
    """The first traceback of a middle that was cut; empty without."""
    beside = os.path.join(os.path.dirname(path), FIRST_ERROR)
    try:
        descriptor = os.open(beside, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        data = os.read(descriptor, TRACEBACK_BYTES)
    except OSError:
        return ""
    finally:
        os.close(descriptor)
    # What was kept goes on behind the traceback's end; only the traceback is meant.
    return read_traceback(data.decode("utf-8", "replace").split("\n")).text


def _merge(matches: tuple[LogMatch, ...], more: tuple[LogMatch, ...], at: int) -> tuple[LogMatch, ...]:
    """The matches of the cut part, put where it was cut."""
    moved = [replace(match, offset=at) for match in more]
    before = [match for match in matches if match.offset < at]
    return (*before, *moved, *matches[len(before) :])


def read_tail(path: str, lines: int = LAST_LINES) -> str:
    """The last lines of a log as text; empty when there is none, and very long lines are cut."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        size = os.fstat(descriptor).st_size
        return cut_tail(os.pread(descriptor, TAIL_BYTES, max(0, size - TAIL_BYTES)), lines)
    except OSError:
        return ""
    finally:
        os.close(descriptor)


def is_binary(data: bytes) -> bool:
    """Whether this is no text: many control characters or bytes that are not UTF-8."""
    if not data:
        return False
    text = data.decode("utf-8", "replace")
    strange = sum(1 for letter in text if letter == "\ufffd" or (letter < " " and letter not in "\t\n\r\f\b\x1b"))
    return strange > BINARY_SHARE * len(text)


__all__ = ["classify_text", "is_binary", "read_log", "read_tail"]
