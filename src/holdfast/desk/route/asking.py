"""A question of a command that was sent to a place: asked at the desk, answered by the hash of what was consented to.

The box ends with a line behind everything else on standard output, `build_question`; the desk holds it back, asks, and
sends the same command again with the hash in its environment (`desk.caller.CONSENT`). What it showed before is not
shown again.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from holdfast.core.control_characters import clean
from holdfast.model.record import record

if TYPE_CHECKING:
    from collections.abc import Callable

MARK = b"\0hf consent "
LONGEST_QUESTION = 2000
MOST_REPEATED = 1 << 20
_HASH = re.compile(r"[0-9a-f]{64}\Z")


@record
class Question:
    """What is to be asked, and the hash of the plan that a yes is for."""

    text: str
    plan_hash: str


def build_question(text: str, plan_hash: str) -> str:
    """The line with which a command on a box asks."""
    return f"\0hf consent {json.dumps({'question': text, 'plan_hash': plan_hash})}\n"


class Listener:
    """Takes standard output of a command that may ask: hands text on as it comes, and holds a question back.

    `before` is what an earlier call of the same command has shown; the same beginning is not handed on again.
    """

    def __init__(self, out: Callable[[bytes], None], before: bytes = b"") -> None:
        """`out` gets the text."""
        self._out, self._before = out, before
        self._at = 0
        self._held = b""
        self.shown = b""

    def take(self, data: bytes) -> None:
        """More of standard output."""
        if self._held or b"\0" in data:
            self._held += data
            at = self._held.find(b"\0")
            data, self._held = self._held[:at], self._held[at:]
            if len(self._held) > 4 * LONGEST_QUESTION:
                # No question: whatever it is, it is shown as it is.
                data, self._held = data + self._held, b""
        self._hand_on(data)

    def _hand_on(self, data: bytes) -> None:
        if not data:
            return
        self.shown = (self.shown + data)[:MOST_REPEATED]
        same = 0
        if self._before:
            rest = self._before[self._at :]
            pairs = zip(data, rest, strict=False)
            same = next((n for n, (new, old) in enumerate(pairs) if new != old), min(len(data), len(rest)))
            self._at += same
            if same < len(data):
                self._before = b""
        if data[same:]:
            self._out(data[same:])

    def finish(self) -> Question | None:
        """The question, if it ended with one."""
        held, self._held = self._held, b""
        if not held:
            return None
        try:
            value: Any = json.loads(held[len(MARK) :]) if held.startswith(MARK) and held.endswith(b"\n") else None
            text, plan_hash = value["question"], value["plan_hash"]
        except (ValueError, TypeError, KeyError, RecursionError):
            text = plan_hash = None
        if not isinstance(text, str) or not isinstance(plan_hash, str) or not _HASH.match(plan_hash):
            self._out(held)
            return None
        return Question(clean(text[:LONGEST_QUESTION], keep_newlines=True), plan_hash)
