"""What ``holdfast queue`` says of the whole queue, of an order to it, and of the roster against the disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.core.queue.completion import ProofStatus
from holdfast.core.queue.words import count_jobs, name_labels
from holdfast.desk.caller import CALLER
from holdfast.model.queue import ACTIVE_STATES, WAITING_STATES, JobState
from holdfast.model.units import format_count, format_duration

from . import clean, fits, heading, note, paint, table

if TYPE_CHECKING:
    from holdfast.agent.queue.change.change import QueueChange
    from holdfast.agent.queue.view.check import Checked
    from holdfast.agent.queue.view.listing import ActiveRow, GroupLine, QueueList

SHOWN_ACTIVE = 20
SHOWN_GROUPS = 30
SHOWN_LINE = 20
MOST_DONE = 10
"""Jobs that are done are named only when they are few."""
COLUMNS = (JobState.QUEUED, JobState.BLOCKED, JobState.HELD, JobState.DONE, JobState.FAILED)


def print_queue(seen: QueueList) -> None:
    """The groups, what runs, what waits next and why, and what does not go on by itself."""
    if seen.notice:
        note(seen.notice)
    if any(group.counts for group in seen.groups):
        _print_groups(seen.groups)
        _print_jobs(seen)
    else:
        note("the queue is empty" + ("; holdfast submit hands something in" if CALLER.place is None else ""))
    if seen.line:
        heading("in line for cards")
        rows = [
            (number, one.user, one.cards, format_duration(one.waited_s), one.label or "-", one.run_id)
            for number, one in enumerate(seen.line[:SHOWN_LINE], start=1)
        ]
        table(("#", "user", "cards", "for", "job", "run"), rows, right=(0, 2, 3))
        if len(seen.line) > SHOWN_LINE:
            note(f"{format_count(len(seen.line) - SHOWN_LINE, 'more stands', 'more stand')} in line; --json lists them")
    if seen.line_unread:
        note(f"the line for cards cannot be read: {seen.line_unread}")
    for text in seen.warnings:
        note(text)


def _print_jobs(seen: QueueList) -> None:
    if seen.active:
        heading("at work")
        rows = [_list_active(job) for job in seen.active[:SHOWN_ACTIVE]]
        table(("job", "state", "time", "left", "cards", "step", "loss"), rows, right=(2, 3, 5, 6))
    if not seen.jobs:
        return
    heading("waiting" if all(row.job.state in WAITING_STATES for row in seen.jobs) else "listed")
    lines = [
        (row.label, row.job.state.value, row.job.priority or None, row.job.cards or None, row.why) for row in seen.jobs
    ]
    table(("job", "state", "prio", "cards", "why"), lines, right=(2, 3))
    if seen.more:
        wait = all(state in WAITING_STATES | ACTIVE_STATES for state in seen.states)
        more = format_count(seen.more, "more waits", "more wait") if wait else f"{seen.more} more of these"
        note(f"{more}; --all shows every job")


def _print_groups(groups: tuple[GroupLine, ...]) -> None:
    shown = [group for group in groups[:SHOWN_GROUPS] if group.counts]
    rows = []
    for group in shown:
        active = group.count(*ACTIVE_STATES)
        known = [group.count(state) for state in COLUMNS]
        others = sum(group.counts.values()) - active - sum(known)
        rows.append((group.name, active, *known, others, group.left))
    headers = ("group", "active", *(state.value for state in COLUMNS), "other", "left")
    table(headers, [tuple(cell or None for cell in row) for row in rows], right=tuple(range(1, len(headers) - 1)))
    if len(groups) > SHOWN_GROUPS:
        note(f"{format_count(len(groups) - SHOWN_GROUPS, 'more group')}; --json lists them")


def _list_active(job: ActiveRow) -> tuple[object, ...]:
    times = [None if seconds is None else format_duration(seconds) for seconds in (job.elapsed_s, job.left_s)]
    return job.label, job.condition, *times, job.cards or None, job.step, job.loss


def print_change(change: QueueChange) -> None:
    """What an order did, and to what."""
    labels = [job.job for job in change.jobs]
    named = change.did.replace(",", " ").split()
    print(change.did if all(label in named for label in labels) else f"{change.did}: {name_labels(labels)}")
    for text in change.notes:
        note(text)


def print_checked(checked: Checked) -> None:
    """How many jobs stand where, each that is not done, and the command that re-runs what is missing."""
    for text in checked.notes:
        note(text)
    total = len(checked.jobs)
    counts = ", ".join(f"{number} {standing}" for standing, number in checked.counts.items())
    print(f"{count_jobs(total)}{': ' if counts else ''}{counts}")
    shown = [job for job in checked.jobs if job.standing is not ProofStatus.DONE or total <= MOST_DONE]
    if shown:
        rows = [(job.job, paint(job.standing.value), job.why, job.path) for job in shown]
        columns = ("job", "stands", "evidence", "path")
        whole = fits(columns, rows)  # else without the paths, which --json has
        table(columns if whole else columns[:3], rows if whole else [row[:3] for row in rows])
    for remark in checked.remarks:
        word = "suspicious: " if remark.suspicious and remark.standing is ProofStatus.DUPLICATE else ""
        print(clean(f"{remark.standing.value}: {word}{remark.subject} {remark.why} ({remark.path})"))
    left = [job for job in checked.jobs if job.standing is not ProofStatus.DONE]
    cancelled = [job.job for job in left if job.state is JobState.CANCELLED]
    others = any(job.state in (JobState.FAILED, JobState.HELD, JobState.DONE) for job in left)
    if checked.command:
        what = "was cancelled, if it is still wanted" if cancelled and not others else "is missing"
        print(clean(f"re-run what {what}:  {checked.command}"))
        if cancelled and others:
            note(f"cancelled, to be left out of that where it is not wanted any more: {name_labels(cancelled)}")
    if checked.hint:
        note(checked.hint)
