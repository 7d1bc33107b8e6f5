"""One checked statement about the box, the job or a result, with what it rests on.

`UNKNOWN` is not a pass: evidence that could not be read is said to be unread.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from .errors import EXIT_WARNED, PreflightFailed
from .record import record


class Level(str, Enum):
    """How a check ended, mildest first."""

    PASS = "pass"  # noqa: S105 - a verdict, not a password
    UNKNOWN = "unknown"
    WARN = "warn"
    FAIL = "fail"


@record
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


def rank(findings: Sequence[Finding], *, strict: bool) -> Level:
    """The gravest level; with `strict` a warning counts as a failure."""
    grave = worst(list(findings))
    return Level.FAIL if strict and grave is Level.WARN else grave


@record
class PreflightReport:
    """All checks of one job, asked for by a person. With `strict` a warning made `level` a failure, and its exit 79."""

    job: str
    level: Level
    findings: tuple[Finding, ...]
    exit_code: int


def report_preflight(job: str, findings: tuple[Finding, ...], *, strict: bool) -> PreflightReport:
    """The report of these checks of a job."""
    level = rank(findings, strict=strict)
    failed = PreflightFailed.exit_code if worst(findings) is Level.FAIL else EXIT_WARNED
    return PreflightReport(job, level, findings, failed if level is Level.FAIL else 0)
