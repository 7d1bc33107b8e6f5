"""What `holdfast reconcile` repaired, or would repair, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.model.units import format_count

from . import clean, note

if TYPE_CHECKING:
    from holdfast.agent.patrol.reconcile import ReconcileReport, Repair
    from holdfast.desk.runs.reconcile import ReconciledPlace


def print_reconciled(found: ReconcileReport) -> None:
    """Print every repair; how much was looked at is said beside it."""
    for repair in found.repairs:
        _print(repair, dry_run=found.dry_run)
    for words in found.elsewhere:
        note(words)
    for problem in found.unread:
        note(f"could not be looked at: {problem}")
    counts = f"{format_count(found.runs, 'run')} and {format_count(found.sentinels, 'sentinel')} looked at"
    if found.unread:
        counts += f", {len(found.unread)} could not be"
    note(counts if found.repairs or found.unread else f"{counts}; nothing was out of line")


def _print(repair: Repair, *, dry_run: bool) -> None:
    print(f"{repair.kind.value} {clean(repair.subject)}: {clean(repair.why)}")
    if repair.problem:
        print(f"  not done: {clean(repair.problem)}")
    else:
        print(f"  {'would be: ' if dry_run else ''}{clean(repair.repair)}")


def print_reconciled_place(found: ReconciledPlace) -> None:
    """Print what became of each order without an answer; how much is known now is said beside it."""
    for order in found.orders:
        print(f"{clean(order.run_id)}, ordered at {order.at}: {clean(order.words)}")
    for run_id in found.gone:
        print(f"{run_id}: it had not ended, and is not there any more; it is forgotten here")
    for root in found.missing_roots:
        note(f"{found.place}: {root} cannot be read there; what was known of its runs is kept")
    if found.notice:
        note(f"{found.place}: {found.notice}")
    note(f"{format_count(found.runs, 'run')} of {found.place} known, {found.live} of them not ended")
