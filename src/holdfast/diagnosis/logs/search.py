"""One pass over a log's blocks: which lines hold a trigger, and what the rules make of them.

A line that no trigger hits is never decoded. Of each rule the first and the last few lines are kept.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from holdfast.diagnosis.evidence import LogMatch
from holdfast.model.record import field, record

from .lines import clean_line
from .pattern import CUT, Pattern, match_line

if TYPE_CHECKING:
    from .trigger_filter import TriggerFilter

FEW = 4
"""Matches kept of each rule from the front, and as many from the end."""
MOST_TRIES = 256
"""Lines of one trigger and block that are held against the rules; more of them are passed over, and that is said."""
MOST_SECONDS = 1.0
"""Processor time of one rule in one log; then it is left out, and that is said."""
CUT_NOTE = b"bytes were cut here, output is capped]"
LOST_NOTE = b"bytes of output were lost here, the disk refused them]"
NOTES = (CUT_NOTE, LOST_NOTE)
"""What `host.job.output` writes into a log that is not whole."""


@record(frozen=False)
class _Kept:
    """The first and the last few matches of one rule, by offset."""

    first: dict[int, LogMatch] = field(default_factory=dict)
    last: dict[int, LogMatch] = field(default_factory=dict)

    def add(self, match: LogMatch) -> None:
        if match.offset in self.first or match.offset in self.last:
            return
        if len(self.first) < FEW:
            self.first[match.offset] = match
            return
        self.last[match.offset] = match
        if len(self.last) > FEW:
            del self.last[min(self.last)]


@record(frozen=False)
class LogSearch:
    """One pass over a text in blocks."""

    patterns: tuple[Pattern, ...]
    sieve: TriggerFilter
    owners: dict[bytes, list[Pattern]]
    places: dict[bytes, list[int]]
    """Begins of lines that are read on their own after the pass: tracebacks, reports of several lines."""
    kept: dict[str, _Kept] = field(default_factory=dict)
    spent_s: dict[str, float] = field(default_factory=dict)
    cut_at: int | None = None
    passed_over: bool = False
    """Lines were lost or not looked at."""

    def look(self, block: bytes, base: int, *, begins: bool, ends: bool) -> None:
        """Take one block. `begins`, `ends`: whether its edges are edges of lines."""
        for trigger in self.sieve.sift(block):
            if trigger in self.places:
                self.places[trigger] = _add_places(self.places[trigger], block, base, trigger)
            if trigger in NOTES:
                self._note_losses(block, base, trigger)
            elif trigger in self.owners:
                self._look_for(trigger, _Block(block, base, begins, ends))

    def _note_losses(self, block: bytes, base: int, note: bytes) -> None:
        at = block.find(note)
        if at < 0 or block.rfind(b"[holdfast: ", max(0, at - 64), at) < 0:
            return
        self.passed_over = True
        if note == CUT_NOTE and self.cut_at is None:
            self.cut_at = base + at

    def _look_for(self, trigger: bytes, block: _Block) -> None:
        patterns = self.owners[trigger]
        wanting = [pattern for pattern in patterns if len(self._of(pattern).first) < FEW]
        if wanting:
            self._go(trigger, block, wanting, forward=True)
        self._go(trigger, block, patterns, forward=False)

    def _of(self, pattern: Pattern) -> _Kept:
        return self.kept.setdefault(pattern.id, _Kept())

    def _go(self, trigger: bytes, block: _Block, patterns: list[Pattern], *, forward: bool) -> None:
        """Hold the lines of a trigger against its rules, from one edge, until each rule has a few in this block."""
        hits = dict.fromkeys((pattern.id for pattern in patterns), 0)
        at = block.data.find(trigger) if forward else block.data.rfind(trigger)
        for _ in range(MOST_TRIES):
            if at < 0:
                return
            start, end = block.line_at(at, len(trigger))
            for pattern in patterns:
                if hits[pattern.id] < FEW and (match := self._hold(pattern, block, start, end, at)) is not None:
                    hits[pattern.id] += 1
                    self._of(pattern).add(match)
            if all(count >= FEW for count in hits.values()):
                return
            at = block.data.find(trigger, end) if forward else block.data.rfind(trigger, 0, max(start, 0))
        self.passed_over = self.passed_over or at >= 0

    def _hold(self, pattern: Pattern, block: _Block, start: int, end: int, at: int) -> LogMatch | None:
        """Hold a line against a rule, unless the rule has used up its time."""
        rank, text = clean_line(block.text(start, end, at, pattern.widest))
        spent = self.spent_s.get(pattern.id, 0.0)
        if spent > MOST_SECONDS:
            self.passed_over = True
            return None
        before = time.process_time()
        match = match_line(pattern, text, block.base + start, rank)
        self.spent_s[pattern.id] = spent + time.process_time() - before
        return match


def _add_places(known: list[int], block: bytes, base: int, trigger: bytes) -> list[int]:
    """The begins of the first and the last few lines with a trigger, with those of this block."""
    hits: list[int] = []
    at = block.find(trigger)
    while at >= 0 and len(known) + len(hits) < FEW:
        hits.append(at)
        at = block.find(trigger, at + 1)
    end = len(block)
    for _ in range(FEW):
        end = block.rfind(trigger, 0, end)
        if end < 0:
            break
        hits.append(end)
    begins = {base + max(block.rfind(b"\n", 0, at), block.rfind(b"\r", 0, at)) + 1 for at in hits}
    places = sorted({*known, *begins})
    return places if len(places) <= 2 * FEW else places[:FEW] + places[-FEW:]


@record
class _Block:
    """Bytes of a log and where they stand in it."""

    data: bytes
    base: int
    begins: bool
    ends: bool

    def line_at(self, at: int, length: int) -> tuple[int, int]:
        """Begin and end of the line (or of the state of a line that was overwritten) around a place."""
        start = max(self.data.rfind(b"\n", 0, at), self.data.rfind(b"\r", 0, at)) + 1
        feed = self.data.find(b"\n", at + length)
        feed = len(self.data) if feed < 0 else feed
        back = self.data.find(b"\r", at + length, feed)
        return start, feed if back < 0 else back

    def text(self, start: int, end: int, at: int, widest: int) -> str:
        """The line, or as much of it around `at` as a rule looks at; empty when it was overwritten."""
        if self.data[end : end + 1] == b"\r" and self.data[end : end + 2] not in (b"\r\n", b"\r"):
            return ""
        low = start if end - start <= widest else max(start, at - widest // 2)
        high = min(end, low + widest)
        left = CUT if low > start or (start == 0 and not self.begins) else ""
        right = CUT if high < end or (end == len(self.data) and not self.ends) else ""
        return left + self.data[low:high].decode("utf-8", "replace") + right
