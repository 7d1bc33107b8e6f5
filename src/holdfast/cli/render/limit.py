"""The answer of `holdfast limit` in words: which limits of a live job were changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.core.moments import show_times
from holdfast.model.errors import ResourceBusy

from . import clean, note
from .job_change import describe_changes, describe_limit

if TYPE_CHECKING:
    from holdfast.agent.control.job.live_limits import LimitsAnswer


def print_limits(answer: LimitsAnswer, *, dry_run: bool) -> None:
    """What was changed, what is in force now and by what; or why nothing was."""
    if answer.why:
        yet = " yet" if answer.exit_code == ResourceBusy.exit_code else ""
        note(f"{answer.run_id}: nothing was changed{yet}: {answer.why}")
        return
    for line in describe_changes(answer.changed):
        print(clean(f"would change: {line}" if dry_run else line))
    if not answer.changed:
        note(f"{answer.run_id}: nothing to change{': it is as asked for' if not dry_run else ''}")
    if dry_run or not answer.changed:
        print("in force now:" if answer.limits or answer.deadline is not None else "in force now: no limit")
    for limit in answer.limits:
        print(clean(f"  {limit.get('name')}: {describe_limit(limit)}"))
    if answer.deadline is not None:
        print(f"  it will be asked to stop at {show_times(answer.deadline)} at the latest")
    if dry_run and answer.changed:
        note(f"{answer.run_id}: nothing was changed (dry run)")
