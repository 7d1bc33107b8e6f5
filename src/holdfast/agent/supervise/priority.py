"""The priority of a job that leaves it to the box: low where somebody else would feel it, and only there (ETIQ-01)."""

from __future__ import annotations

from holdfast.core.rules.rules import Rules
from holdfast.host.process.processes import find_other_accounts, user_name
from holdfast.model.job import Priority
from holdfast.model.record import record

MOST_NAMED = 3


@record
class ChosenPriority:
    """A priority, and why it is this one, in words."""

    priority: Priority
    why: str


def choose_priority(asked: Priority, rules: Rules) -> ChosenPriority:
    """What `asked` comes to on this box now."""
    if asked is not Priority.AUTO:
        return ChosenPriority(asked, "asked for")
    if rules.sources:
        return ChosenPriority(Priority.LOW, "this box has rules")
    others = find_other_accounts()
    if others is None:
        return ChosenPriority(Priority.LOW, "whether other accounts work here cannot be seen")
    if others:
        names = ", ".join(user_name(uid) for uid in others[:MOST_NAMED])
        return ChosenPriority(Priority.LOW, f"other accounts work here: {names}")
    return ChosenPriority(Priority.NORMAL, "no other account works here")
