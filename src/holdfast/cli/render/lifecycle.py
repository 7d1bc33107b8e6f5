"""The phases of a place for people: each with its checks, then what is next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import clean, paint

if TYPE_CHECKING:
    from holdfast.desk.lifecycle import Lifecycle

MARKS = {"yes": "pass", "no": "fail", "could not look": "unknown"}


def print_lifecycle(found: Lifecycle) -> None:
    """The phase first, then all of them with their evidence."""
    name = found.place if found.run_id is None else f"{found.place}:{found.run_id}"
    if found.phase is None:
        print(f"{name}: all phases are done")
    else:
        print(clean(f"{name}: {found.title} is not done; missing: {', '.join(found.missing)}"))
        if found.command:
            print(f"  -> {clean(found.command)}")
    for phase in found.phases:
        print()
        print(f"{phase.title}{'' if phase.done else '  (open)'}")
        for check in phase.checks:
            print(f"    {paint(MARKS[check.holds])}  {clean(check.name)}: {clean(check.seen)}")
