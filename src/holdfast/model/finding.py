"""One checked statement about the box, the job or a result, with what it rests on.

`UNKNOWN` is not a pass: evidence that could not be read is said to be unread.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Level(str, Enum):
    """How a check ended, mildest first."""

    PASS = "pass"  # noqa: S105 - a verdict, not a password
    UNKNOWN = "unknown"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    `id` is stable and dotted (``disk.bytes``), `subject` what was looked at (a path, a card), `evidence` what was seen
    in words with numbers and units, `remedy` one action for a person, empty on a pass.
    """

    id: str
    level: Level
    subject: str
    evidence: str
    remedy: str = ""


def worst(findings: tuple[Finding, ...] | list[Finding]) -> Level:
    """The gravest level among findings; PASS when there are none."""
    order = list(Level)
    return max((finding.level for finding in findings), key=order.index, default=Level.PASS)
