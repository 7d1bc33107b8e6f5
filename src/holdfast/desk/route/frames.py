"""How the bytes of a job travel with their place in its output, so that a following that was cut goes on exactly there.

While a desk follows, a command on the box writes each piece of a job's output behind a head, ``NUL hf RUN ATTEMPT BEGIN
LENGTH CARRY newline``; everything between is text of holdfast's own. `BEGIN` is the offset of the piece in its file;
the desk's anchor before it is cut to its last `CARRY` bytes (`agent.view.live.tail`). `CARRY` -1: the piece is said,
and is no part of the file; the next one begins at `BEGIN`. When the run is over a line ``NUL hf ended ROW`` has what a
list says of it, as JSON.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Mapping

from holdfast.model.ids import is_run_id
from holdfast.model.record import record

MARK = b"\0hf "
PIN = b"\0hf waits for "
ENDED = b"\0hf ended "
WAITED = b"\0hf waited\n"
"""The last line of a `wait` that came to its own end: without it an exit code of a signal's is that of the command."""
LONGEST_HEAD = 200
LONGEST_ROW = 64 << 10
ANCHOR_BYTES = 4096
"""As of `agent.view.live.tail`."""
NEW = "new"
SAID = -1
_HEAD = re.compile(rb"\0hf (\S{1,80}) (\d{1,9}) (\d{1,18}) (\d{1,12}) (-1|\d{1,5})\n")


@record
class Position:
    """A place in the output of an attempt, and the bytes before it (the anchor)."""

    run_id: str
    attempt: int
    offset: int
    anchor: bytes


def write_position(position: Position | None) -> str:
    """A position for the environment of the next call; None: from the beginning."""
    if position is None:
        return NEW
    anchor = base64.b64encode(position.anchor).decode()
    return f"{position.run_id}:{position.attempt}:{position.offset}:{anchor}"


def read_position(text: str) -> Position | None:
    """What `write_position` wrote; None for a following that begins, and for anything else."""
    run_id, _, rest = text.partition(":")
    attempt, _, rest = rest.partition(":")
    offset, _, anchor = rest.partition(":")
    if not (is_run_id(run_id) and attempt.isdigit() and offset.isdigit()):
        return None
    try:
        return Position(run_id, int(attempt), int(offset), base64.b64decode(anchor, validate=True))
    except (ValueError, binascii.Error):
        return None


def build_pin(name: str, run_id: str) -> bytes:
    """The line by which a box says, before anything else on standard output, which run a word of its ``wait`` means."""
    return PIN + json.dumps([name, run_id]).encode() + b"\n"


def take_pins(out: bytes) -> tuple[dict[str, str], bytes]:
    """The run ids of words, as `build_pin` wrote them, and what else stands there; a line of another kind stays."""
    pins, rest = {}, []
    for line in out.splitlines(keepends=True):
        try:
            name, run_id = json.loads(line[len(PIN) :]) if line.startswith(PIN) else ("", "")
        except (ValueError, TypeError, RecursionError):
            name, run_id = "", ""
        if isinstance(name, str) and isinstance(run_id, str) and is_run_id(run_id):
            pins[name] = run_id
        else:
            rest.append(line)
    return pins, b"".join(rest)


def build_head(run_id: str, attempt: int, begin: int, length: int, carry: int) -> bytes:
    """The head of a piece."""
    return b"\0hf %s %d %d %d %d\n" % (run_id.encode(), attempt, begin, length, carry)


def build_end(row: Mapping[str, object]) -> bytes:
    """The line by which a box says how a run that was followed has ended."""
    return ENDED + json.dumps(row).encode() + b"\n"


class FrameReader:
    """Takes a stream apart: text, and a job's bytes, whose position is known at every byte."""

    def __init__(
        self,
        text: Callable[[bytes], None],
        job: Callable[[bytes], None],
        end: Callable[[bytes], None] = lambda _: None,
    ) -> None:
        """`text` gets holdfast's own words, `job` the job's bytes, `end` the row of a run that is over."""
        self._text, self._job, self._end = text, job, end
        self._held = b""
        self._left = 0
        self._said = False
        self.position: Position | None = None

    def restart(self) -> None:
        """Another stream begins; the position stays."""
        self._held, self._left = b"", 0

    def feed(self, data: bytes) -> None:
        """Take what came. A head that is cut in two is waited for."""
        data, self._held = self._held + data, b""
        while data:
            if self._left:
                piece, data = data[: self._left], data[self._left :]
                self._left -= len(piece)
                self._job(piece)
                self._advance(piece)
                continue
            at = data.find(b"\0")
            if at < 0:
                self._text(data)
                return
            if at:
                self._text(data[:at])
                data = data[at:]
            head = _HEAD.match(data)
            if head is not None:
                self._begin(head)
                data = data[head.end() :]
            elif data.startswith(ENDED) and b"\n" in data[:LONGEST_ROW]:
                row, _, data = data.partition(b"\n")
                self._end(row[len(ENDED) :])
            elif _may_become_head(data):
                self._held = data
                return
            else:
                self._text(data[:1])
                data = data[1:]

    def _begin(self, head: re.Match[bytes]) -> None:
        run_id, attempt, begin, length, carry = head.groups()
        self._left, self._said = int(length), carry == b"-1"
        kept = 0 if self._said else int(carry)
        anchor = b"" if self.position is None or not kept else self.position.anchor[-kept:]
        self.position = Position(run_id.decode("ascii", "replace"), int(attempt), int(begin), anchor)

    def _advance(self, piece: bytes) -> None:
        before = self.position
        if before is None or self._said:
            return
        anchor = (before.anchor + piece)[-ANCHOR_BYTES:]
        self.position = Position(before.run_id, before.attempt, before.offset + len(piece), anchor)


def _may_become_head(data: bytes) -> bool:
    """Whether more bytes could make a head of it."""
    longest = LONGEST_ROW if data.startswith(ENDED) else LONGEST_HEAD
    return MARK.startswith(data[: len(MARK)]) and len(data) < longest and b"\n" not in data
