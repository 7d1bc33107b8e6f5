"""How a run that was followed ended, in a few lines on standard error."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from holdfast.model.units import format_duration

from . import clean
from .explain import BY_ITSELF

if TYPE_CHECKING:
    from holdfast.agent.view.live.summary import Summary

LONGEST_CAUSE = 200
"""Letters of the cause; all of it is in the failure note."""


def print_summary(summary: Summary) -> None:
    """How it ended, what it used and left, where everything is; then warnings, and the remedy or the verdict."""
    for line in build_summary(summary):
        print(clean(line, keep_newlines=True), file=sys.stderr)
    sys.stderr.flush()


def build_summary(summary: Summary) -> list[str]:
    """The lines of `print_summary`."""
    took = "" if summary.seconds is None else f" after {format_duration(summary.seconds)}"
    ending = f"{summary.name} {summary.condition}{took} (exit {summary.exit_code}): {summary.why}"
    count = summary.artifacts
    left = f"{count} file{'s' if count != 1 else ''} in {summary.artifacts_dir}" if count else "no artifacts"
    if not count and summary.exit_code == 0:
        left += " (a job writes its results to $HOLDFAST_ARTIFACT_DIR)"
    cards = f", {summary.cards}" if summary.cards else ""
    lines = [f"holdfast: {ending}", f"  attempt {summary.attempt}, {left}{cards}"]
    lines.append(f"  {summary.run_dir}  (holdfast show {summary.run_id})")
    if summary.nice:
        lines.append(f"  {summary.nice}")
    lines += [f"  warning: {warning}" for warning in summary.warnings]
    if summary.hint is not None:
        lines.append(f"  {summary.hint}")
    elif summary.failure is not None:
        lines += _say_why(summary)
        lines.append(f"  more: {summary.failure}")
    elif summary.verdict is not None:
        lines += _say_why(summary, "in doubt")
    return lines


def _say_why(summary: Summary, word: str = "why") -> list[str]:
    """Class, cause and action as they were judged at the end, and why nothing follows where something could have."""
    verdict = summary.verdict
    if verdict is None:
        return []
    cause = verdict.cause if len(verdict.cause) <= LONGEST_CAUSE else f"{verdict.cause[:LONGEST_CAUSE]}..."
    lines = [f"  {word}: {verdict.kind.value} ({verdict.confidence.value}){f': {cause}' if cause else ''}"]
    lines.append(f"  do: {verdict.action}")
    if summary.not_again:
        lines.append(f"  {BY_ITSELF}: no, {summary.not_again}")
    return lines
