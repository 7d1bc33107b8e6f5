"""Sentinels for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import note, table

if TYPE_CHECKING:
    from holdfast.agent.patrol.sentinel.arm import ArmedSentinel, SentinelList


def print_sentinels(found: SentinelList) -> None:
    """A row for each sentinel of a run."""
    rows = [
        (
            record.condition,
            record.outcome or ("waiting" if record.condition in found.waiting else "gone"),
            record.armed_at,
            record.words,
        )
        for record in found.sentinels
    ]
    if rows:
        table(("for", "state", "armed", "outcome"), rows)
    else:
        note(f"{found.run_id} has no sentinel")


def print_armed(armed: ArmedSentinel) -> None:
    """That it waits, or how it has ended already."""
    record = armed.sentinel
    if record.outcome:
        print(f"{record.run_id}: {record.condition}: {record.outcome}: {record.words}")
    else:
        print(f"{record.run_id}: waiting for {record.condition} (pid {record.process.pid})")
        note(f"holdfast sentinel {record.run_id} shows how it ended")
