"""Refuses an automatic attempt whose code was changed (FAIL-16): when it begins, and once more before its job starts.

Between the decision to repeat a failure and the start lie a pause and perhaps hours in line for cards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.agent.view.source_change import find_change, find_change_within
from holdfast.model.errors import PreflightFailed
from holdfast.model.finding import Finding, Level

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.agent.supervise.context import SupervisorContext

AUTOMATIC_REASONS = frozenset({"retry", "requeue"})
LOOK_WITHIN_S = 10.0


def check_same_code(context: SupervisorContext) -> Iterator[Finding]:
    """A failure when this attempt is an automatic one and its code is not what was recorded. May block."""
    change = find_change(context.run_dir, context.attempt) if _is_automatic(context) else ""
    if change:
        yield Finding("code.changed", Level.FAIL, "code", _describe(change), _go_on(context))


def refuse_changed_code(context: SupervisorContext) -> None:
    """As `check_same_code`, in a disposable child.

    Raises:
        PreflightFailed: it is an automatic attempt, and its code is not proven to be what was recorded.
    """
    if _is_automatic(context):
        change = find_change_within(context.run_dir, LOOK_WITHIN_S, context.attempt)
        if change:
            raise PreflightFailed(_describe(change), hint=_go_on(context))


def _is_automatic(context: SupervisorContext) -> bool:
    return context.why_begun in AUTOMATIC_REASONS


def _describe(change: str) -> str:
    return f"{change}: an attempt that holdfast begins by itself runs only what was recorded"


def _go_on(context: SupervisorContext) -> str:
    return f"run it as it is now: holdfast restart {context.run_id}"
